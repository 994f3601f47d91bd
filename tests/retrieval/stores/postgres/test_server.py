import pytest

from ports import free_port
from proxemic.errors import UserError
from proxemic.retrieval.stores import GalleryInfo, create_store, open_store
from proxemic.retrieval.stores.postgres.server import Address
from servers import Postgres

SECRET = "s3cr3t"


@pytest.mark.parametrize(
    ("address", "shown", "gallery"),
    [
        (f"postgresql://me:{SECRET}@host:5433/db/shop", "postgresql://me:***@host:5433/db/shop", "shop"),
        (f"postgres://me:{SECRET}%40%2F@host/db/a%2Fb%20c", "postgres://me:***@host/db/a%2Fb%20c", "a/b c"),
        ("postgresql:///db/shop", "postgresql:///db/shop", "shop"),
        ("postgresql://me@/db/shop?host=/run/pg", "postgresql://me@/db/shop?host=/run/pg", "shop"),
        ("postgresql:///db/shop?host=/run/pg", "postgresql:///db/shop?host=/run/pg", "shop"),
        (
            f"postgresql://a:1,b:2/db/shop?user=me&password={SECRET}&sslmode=require",
            "postgresql://a:1,b:2/db/shop?user=me&password=***&sslmode=require",
            "shop",
        ),
    ],
)
def test_an_address_is_read_and_shown_without_its_password(address: str, shown: str, gallery: str) -> None:
    read = Address.parse(address)
    assert (read.shown, read.gallery) == (shown, gallery)
    assert "dbname=db" in read.conninfo
    assert "connect_timeout=5" in read.conninfo
    assert (SECRET in read.conninfo) == (SECRET in address)
    assert SECRET not in repr(read)


def test_what_an_address_says_of_time_is_kept() -> None:
    assert "connect_timeout=60" in Address.parse("postgresql://host/db/shop?connect_timeout=60").conninfo


@pytest.mark.parametrize(
    "address",
    [
        f"postgresql://me:{SECRET}@host/shop",
        f"postgresql://me:{SECRET}@host",
        f"postgresql://me:{SECRET}@host/db/",
        f"postgresql://me:{SECRET}@host/a/b/c",
        f"postgresql://me:{SECRET}/x@host/db/shop",
        f"postgresql://me:{SECRET}/x@host/shop",
        f"POSTGRES://me:1/{SECRET}@host/shop",
        f"postgresql:/me:{SECRET}@host/shop",
        f"postgresql://host:{SECRET}/db/shop",
        f"postgresql://me:{SECRET}#x@host/db/shop",
        f"postgresql://me:{SECRET}?x@host/db/shop",
        f"postgresql://me:{SECRET}@host/db/shop?colour=red",
        f"postgresql://me:{SECRET}@host:port/db/shop?password={SECRET}&colour",
        f"postgresql://me:{SECRET}%zz@host/db/shop",
    ],
)
def test_no_message_has_the_password(address: str) -> None:
    with pytest.raises(UserError) as raised:
        open_store(address)
    assert SECRET not in str(raised.value)
    assert "host" in str(raised.value)


def test_a_server_that_is_not_there_is_one_sentence() -> None:
    address = f"postgresql://me:{SECRET}@127.0.0.1:{free_port()}/db/shop"
    for call in (open_store, lambda address: create_store(address, GalleryInfo(2))):
        with pytest.raises(UserError, match=r"cannot be reached: .*refused.* Start the server") as raised:
            call(address)
        assert SECRET not in str(raised.value)
        assert "\n" not in str(raised.value)


def test_a_wrong_database_and_a_wrong_user_are_named(postgres: Postgres) -> None:
    with pytest.raises(UserError, match=r'database "nowhere" does not exist'):
        open_store(postgres.address("shop", database="nowhere"))
    with pytest.raises(UserError, match=r'role "nobody" does not exist'):
        open_store(postgres.address("shop", user="nobody"))


def test_what_an_administrator_must_allow_is_said(postgres: Postgres) -> None:
    postgres.execute("CREATE ROLE guest LOGIN", "CREATE DATABASE rights")
    theirs, ours = (postgres.address("shop", user=user, database="rights") for user in ("guest", "postgres"))
    with pytest.raises(UserError, match=r"have an administrator run CREATE EXTENSION vector"):
        create_store(theirs, GalleryInfo(2))
    with pytest.raises(UserError, match=r"have an administrator run CREATE EXTENSION vector"):
        open_store(theirs)
    postgres.execute("CREATE EXTENSION vector", database="rights")
    with pytest.raises(UserError, match=r"holds no gallery"):
        open_store(theirs)
    with pytest.raises(UserError, match=r"refuses this to guest \(permission denied .*have an administrator grant"):
        create_store(theirs, GalleryInfo(2))
    create_store(ours, GalleryInfo(2)).close()
    with pytest.raises(UserError, match=r"refuses this to guest"):
        open_store(theirs)
    postgres.execute("GRANT SELECT ON proxemic_galleries, proxemic_gallery_1 TO guest", database="rights")
    reader = open_store(theirs)
    assert len(reader) == 0
    with pytest.raises(UserError, match=r"refuses this to guest \(permission denied for table"):
        reader.remove({"label": "x"})
    reader.close()


def test_a_dropped_connection_is_made_again(postgres: Postgres) -> None:
    store = create_store(postgres.address("dropped"), GalleryInfo(2))
    for _ in range(2):
        # All connections but the administrator's.
        postgres.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename IS NOT NULL AND pid <> "
            "pg_backend_pid()"
        )
        assert len(store) == 0
    store.close()
    assert len(store) == 0
    store.close()
