"""What auditors are told is bounded before anything is allocated."""

from typing import Any

import msgspec
import pytest

from quorate.core.codec import decode, encode
from quorate.core.errors import RemoteProtocolError
from quorate.core.ordering import (
    CHECKPOINT_CHARACTERS_MAX,
    EDGE_MAX,
    SLOT_DESCRIPTORS_BYTES_MAX,
    SLOT_SPANS_MAX,
    VALUE_BYTES_MAX,
    WALKED_SLOTS_MAX,
    Slot,
    Walk,
    Walked,
)

D = bytes(32)
SLOT = Slot(b"value", D, [0])
WALKED = Walked(1, 7, 3, [SLOT], 3, 4, 2, [D], ["checkpoint"])
OVER: dict[str, dict[str, Any]] = {
    "slots": {"slots": [SLOT] * (WALKED_SLOTS_MAX + 1)},
    "a value": {"slots": [Slot(bytes(VALUE_BYTES_MAX + 1), b"", [])]},
    "descriptors": {"slots": [Slot(b"", bytes(SLOT_DESCRIPTORS_BYTES_MAX + 1), [])]},
    "offsets": {"slots": [Slot(b"", b"", [0] * (SLOT_SPANS_MAX + 1))]},
    "a negative offset": {"slots": [Slot(b"", b"", [-1])]},
    "an edge": {"edge": [D] * (EDGE_MAX + 1)},
    "a short hash": {"edge": [D[:-1]]},
    "checkpoints": {"checkpoints": ["x"] * 3},
    "a checkpoint": {"checkpoints": ["x" * (CHECKPOINT_CHARACTERS_MAX + 1)]},
    "a negative end": {"end": -1},
}


@pytest.mark.parametrize("message", [Walk(1, 7, 0), WALKED], ids=["walk", "walked"])
def test_a_walk_is_read_back_as_it_was_written(message: Walk | Walked) -> None:
    assert decode(memoryview(encode(message))[4:]) == message


@pytest.mark.parametrize("changes", OVER.values(), ids=OVER)
def test_what_is_over_its_bound_is_refused(changes: dict[str, Any]) -> None:
    frame = encode(msgspec.structs.replace(WALKED, **changes))

    with pytest.raises(RemoteProtocolError):
        decode(memoryview(frame)[4:])
