import pytest

from command_line import Here, assert_refused
from proxemic.addresses import without_password, without_passwords

SECRET = "s3cr3t"


@pytest.mark.parametrize(
    "address",
    [
        f"postgresql://me:{SECRET}@host/db/shop",
        f"POSTGRESQL://me:{SECRET}@host/db/shop",
        f"postgresql://me:a/{SECRET}@host/db/shop",
        f"postgresql://me:a?{SECRET}#b@{SECRET}@host/db/shop",
        f"postgresql://me:1/{SECRET}@host/db/shop",
        f"postgresql://host:{SECRET}/db/shop",
        f"postgresql:me:{SECRET}@host/db/shop",
        f"postgresql:/me:{SECRET}@host/db/shop",
        f"postgresql://host/db/shop?user=me&password={SECRET}",
        f"postgresql://host/db/shop?PassWord={SECRET}&sslmode=require",
        f"postgresql://host/db/shop?pass%77ord={SECRET}",
        f"postgresql+psycopg2://me:{SECRET}@host/db",
        f"milvus://host/shop?token={SECRET}",
        f"milvus://:{SECRET}@host/shop",
        f"redis://:{SECRET}@host:6379/0",
        f"s3://me:{SECRET}@host/shop?X-Amz-Signature={SECRET}",
    ],
)
def test_a_password_is_masked_in_any_form(address: str) -> None:
    shown = without_password(address)
    assert SECRET not in shown
    assert "***" in shown
    assert "host" in shown


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://me@host:5433/db/shop?host=/run/pg&sslmode=require",
        "postgresql://a:1,b:2/db/shop",
        "postgresql:///db/shop",
        "milvus://[::1]:2/shop?secure=true",
        "milvus-lite:folder/shop.db",
        "sqlite:///C:/runs/study.db",
        "s3://bucket/photos/a@b.jpg",
        "C:/photos/shop",
        "photos/a:b@c",
    ],
)
def test_what_is_no_password_stays(address: str) -> None:
    assert without_password(address) == address


@pytest.mark.parametrize(
    "address",
    [
        f"milvus-lite://me:{SECRET}@127.0.0.1:1",
        f"milvus-lite:me:{SECRET}@127.0.0.1:1",
        f" postgresql://me:{SECRET}@127.0.0.1:1/db/shop",
        f"\tMilvus://me:{SECRET}@127.0.0.1:1/shop\n",
        f"photos postgresql://me:{SECRET}@127.0.0.1:1/db/shop",
        f" s3://me:{SECRET}@127.0.0.1:1/shop",
    ],
)
def test_no_command_prints_a_password(address: str, here: Here) -> None:
    for words in (
        ("gallery", "info", address),
        ("gallery", "info", "shop", address),
        ("gallery", "verify", address),
        ("gallery", "create", "shop", address),
        ("search", address, "photo.png"),
        ("embed", address, "--model", "runs/photos", "--out", "vectors.npy"),
        ("evaluate", address),
        ("report", address),
        ("serve", address),
    ):
        done = here(*words)
        assert_refused(done, [])
        assert SECRET not in done.stdout + done.stderr, words


def test_spaces_around_an_address_do_not_count(here: Here) -> None:
    done = here("gallery", "info", f" postgresql://me:{SECRET}@127.0.0.1:1/db/shop ")
    assert_refused(done, ["postgresql://me:***@127.0.0.1:1/db/shop cannot be reached"])


@pytest.mark.parametrize(
    "text",
    [
        "photos/a.jpg: the picture cannot be read",
        "me@host: see https://host:8000/a, C:/photos/a@b.jpg or hf:google/siglip at 12:30:00",
        "postgresql://me@host:5433/db/shop?sslmode=require cannot be reached",
    ],
)
def test_a_message_without_a_password_stays(text: str) -> None:
    assert without_passwords(text) == text
