"""Options of the source and the sink are read before anything runs, and refused in a sentence."""

import pytest

from quorate.core.errors import QuorateError
from quorate.pipeline.options import (
    Offsets,
    Time,
    read_start,
    sink_options,
    source_options,
)

SOURCE = {"cluster": "cluster", "identity": "bob", "topics": "ledger"}
SINK = {"cluster": "cluster", "identity": "bob", "topic": "ledger", "staging": "staging"}


def test_what_is_not_said_is_as_the_readme_has_it() -> None:
    options = source_options({**SOURCE, "topics": "ledger, trades", "path": "Spark's own"})

    assert options.topics == ("ledger", "trades")
    assert (options.start, options.until, options.max_rows) == ("begin", "end", 0)
    assert (options.verification, options.on_unverified) == ("on", "fail")


def test_options_have_the_types_that_they_need_and_capitals_do_not_matter() -> None:
    options = source_options({**SOURCE, "Max_Rows": "500", "patience_s": "0.5", "proofs": "true"})

    assert (options.max_rows, options.patience_s, options.proofs) == (500, 0.5, True)


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("begin", "begin"),
        ("end", "end"),
        ('{"ledger": {"0": 17}}', Offsets({"ledger": {0: 17}})),
        ("2026-11-16T12:00:00Z", Time(1_794_830_400_000_000)),
        ("2026-11-16 13:00:00.5+01:00", Time(1_794_830_400_500_000)),
        ("2026-11-16", Time(1_794_787_200_000_000)),
    ],
)
def test_a_beginning_is_an_end_of_the_log_offsets_or_a_time(text: str, start: object) -> None:
    assert read_start("start", text) == start


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"topics": None}, "option 'topics' is missing for reading from a topic"),
        ({"topics": " , "}, "the options for reading from a topic do not do"),
        ({"start": "yesterday"}, "option 'start' is 'yesterday'; allowed are 'begin', 'end'"),
        ({"until": '{"ledger": 3}'}, "option 'until' is"),
        ({"max_rows": "-1"}, "max_rows"),
        ({"max_rows": "some"}, "max_rows"),
        ({"verify": "no"}, "there is no option 'verify' for reading from a topic; allowed are"),
        ({"on_unverified": "ignore"}, "on_unverified"),
        ({"on_unverified": "quarantine"}, "option 'quarantine' has to name a directory"),
    ],
)
def test_options_of_the_source_that_do_not_do_are_named(
    given: dict[str, str | None], sentence: str
) -> None:
    options = {key: value for key, value in {**SOURCE, **given}.items() if value is not None}

    with pytest.raises(QuorateError, match=sentence):
        source_options(options)


def test_a_stream_stages_beside_its_checkpoint_unless_it_is_told_otherwise() -> None:
    given = {key: value for key, value in SINK.items() if key != "staging"}

    assert sink_options({**given, "checkpointLocation": "c/"}).staging == "c/quorate-staging"
    assert sink_options({**SINK, "checkpointLocation": "c"}).staging == "staging"


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"staging": None}, "option 'staging' is missing: a directory that the driver and all"),
        ({"cluster": None}, "option 'cluster' is missing for publishing through a topic"),
        ({"compression": "rar"}, "compression"),
        ({"batch_rows": "0"}, "batch_rows"),
        ({"batches": "1"}, "there is no option 'batches' for publishing through a topic"),
    ],
)
def test_options_of_the_sink_that_do_not_do_are_named(
    given: dict[str, str | None], sentence: str
) -> None:
    options = {key: value for key, value in {**SINK, **given}.items() if value is not None}

    with pytest.raises(QuorateError, match=sentence):
        sink_options(options)
