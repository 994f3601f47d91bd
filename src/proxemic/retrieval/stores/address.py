"""Which store an address means."""

from proxemic.retrieval.stores.store import GalleryInfo, Store


def create_store(address: str, info: GalleryInfo) -> Store:
    """Make an empty gallery at an address; see `open_store`."""
    return _class_of(address).create(address, info)


def open_store(address: str) -> Store:
    """Open the gallery at an address.

    Args:
        address: A folder; or ``postgresql://user:password@host:port/database/gallery``, whose parameters, such as
            ``?host=/socket/folder&sslmode=require``, are those of libpq; or ``milvus://user:password@host:port/gallery``,
            with a database other than the default ``…/database/gallery``, and ``?secure=true`` for TLS; or
            ``milvus-lite:FILE``, which holds one gallery and is opened by one process at a time.

    Raises:
        UserError: If there is none, or it cannot be reached or read.
        ImportError: If what its store needs is not installed.
    """
    return _class_of(address).open(address)


def delete_store(address: str) -> None:
    """Delete the gallery at an address; see `open_store`."""
    _class_of(address).delete(address)


def _class_of(address: str) -> type[Store]:
    # What is not asked for is not imported: it need not be installed.
    if address.startswith(("postgresql://", "postgres://")):
        from proxemic.retrieval.stores.postgres import PostgresStore

        return PostgresStore
    if address.startswith(("milvus://", "milvus-lite:")):
        from proxemic.retrieval.stores.milvus import MilvusStore

        return MilvusStore
    from proxemic.retrieval.stores.local import LocalStore

    return LocalStore
