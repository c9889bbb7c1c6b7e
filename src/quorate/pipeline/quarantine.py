"""Where batches go that could not be verified, if a query shall go on without them.

Each becomes a file of JSON lines, named after its place, with what every replica sent in its stead.
A task that runs again writes the same file again.
"""

import base64

import msgspec

from quorate.client.ranges import UnverifiedError
from quorate.pipeline.places import file_system


def quarantine(directory: str, error: UnverifiedError) -> None:
    """Keep what replicas sent in place of this batch, for somebody to look into."""
    filesystem, path = file_system(directory)
    filesystem.create_dir(path, recursive=True)
    lines = [
        {
            "sentence": str(error),
            "offset": error.offset,
            "end": error.end,
            "replica": name,
            "sent": base64.b64encode(sent).decode(),
        }
        for name, sent in (error.sent or {"": b""}).items()
    ]
    name = f"{error.topic}-{error.partition}-{error.offset}"
    with filesystem.open_output_stream(f"{path}/{name}.jsonl") as file:
        file.write(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
