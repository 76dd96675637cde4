"""Hypothesis strategies for every kind of message, made from the types of its fields."""

from __future__ import annotations

import enum
import types
import typing
from typing import Any

import msgspec
from hypothesis import strategies as st

INT_MIN, INT_MAX = -(1 << 63), (1 << 64) - 1


def of_type(kind: Any) -> st.SearchStrategy[Any]:
    """Values that a field of this type can hold on the wire."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is list:
        return st.lists(of_type(arguments[0]), max_size=4)
    if origin is dict:
        return st.dictionaries(*map(of_type, arguments), max_size=4)
    if origin is tuple:
        return st.tuples(*map(of_type, arguments))
    if origin in (typing.Union, types.UnionType):
        return st.one_of(*map(of_type, arguments))
    if kind is type(None):
        return st.none()
    if kind is bool:
        return st.booleans()
    if kind is str:
        return st.text(max_size=20)
    if kind is bytes:
        return st.binary(max_size=40)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return st.sampled_from(kind)
    if kind is float:
        return st.floats(allow_nan=False)
    if kind is int:
        return st.integers(INT_MIN, INT_MAX)
    if isinstance(kind, type) and issubclass(kind, tuple):
        hints = typing.get_type_hints(kind)
        return st.builds(kind, **{name: of_type(hint) for name, hint in hints.items()})
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return of_struct(kind)
    raise TypeError(f"no strategy for {kind!r}: add one here")


def of_struct(kind: type[msgspec.Struct]) -> st.SearchStrategy[Any]:
    hints = typing.get_type_hints(kind)
    return st.builds(kind, **{name: of_type(hints[name]) for name in kind.__struct_fields__})
