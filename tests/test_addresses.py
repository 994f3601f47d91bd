import pytest

from proxemic.addresses import without_password

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
