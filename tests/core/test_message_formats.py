"""No message or batch changes its encoding without a new version of its format."""

from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from msgspec import inspect

from quorate.core import batch, codec, header
from quorate.core.control import Command
from quorate.core.event import Event
from quorate.core.messages import Message
from quorate.runtime import handshake
from quorate.runtime.handshake import Hello
from seals import sealed_batch

GOLDEN = Path(__file__).parents[1] / "golden"
BASIC = batch.encode([Event(b"key", b"value", (("name", b"x"),), 7, True), Event(None, b"", (), 9)])
# Of types that say no more.
SAMPLES: dict[type, Any] = {
    inspect.BoolType: True,
    inspect.NoneType: None,
    inspect.FloatType: 1.5,
    inspect.StrType: "text",
    inspect.RawType: msgspec.Raw(msgspec.msgpack.encode({})),
}


def sample(declared: inspect.Type, name: str = "") -> Any:
    """A value of this type that is always the same."""
    match declared:
        case inspect.StructType():
            fields = {each.name: sample(each.type, each.name) for each in declared.fields}
            return declared.cls(**fields)
        case inspect.ListType():
            return [sample(declared.item_type, name)] * max(declared.min_length or 0, 1)
        case inspect.TupleType():
            return tuple(sample(each, name) for each in declared.item_types)
        case inspect.DictType():
            return {sample(declared.key_type): sample(declared.value_type)}
        case inspect.UnionType():
            return sample(declared.types[0], name)
        case _:
            return plain_sample(declared, name)


def plain_sample(declared: inspect.Type, name: str) -> Any:
    match declared:
        case inspect.EnumType():
            return list(declared.cls)[-1]
        case inspect.LiteralType():
            return declared.values[-1]
        case inspect.IntType():
            return max(declared.ge or 0, 5)
        case inspect.BytesType():
            # Digests and tags have no declared length where messages are packed by hand.
            size = declared.min_length or {"digests": 32, "tag": codec.TAG_BYTES}.get(name, 3)
            return BASIC if name == "payloads" else bytes(at % 251 for at in range(size))
        case _:
            return SAMPLES[type(declared)]


def sample_of(kind: type) -> Any:
    return sample(inspect.type_info(kind))


def encoded(kind: type) -> bytes:
    frame = codec.encode(sample_of(kind))
    return bytes(frame) if isinstance(frame, bytes) else frame.head + b"".join(frame.payloads)


def written() -> dict[str, bytes]:
    """What is sent and written of each kind, by the kind and its version."""
    kinds = {kind.__name__: kind for kind in get_args(Message)}
    found = {f"message-{name}": encoded(kind) for name, kind in sorted(kinds.items())}
    commands = {kind.__name__: kind for kind in get_args(Command)}
    for name, kind in sorted(commands.items()):
        found[f"command-{name}"] = msgspec.msgpack.encode(sample_of(kind))
    found["hello"] = Hello(5, bytes(range(32)), bytes(range(32))).pack()
    wire = {f"{name}.v{handshake.VERSION}": content for name, content in found.items()}
    return {
        **wire,
        f"batch-basic.v{header.VERSION}": BASIC,
        f"batch-signed.v{header.VERSION}": sealed_batch(1000, 1, BASIC),
    }


def test_no_message_changes_its_encoding_without_a_new_version() -> None:
    """A golden file that is missing is written: look at it, and add it to the repository."""
    path = GOLDEN / "messages.txt"
    known = dict(line.split(" ") for line in path.read_text().splitlines()) if path.exists() else {}
    found = {name: content.hex() for name, content in written().items()}
    if not known:
        path.write_text("".join(f"{name} {content}\n" for name, content in found.items()))
    changed = [name for name in known if name in found and known[name] != found[name]]
    assert not changed, f"{changed} changed: give the format a new version, and keep its reader"
    assert sorted(found) == sorted(known), "add what is new to tests/golden/messages.txt"


@pytest.mark.parametrize("kind", get_args(Message), ids=lambda kind: kind.__name__)
def test_each_sample_comes_back(kind: type) -> None:
    message = sample_of(kind)
    (frame,) = codec.frames(memoryview(bytes(encoded(kind))))
    assert codec.decode(frame) == message
