"""Checkpoints: the head of a log as a text that several cosigners have signed.

Source: C2SP signed-note, tlog-checkpoint and tlog-cosignature (cosignature/v1), so that tools
for transparency logs can read what we publish.

A checkpoint is a note: a body, an empty line, and signature lines. The body is the origin (which
log this is), the size, and the root in base64, each on its line; lines after these are
extensions, of which replicas use one (`protocol/ordering/transfer.py`). A signature line names its
key, with a short identifier beside the name. A cosignature is a signature over a header, a time and
the body.

Rules:
- there is one way to write a checkpoint: no leading zeros, canonical base64, no control
  characters, every line ended;
- a line of an unknown key is ignored, also when it shares its name or its identifier with a known
  one; a line of a known key has to verify, or the whole note is refused;
- a note that lacks cosignatures, and has as many lines of other keys in the names of cosigners, may
  be of another time, when they had those keys: it counts as little, and is no proof of a lie;
- a cosigner has one voice, however many lines it has in a note;
- what is signed does not contain the name of the cosigner, so no two cosigners share a key;
- whoever reads compares the origin with that of the log it asked for: the same cosigners may
  look after many logs.
"""

import base64
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256

from quorate.core.cluster import PUBLIC_KEY_BYTES
from quorate.core.errors import LocalProtocolError, RemoteProtocolError
from quorate.crypto.identity import SIGNATURE_BYTES, is_signed
from quorate.crypto.merkle import HASH_BYTES

SIZE_MAX = 2**63 - 1
TIME_S_MAX = 2**63 - 1
# Room for the largest cluster; the specification asks for at least 16 signatures, of up to 5 kB.
SIGNATURES_MAX = 1024
NOTE_BYTES_MAX = 256 * 1024

_KEY_ID_BYTES = 4
_TIME_BYTES = 8
_COSIGNATURE_TYPE = b"\x04"
_SIGNATURE_START = "\N{EM DASH} "
_DECIMAL = re.compile(r"0|[1-9][0-9]{0,18}")
# A string of Python may hold half a character, a surrogate, which UTF-8 cannot say.
_LINE = re.compile(r"[^\x00-\x1f\ud800-\udfff]+")
_NAME = re.compile(r"[^\s+\x00-\x1f\ud800-\udfff]+")
_LINE_RULE = "is not empty and has no control characters and no surrogates"
_NAME_RULE = f"{_LINE_RULE}, no spaces and no '+'"
# How much of a text that makes no sense stands in an error.
_SHOWN_CHARACTERS = 40


class OtherKeysError(RemoteProtocolError):
    """A checkpoint that would do if its cosigners had other keys: former ones, or later ones."""


@dataclass(frozen=True, slots=True)
class Head:
    """What a checkpoint says: this log has so many leaves, under this root."""

    origin: str
    size: int
    root: bytes
    extensions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.size <= SIZE_MAX:
            raise LocalProtocolError(f"a head of {self.size} leaves; allowed are 0 to {SIZE_MAX}")
        if len(self.root) != HASH_BYTES:
            raise LocalProtocolError(
                f"a head with a root of {len(self.root)} bytes, not {HASH_BYTES}"
            )
        for line in (self.origin, *self.extensions):
            if not _LINE.fullmatch(line):
                raise LocalProtocolError(
                    f"a head with the line {_shown(line)}, but a line {_LINE_RULE}"
                )

    @staticmethod
    def parse(body: bytes) -> "Head":
        """Read what `body` wrote."""
        if len(body) > NOTE_BYTES_MAX:
            raise RemoteProtocolError(f"a checkpoint of more than {NOTE_BYTES_MAX} bytes")
        try:
            lines = body.decode().split("\n")
        except UnicodeDecodeError:
            raise RemoteProtocolError("a checkpoint that is not valid UTF-8") from None
        if len(lines) < 4 or lines.pop():
            raise RemoteProtocolError(
                "a checkpoint without its three lines, each ended: origin, size and root"
            )
        origin, size, root, *extensions = lines
        if not _DECIMAL.fullmatch(size):
            raise RemoteProtocolError(
                f"a checkpoint of size {_shown(size)}, which is no decimal number of up to 19 "
                "digits without leading zeros"
            )
        root_bytes = _unbase64("the root of a checkpoint", root)
        try:
            return Head(origin, int(size), root_bytes, tuple(extensions))
        except LocalProtocolError as error:
            # The same fault, but here it is that of whoever wrote the checkpoint.
            raise RemoteProtocolError(str(error)) from None

    def body(self) -> bytes:
        """The text that is signed."""
        lines = (self.origin, str(self.size), _base64(self.root), *self.extensions)
        return "".join(f"{line}\n" for line in lines).encode()


