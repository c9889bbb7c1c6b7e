"""Places that a driver and its executors share: directories, or what else Arrow can write to.

On a disk of our own, what is written is synced before anything rests on it, and of several who save
something under one name for the first time, one is first. Other places decide for themselves when
something is kept, and have no way to tell who came first. There, it must be seen to that a driver
has ended before the next one starts, as those do who run a cluster.
"""

import os
import re
import secrets

from pyarrow import fs


def file_system(directory: str) -> tuple[fs.FileSystem, str]:
    """Where a directory is, by its path or by an address that Arrow knows (s3:, hdfs:, gs:)."""
    if re.match(r"[a-z][a-z0-9+.-]+:", directory):
        filesystem, path = fs.FileSystem.from_uri(directory)
        return filesystem, path
    return fs.LocalFileSystem(), directory


def is_there(files: fs.FileSystem, path: str) -> bool:
    return bool(files.get_file_info(path).type is not fs.FileType.NotFound)


def save(files: fs.FileSystem, path: str, content: bytes) -> None:
    """The whole of it or nothing: what is there under this name was written to its end."""
    files.move(_draft(files, path, content), path)
    sync(files, _parent(path))


def save_first(files: fs.FileSystem, path: str, content: bytes) -> bool:
    """The same, unless there is something under this name already; says whether there was not."""
    draft = _draft(files, path, content)
    is_first = _is_first(files, draft, path)
    sync(files, _parent(path))
    return is_first


def remove_drafts(files: fs.FileSystem, directory: str) -> None:
    """What those left who were killed while they saved something."""
    for info in files.get_file_info(fs.FileSelector(directory, allow_not_found=True)):
        if info.base_name.startswith("."):
            files.delete_file(info.path)


def sync(files: fs.FileSystem, path: str) -> None:
    """Have a file, or the names in a directory, on the disk."""
    if isinstance(files, fs.LocalFileSystem):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _is_first(files: fs.FileSystem, draft: str, path: str) -> bool:
    if isinstance(files, fs.LocalFileSystem):
        try:
            os.link(draft, path)
        except FileExistsError:
            return False
        finally:
            os.unlink(draft)
        return True
    if is_there(files, path):
        files.delete_file(draft)
        return False
    files.move(draft, path)
    return True


def _draft(files: fs.FileSystem, path: str, content: bytes) -> str:
    """A file beside it, whose name begins with a dot: whoever is killed leaves that."""
    directory, _, name = path.rpartition("/")
    files.create_dir(directory, recursive=True)
    draft = f"{directory}/.{name}.{secrets.token_hex(8)}"
    with files.open_output_stream(draft) as file:
        file.write(content)
    sync(files, draft)
    return draft


def _parent(path: str) -> str:
    return path.rpartition("/")[0]
