"""What `quorate subscribe` prints of one record."""

import pytest

from quorate.cli.subscribe import as_words
from quorate.client.consumer import Record

LONG = Record(
    topic="news",
    publisher="alice",
    sequence=1,
    index=0,
    key=None,
    value=b"x" * 8_000_000,
    headers=(),
    timestamp_us=0,
    urgent=False,
    vouchers=("r0", "r1"),
)


def test_on_a_terminal_a_value_of_megabytes_is_cut_and_its_length_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)

    assert as_words(LONG) == (
        f"news alice#1.0  {'x' * 4096}…  "
        "(8,000,000 bytes, whole with --json or in a file; vouched by r0, r1)"
    )


def test_in_a_file_every_value_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: False)

    assert as_words(LONG) == f"news alice#1.0  {'x' * 8_000_000}  (vouched by r0, r1)"
