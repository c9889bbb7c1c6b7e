"""Messages drawn from their declarations, so that a new message is tested with the others."""

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from hypothesis import strategies as st
from msgspec import inspect

BYTES_MAX = 64
CHARACTERS_MAX = 40

# What to draw for a field of this declaration and name; None for anything that is allowed.
Preferred: TypeAlias = Callable[[inspect.Type, str], st.SearchStrategy[Any] | None]


def no_preference(_: inspect.Type, __: str) -> None:
    return None


def messages(
    kinds: Iterable[type], preferred: Preferred = no_preference
) -> dict[type, st.SearchStrategy[Any]]:
    return {kind: _allowed(inspect.type_info(kind), "", preferred) for kind in kinds}


def _allowed(declared: inspect.Type, name: str, preferred: Preferred) -> st.SearchStrategy[Any]:
    """What this declaration allows, of a size that is quick to draw."""
    found = preferred(declared, name)
    if found is not None:
        return found
    if isinstance(declared, inspect.StructType):
        fields = {each.name: _allowed(each.type, each.name, preferred) for each in declared.fields}
        return st.builds(declared.cls, **fields)
    if isinstance(declared, inspect.ListType):
        least = declared.min_length or 0
        items = _allowed(declared.item_type, "", preferred)
        return st.lists(items, min_size=least, max_size=least + 2)
    if isinstance(declared, inspect.TupleType):
        return st.tuples(*(_allowed(each, "", preferred) for each in declared.item_types))
    if isinstance(declared, inspect.UnionType):
        return st.one_of(*(_allowed(each, name, preferred) for each in declared.types))
    return _plain(declared)


def _plain(declared: inspect.Type) -> st.SearchStrategy[Any]:
    if isinstance(declared, inspect.IntType):
        least = -(2**63) if declared.ge is None else declared.ge
        return st.integers(least, 2**63 - 1 if declared.le is None else declared.le)
    if isinstance(declared, inspect.NoneType):
        return st.none()
    if isinstance(declared, inspect.EnumType):
        return st.sampled_from(list(declared.cls))
    if isinstance(declared, inspect.BoolType):
        return st.booleans()
    if isinstance(declared, inspect.BytesType):
        least, most = declared.min_length or 0, declared.max_length or BYTES_MAX
        return st.binary(min_size=least, max_size=max(least, min(most, BYTES_MAX)))
    if isinstance(declared, inspect.StrType):
        return st.text(max_size=CHARACTERS_MAX)
    raise AssertionError(f"no strategy for {declared}")
