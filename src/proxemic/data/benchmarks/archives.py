"""Unpack original archives, completely or not at all; torchvision would also unpack other folders and links."""

import gzip
import shutil
import tarfile
import zipfile
import zlib
from contextlib import suppress
from pathlib import Path

from filelock import FileLock
from tqdm import tqdm

# RuntimeError: an encrypted .zip
_DAMAGE = (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, EOFError, RuntimeError)


def unpack(archive: Path, tree: str) -> Path:
    """Unpack one folder of a .zip or .tgz archive next to the archive, unless it exists; leave out other folders.

    The folder is written under a hidden name and renamed at the end, so a folder with the final name is complete.
    """
    target = archive.parent / tree
    unfinished, lock = archive.with_name(f".{tree}.unpacking"), archive.with_name(f".{tree}.lock")
    try:
        with FileLock(lock):
            if target.exists():  # also: another process was first
                return target
            shutil.rmtree(unfinished, ignore_errors=True)  # what a killed one left
            try:
                unfinished.mkdir()
                (_unpack_zip if archive.suffix == ".zip" else _unpack_tgz)(archive, tree, unfinished)
                if not (unfinished / tree).is_dir():
                    raise ValueError(f"{archive} holds no folder {tree}: it is another archive.")
                (unfinished / tree).rename(target)
            finally:
                shutil.rmtree(unfinished, ignore_errors=True)
    except _DAMAGE as error:
        raise ValueError(f"{archive} is damaged or cut short ({error}): delete it and fetch it again.") from error
    except OSError as error:
        raise ValueError(f"{archive} could not be unpacked to {target}: {error.strerror or error}.") from error
    finally:
        with suppress(OSError):
            lock.unlink()
    return target


def _unpack_zip(archive: Path, tree: str, folder: Path) -> None:
    with zipfile.ZipFile(archive) as opened:
        for name in tqdm(opened.namelist(), f"unpacking {archive.name}", disable=None):
            if name.startswith(f"{tree}/"):
                opened.extract(name, folder)  # it follows no links, and drops entries that would lead out of the folder


def _unpack_tgz(archive: Path, tree: str, folder: Path) -> None:
    with gzip.open(archive) as content, tarfile.open(fileobj=content, mode="r|") as opened:
        opened.extraction_filter = getattr(tarfile, "data_filter", None)  # not in every Python 3.11
        for member in tqdm(opened, f"unpacking {archive.name}", disable=None):
            if member.name.startswith(f"{tree}/") and (member.isfile() or member.isdir()):
                if ".." in Path(member.name).parts:
                    raise ValueError(f"{archive} holds {member.name!r}, which leads out of its folder.")
                opened.extract(member, folder, set_attrs=False)
        while content.read(1 << 20):  # to the checksum at the end
            pass
