"""Where batches go that could not be verified, if a query shall go on without them.

Each becomes a file of JSON lines, named after its place, with what every replica sent in its stead.
A task that runs again writes the same file again.
"""

import base64
import re

import msgspec
from pyarrow import fs

from quorate.client.ranges import UnverifiedError


def quarantine(directory: str, error: UnverifiedError) -> None:
    """Keep what replicas sent in place of this batch, for somebody to look into."""
    filesystem, path = file_system(directory)
    filesystem.create_dir(path, recursive=True)
    lines = [
        {"sentence": str(error), "offset": error.offset, "replica": name, "sent": _text(sent)}
        for name, sent in (error.sent or {"": b""}).items()
    ]
    with filesystem.open_output_stream(f"{path}/{_name(error)}.jsonl") as file:
        file.write(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))


def file_system(directory: str) -> tuple[fs.FileSystem, str]:
    """Where a directory is, by its path or by an address that Arrow knows (s3:, hdfs:, gs:)."""
    if re.match(r"[a-z][a-z0-9+.-]+:", directory):
        filesystem, path = fs.FileSystem.from_uri(directory)
        return filesystem, path
    return fs.LocalFileSystem(), directory


def _name(error: UnverifiedError) -> str:
    return f"{error.topic}-{error.partition}-{error.offset}"


def _text(sent: bytes) -> str:
    return base64.b64encode(sent).decode()