@dataclass(frozen=True, slots=True)
class Cosigner:
    """Whose cosignatures count: a name and an Ed25519 public key."""

    name: str
    public_key: bytes

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise LocalProtocolError(
                f"the name of a cosigner is {_shown(self.name)}, but a name {_NAME_RULE}"
            )
        if len(self.public_key) != PUBLIC_KEY_BYTES:
            raise LocalProtocolError(
                f"the public key of the cosigner {self.name} has {len(self.public_key)} bytes, "
                f"not {PUBLIC_KEY_BYTES}"
            )

    @property
    def key_id(self) -> bytes:
        """Tells keys of one name apart. It is too short to prove anything."""
        return _key_id(self.name, self.public_key)


@lru_cache(maxsize=1024)
def _key_id(name: str, public_key: bytes) -> bytes:
    named = name.encode() + b"\n" + _COSIGNATURE_TYPE + public_key
    return sha256(named).digest()[:_KEY_ID_BYTES]


@dataclass(frozen=True, slots=True)
class Cosignature:
    """A cosigner says that at this time it knew no larger head of this log."""

    name: str
    time_s: int
    signature: bytes


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A head, with the cosignatures by known cosigners that verified, in the order of names."""

    head: Head
    cosignatures: tuple[Cosignature, ...]


def log_origin(cluster: str, group: str) -> str:
    """What the order log of a group of replicas is called, by the name of its protection."""
    return f"quorate/{cluster}/{group}"


def cosigned_bytes(head: Head, time_s: int) -> bytes:
    """What a cosigner signs."""
    if not 0 <= time_s <= TIME_S_MAX:
        raise LocalProtocolError(f"a cosignature of time {time_s}; allowed are 0 to {TIME_S_MAX}")
    return f"cosignature/v1\ntime {time_s}\n".encode() + head.body()


def verify_cosignature(head: Head, cosigner: Cosigner, cosignature: Cosignature) -> None:
    """Returns when this cosigner signed this head at this time, and raises otherwise."""
    if cosignature.name != cosigner.name:
        raise RemoteProtocolError(
            f"a cosignature in the name of {_shown(cosignature.name)}, not of {cosigner.name}"
        )
    if not 0 <= cosignature.time_s <= TIME_S_MAX:
        raise RemoteProtocolError(
            f"a cosignature of {cosigner.name} with time {cosignature.time_s}; "
            f"allowed are 0 to {TIME_S_MAX}"
        )
    signed = cosigned_bytes(head, cosignature.time_s)
    if not is_signed(cosigner.public_key, signed, cosignature.signature):
        raise RemoteProtocolError(
            f"a cosignature that is not by {cosigner.name}, or not of this checkpoint"
        )


def render(head: Head, cosignatures: Iterable[Cosignature], cosigners: Iterable[Cosigner]) -> str:
    """The checkpoint as a note, its lines in the order of names. Verifies no signature."""
    known = _by_name(cosigners)
    ordered = sorted(cosignatures, key=lambda cosignature: cosignature.name)
    if not 1 <= len(ordered) <= SIGNATURES_MAX:
        raise LocalProtocolError(
            f"a checkpoint with {len(ordered)} cosignatures; allowed are 1 to {SIGNATURES_MAX}"
        )
    if len({cosignature.name for cosignature in ordered}) != len(ordered):
        raise LocalProtocolError("a checkpoint with two cosignatures of one cosigner")
    lines = [_signature_line(known, cosignature) for cosignature in ordered]
    note = "".join((head.body().decode(), "\n", *lines))
    if len(note.encode()) > NOTE_BYTES_MAX:
        raise LocalProtocolError(f"a checkpoint of more than {NOTE_BYTES_MAX} bytes")
    return note


def read(text: str, cosigners: Iterable[Cosigner], needed: int) -> Checkpoint:
    """The checkpoint in this note, once `needed` of these cosigners are seen to have signed it."""
    known = _by_name(cosigners)
    if not 1 <= needed <= len(known):
        raise LocalProtocolError(f"{needed} cosignatures are needed, of {len(known)} cosigners")
    body, lines = _parts(text)
    head = Head.parse(body)
    found = _verified(head, lines, known)
    if len(found) < needed:
        named = {name for line in lines if (name := _parse_line(line)[0]) in known}
        kind = RemoteProtocolError if len(named) < needed else OtherKeysError
        raise kind(
            f"a checkpoint with the cosignatures of {len(found)} known cosigners "
            f"({', '.join(sorted(found)) or 'none'}), where {needed} are needed"
        )
    return Checkpoint(head, tuple(found[name] for name in sorted(found)))


def head_of(text: str) -> Head:
    """What a note says, whoever signed it: for those who have it from themselves."""
    body, _ = _parts(text)
    return Head.parse(body)


def _by_name(cosigners: Iterable[Cosigner]) -> dict[str, Cosigner]:
    everyone = list(cosigners)
    known = {cosigner.name: cosigner for cosigner in everyone}
    keys = {cosigner.public_key for cosigner in everyone}
    if not len(known) == len(keys) == len(everyone):
        raise LocalProtocolError("two cosigners with one name or one key, which count as one")
    return known


def _verified(
    head: Head, lines: Iterable[str], known: dict[str, Cosigner]
) -> dict[str, Cosignature]:
    """The cosignatures by known cosigners, one of each."""
    found: dict[str, Cosignature] = {}
    for line in lines:
        name, key_id, signature = _parse_line(line)
        cosigner = known.get(name)
        if cosigner is None or cosigner.key_id != key_id:
            continue
        if len(signature) != _TIME_BYTES + SIGNATURE_BYTES:
            raise RemoteProtocolError(
                f"a cosignature of {name} of {len(signature)} bytes, "
                f"not {_TIME_BYTES + SIGNATURE_BYTES}"
            )
        time_s = int.from_bytes(signature[:_TIME_BYTES], "big")
        cosignature = Cosignature(name, time_s, signature[_TIME_BYTES:])
        verify_cosignature(head, cosigner, cosignature)
        # A cosigner may sign one head at several times: the last of them says most.
        earlier = found.get(name)
        if earlier is None or earlier.time_s < time_s:
            found[name] = cosignature
    return found


def _signature_line(known: dict[str, Cosigner], cosignature: Cosignature) -> str:
    cosigner = known.get(cosignature.name)
    if cosigner is None:
        raise LocalProtocolError(f"a cosignature of {_shown(cosignature.name)}, who is no cosigner")
    if not 0 <= cosignature.time_s <= TIME_S_MAX or len(cosignature.signature) != SIGNATURE_BYTES:
        raise LocalProtocolError(
            f"a cosignature of {cosigner.name} with time {cosignature.time_s} "
            f"and {len(cosignature.signature)} bytes, not {SIGNATURE_BYTES}"
        )
    time = cosignature.time_s.to_bytes(_TIME_BYTES, "big")
    blob = _base64(cosigner.key_id + time + cosignature.signature)
    return f"{_SIGNATURE_START}{cosigner.name} {blob}\n"


def _parts(text: str) -> tuple[bytes, Sequence[str]]:
    """The body of a note and its signature lines: the last empty line stands between them."""
    try:
        # Whoever sends a long note must not make us copy it first.
        too_long = len(text) > NOTE_BYTES_MAX or len(text.encode()) > NOTE_BYTES_MAX
    except UnicodeEncodeError:
        raise RemoteProtocolError("a note with surrogates, which is no Unicode text") from None
    if too_long:
        raise RemoteProtocolError(f"a note of more than {NOTE_BYTES_MAX} bytes")
    body, separator, signatures = text.rpartition("\n\n")
    if not separator:
        raise RemoteProtocolError("a note without an empty line before its signatures")
    *lines, rest = signatures.split("\n")
    if rest or not lines:
        raise RemoteProtocolError("a note that does not end with a whole signature line")
    if len(lines) > SIGNATURES_MAX:
        raise RemoteProtocolError(
            f"a note with {len(lines)} signatures; allowed are {SIGNATURES_MAX}"
        )
    return f"{body}\n".encode(), lines


def _parse_line(line: str) -> tuple[str, bytes, bytes]:
    """The key name of a signature line, its key identifier, and the signature itself."""
    name, space, blob = line.removeprefix(_SIGNATURE_START).partition(" ")
    if not line.startswith(_SIGNATURE_START) or not space or not _NAME.fullmatch(name):
        raise RemoteProtocolError(
            f"a signature line that begins with {_shown(line)}; it is a dash, a name and base64, "
            f"and a name {_NAME_RULE}"
        )
    decoded = _unbase64("a signature of a note", blob)
    if len(decoded) <= _KEY_ID_BYTES:
        raise RemoteProtocolError(f"a signature line of {_shown(name)} without a signature")
    return name, decoded[:_KEY_ID_BYTES], decoded[_KEY_ID_BYTES:]


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _unbase64(what: str, text: str) -> bytes:
    try:
        decoded = base64.b64decode(text, validate=True)
    except ValueError:
        decoded = b""
    # The last character may have bits that say nothing; only zeros there are canonical.
    if _base64(decoded) != text:
        raise RemoteProtocolError(f"{what} is not in canonical base64: {_shown(text)}")
    return decoded


def _shown(text: str) -> str:
    return repr(text[:_SHOWN_CHARACTERS])
