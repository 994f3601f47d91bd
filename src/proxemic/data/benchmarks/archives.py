"""Original archives, unpacked whole or not at all: torchvision would unpack other folders and links of theirs, too."""

import gzip
import shutil
import stat
import tarfile
import zipfile
import zlib
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import NoReturn

from filelock import FileLock
from tqdm import tqdm

# RuntimeError: an encrypted .zip
_DAMAGE = (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, EOFError, RuntimeError)


def unpack(archive: Path, tree: str) -> Path:
    """Unpack one folder of a .zip or .tgz archive beside it, unless it is there; other folders are left out.

    It is made under a hidden name and renamed at the end: a folder of that name is whole.
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
        members = [member for member in opened.infolist() if _belongs(member.filename, tree, archive)]
        _check_space(archive, folder, sum(member.file_size for member in members))
        with _bar(archive, sum(member.compress_size for member in members)) as bar:
            for member in members:
                if stat.S_ISLNK(member.external_attr >> 16):
                    raise ValueError(f"{archive} holds a link, {member.filename!r}, which the original does not.")
                opened.extract(member, folder)
                bar.update(member.compress_size)


def _unpack_tgz(archive: Path, tree: str, folder: Path) -> None:
    # Photographs do not shrink: the folder is about as large as the archive.
    _check_space(archive, folder, archive.stat().st_size)
    with archive.open("rb") as file, _bar(archive, archive.stat().st_size) as bar:
        content = gzip.GzipFile(fileobj=file, mode="rb")
        with tarfile.open(fileobj=content, mode="r|") as opened:
            opened.extraction_filter = getattr(tarfile, "data_filter", None)  # not in every Python 3.11
            for member in opened:
                if not _belongs(member.name, tree, archive):
                    continue
                if not (member.isfile() or member.isdir()):
                    raise ValueError(f"{archive} holds a link, {member.name!r}, which the original does not.")
                opened.extract(member, folder, set_attrs=False)
                bar.update(file.tell() - bar.n)
        while content.read(1 << 20):  # to the checksum at the end
            pass


def _belongs(name: str, tree: str, archive: Path) -> bool:
    parts = PurePosixPath(name.replace("\\", "/")).parts
    if ".." in parts or name.startswith("/"):
        raise ValueError(f"{archive} holds {name!r}, which leads out of its folder: it is not the original.")
    return parts[:1] == (tree,)


def _check_space(archive: Path, folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise ValueError(
            f"{archive} needs {needed / 1e9:.1f} GB to be unpacked, but {folder.parent} has {free / 1e9:.1f} GB free."
        )


def _bar(archive: Path, total: int) -> "tqdm[NoReturn]":
    # silent where nobody watches
    return tqdm(total=total, unit="B", unit_scale=True, desc=f"unpacking {archive.name}", disable=None)
