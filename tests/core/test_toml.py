"""What we render as TOML, Python's own reader reads back; what a file gets wrong is named."""

import tomllib
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorate.core.errors import ConfigError
from quorate.core.toml import Table, render_pairs, render_value

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
scalars = st.one_of(
    st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), texts
)
values: st.SearchStrategy[Any] = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(texts, values, max_size=3))
def test_rendered_pairs_are_read_back_as_they_were(pairs: dict[str, Any]) -> None:
    assert tomllib.loads(render_pairs(pairs)) == pairs


@given(st.lists(texts, min_size=2, max_size=5))
def test_a_text_of_many_lines_is_read_back_as_it_was(lines: list[str]) -> None:
    text = "\n".join(lines)
    assert tomllib.loads(render_pairs({"text": text})) == {"text": text}


def test_a_text_of_many_lines_keeps_its_lines() -> None:
    assert render_pairs({"text": "one\ntwo\n"}) == 'text = """\none\ntwo\n"""\n'


def test_bytes_are_rendered_in_base64_and_read_back() -> None:
    key = bytes(range(32))
    table = Table.read("a file", render_pairs({"key": key}))
    assert table.key_bytes("key", 32) == key


def test_what_toml_does_not_have_is_refused() -> None:
    with pytest.raises(TypeError, match="TOML has no NoneType"):
        render_value(None)


@given(st.text(max_size=100))
def test_any_text_is_read_or_refused_and_never_crashes(text: str) -> None:
    with suppress(ConfigError):
        Table.read("the file", text)


def test_a_mistake_is_reported_with_its_line() -> None:
    with pytest.raises(ConfigError, match=r"not valid TOML: .*line 2"):
        Table.read("the file", 'name = "x"\nf = = 1\n')


def test_nesting_without_end_is_refused_like_any_mistake() -> None:
    with pytest.raises(ConfigError, match="not valid TOML"):
        Table.read("the file", "x = " + "[" * 100_000)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "the file needs the key 'port'"),
        ('port = "7400"', "the file: port is '7400', but it must be a whole number from 1 to 9"),
        ("port = 10", "the file: port is 10, but it must be a whole number from 1 to 9"),
        ("port = true", "the file: port is True, but it must be a whole number from 1 to 9"),
        ("port = 1.0", "the file: port is 1.0, but it must be a whole number from 1 to 9"),
    ],
)
def test_a_number_out_of_its_bounds_is_named_with_what_is_allowed(text: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Table.read("the file", text).number("port", 1, 9)
    assert str(caught.value) == sentence


def test_a_choice_names_what_may_be_chosen() -> None:
    with pytest.raises(ConfigError, match='mac is \'md5\', but it must be one of "a", "b"'):
        Table.read("the file", 'mac = "md5"').choice("mac", ("a", "b"), "a")


@pytest.mark.parametrize("encoded", ["", "AAAA", "not base64", "é"])
def test_a_key_of_the_wrong_length_or_alphabet_is_refused(encoded: str) -> None:
    with pytest.raises(ConfigError, match="must be 32 bytes in base64"):
        Table.read("the file", f'key = "{encoded}"').key_bytes("key", 32)


def test_a_misspelt_key_does_not_pass_as_a_default() -> None:
    table = Table.read("the file", "fllag = true")
    assert table.flag("flag", False) is False
    with pytest.raises(ConfigError, match="does not know the key 'fllag'; it knows flag"):
        table.end()


def test_a_long_value_is_not_repeated_in_the_sentence() -> None:
    with pytest.raises(ConfigError, match="port is a str, but"):
        Table.read("the file", f'port = "{"x" * 1000}"').number("port", 1, 9)
