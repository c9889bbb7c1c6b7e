"""The filter for syslog lines: what goes on, under which name, and what does not."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from quorate.cli import pipeline
from quorate.core.errors import ConfigError
from quorate.pipeline.filtering import Filter, Filtered
from quorate.pipeline.signatures import LINE_CHARACTERS_MAX, UNKNOWN, parse_patterns

LIBRARY = """
[[pattern]]
signature = "CRON:NOISE"
regex = '^CRON.*nothing to do'
drop = true

[[pattern]]
signature = "CRON"
regex = '^CRON'
about = { application = "cron", owner = "night shift" }
"""


@pytest.fixture
def library() -> Filter:
    return Filter(parse_patterns("own.toml", LIBRARY))


def test_the_first_pattern_that_fits_says_what_becomes_of_a_line(library: Filter) -> None:
    about = {"application": "cron", "owner": "night shift"}

    assert library.take("CRON[1]: nothing to do") is None
    assert library.take("CRON[1]: done") == Filtered("CRON[1]: done", "CRON", about)
    assert library.take("sshd[1]: hello") == Filtered("sshd[1]: hello", UNKNOWN)


def test_what_stands_far_behind_does_not_say_what_a_line_is_but_goes_on_with_it() -> None:
    library = Filter(parse_patterns("own.toml", "[[pattern]]\nsignature='X'\nregex='x$'"))
    line = "a" * (LINE_CHARACTERS_MAX - 1) + "x"

    assert library.take(line) == Filtered(line, "X")
    assert library.take("a" + line) == Filtered("a" + line, UNKNOWN)


def test_letters_and_digits_are_those_that_spark_takes_for_such() -> None:
    library = Filter(parse_patterns("own.toml", "[[pattern]]\nsignature='X'\nregex='^\\d$'"))

    assert library.take("7") == Filtered("7", "X")
    assert library.take("٧") == Filtered("٧", UNKNOWN)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("drop = 1", "drop is 1, but it must be true or false"),
        ("about = 'cron'", r"\[about\] must be a table"),
        ("about = { owner = 3 }", "about.owner is 3, but it must be a text in quotes"),
    ],
)
def test_a_library_that_says_what_cannot_be_is_refused(line: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        parse_patterns("own.toml", f"[[pattern]]\nsignature='A'\nregex='a'\n{line}\n")


def test_lines_of_the_input_are_the_values_of_events_on_the_output(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(LIBRARY)
    lines = b"CRON[1]: done\r\n\nCRON[2]: nothing to do\nsshd: \xff\n"
    words = ["filter", "--patterns", str(tmp_path / "own.toml")]

    result = CliRunner().invoke(pipeline.app, words, input=lines)

    assert result.exit_code == 0, result.output
    said = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(each["signature"], each["line"]) for each in said] == [
        ("CRON", "CRON[1]: done"),
        (UNKNOWN, "sshd: \N{REPLACEMENT CHARACTER}"),
    ]
    assert said[0]["about"]["application"] == "cron"


def test_a_line_goes_on_while_the_input_is_still_open() -> None:
    words = [sys.executable, "-m", "quorate", "pipeline", "filter"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin
        assert process.stdout
        process.stdin.write(b"systemd[1]: Started it\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["signature"] == "SYSTEMD:UNIT:STARTED"
