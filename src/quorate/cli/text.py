"""Text and data that others wrote, as words for a terminal and as JSON."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quorate.client.consumer import Record
    from quorate.core.event import Event


def printable(text: str) -> str:
    """The text with everything escaped that a terminal might take for a command."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def shown(data: bytes) -> str:
    """Text for a terminal, whatever a publisher put in it; or else hexadecimal digits."""
    try:
        return printable(data.decode())
    except UnicodeDecodeError:
        return f"0x{data.hex()}"


def as_object(event: "Event | Record") -> dict[str, Any]:
    """What an event has of its own, for JSON."""
    return {
        "key": None if event.key is None else _text_or_hex(event.key),
        "value": _text_or_hex(event.value),
        "headers": [[name, _text_or_hex(value)] for name, value in event.headers],
        "timestamp_us": event.timestamp_us,
        "urgent": event.urgent,
    }


def _text_or_hex(data: bytes) -> str | dict[str, str]:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"hex": data.hex()}
