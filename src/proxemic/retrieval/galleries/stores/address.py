"""Create, open and delete galleries by their addresses."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from proxemic.addresses import GALLERY_ADDRESS, read_scheme, without_password
from proxemic.errors import UserError
from proxemic.files import working_folder
from proxemic.retrieval.galleries.stores.store import GalleryInfo, Store


def create_store(address: str, info: GalleryInfo) -> Store:
    """Create an empty gallery.

    Args:
        address: A new address, see `open_store`.
        info: The settings of the gallery.

    Returns:
        The store of the gallery.

    Raises:
        UserError: If the address is taken or invalid, or cannot be reached.
    """
    store, address = _resolve(address)
    return store.create(address, info)


def create_or_continue(address: str, info: GalleryInfo) -> Store:
    """Create a gallery, or open an empty one of the same settings, as a creation that was killed leaves it."""
    try:
        return create_store(address, info)
    except UserError:
        with suppress(UserError):
            store = open_store(address)
            if store.info == info and not len(store):
                return store
            store.close()
        raise


@contextmanager
def create_whole_store(address: str, info: GalleryInfo) -> Iterator[Store]:
    """Create a gallery that appears when the block ends, and not at all if the block fails.

    If the process is killed in the block, a folder has no gallery; a server keeps the rows that were added.

    Args:
        address: A new address, see `open_store`.
        info: The settings of the gallery.

    Raises:
        UserError: If the address is taken or invalid, or cannot be reached.
    """
    store, address = _resolve(address)
    if not is_folder(address):
        made = store.create(address, info)
        try:
            yield made
        except BaseException:
            made.close()
            store.delete(address)
            raise
        finally:
            made.close()
        return
    target = Path(address)
    check_new_folder(target)
    with working_folder(target) as folder:
        made = store.create(str(folder / "made"), info)
        yield made
        made.close()
        if target.is_dir():
            target.rmdir()
        (folder / "made").rename(target)


def is_folder(address: str) -> bool:
    """Return whether an address is a folder, not a server."""
    from proxemic.retrieval.galleries.stores.remote import RemoteStore

    return not issubclass(_resolve(address)[0], RemoteStore)


def check_new_folder(target: Path) -> None:
    """Raise `UserError` unless a folder is new or empty."""
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise UserError(f"{target} is not a new or empty folder: give one for the gallery.")


def open_store(address: str) -> Store:
    """Open the gallery at an address.

    Args:
        address: A folder; or ``postgresql://user:password@host:port/database/gallery``, with parameters of libpq, such
            as ``?host=/socket/folder&sslmode=require``; or ``milvus://user:password@host:port/gallery``, or
            ``…/database/gallery``, with ``?secure=true`` for TLS; or ``milvus-lite:FILE``, which holds one gallery and
            is opened by one process at a time.

    Raises:
        UserError: If there is no gallery, or it cannot be reached or read.
        ImportError: If a package that the store needs is not installed.
    """
    store, address = _resolve(address)
    return store.open(address)


def delete_store(address: str) -> None:
    """Delete a gallery.

    Args:
        address: The address, see `open_store`.

    Raises:
        UserError: If there is no gallery, or it cannot be reached.
    """
    store, address = _resolve(address)
    store.delete(address)


def _resolve(address: str) -> tuple[type[Store], str]:
    """Return the store class of an address, and the address with its scheme in lower case."""
    scheme, has_slashes = read_scheme(address)
    lowered = scheme + address.strip()[len(scheme) :]
    # The clients of other stores are not imported: they need not be installed.
    if has_slashes and scheme in ("postgresql", "postgres"):
        from proxemic.retrieval.galleries.stores.postgres import PostgresStore

        return PostgresStore, lowered
    if (has_slashes and scheme == "milvus") or scheme == "milvus-lite":
        from proxemic.retrieval.galleries.stores.milvus import MilvusStore

        return MilvusStore, lowered
    if not address or "://" in address or scheme in ("postgresql", "postgres", "milvus"):
        shown = without_password(address) or "An empty text"
        raise UserError(f"{shown} is not the address of a gallery: give {GALLERY_ADDRESS}.")
    from proxemic.retrieval.galleries.stores.local import LocalStore

    return LocalStore, address
