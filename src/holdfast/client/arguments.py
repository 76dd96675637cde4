"""What callers hand in, checked before anything is sent: a clear error, and nothing changed."""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from holdfast.errors import BadKey, BadValue
from holdfast.ids import MAX_KEY_BYTES, MAX_OBJECT_BYTES, MAX_REPLICAS

BytesLike: TypeAlias = Any
"""Anything with a contiguous buffer: bytes, bytearray, memoryview, array, a NumPy array."""


Value: TypeAlias = memoryview | bytes
SHORT_BYTES = 64 << 10


def checked_key(key: object) -> str:
    if not isinstance(key, str):
        raise TypeError(f"a key is a str, not {type(key).__name__}; nothing was sent")
    if not key:
        raise BadKey("a key cannot be empty; nothing was sent")
    # ASCII, which is known at once, needs no encoding to be measured.
    if key.isascii():
        size = len(key)
    else:
        try:
            size = len(key.encode())
        except UnicodeEncodeError:
            raise BadKey(f"the key {key[:80]!r} is not valid Unicode (a lone surrogate); nothing was sent") from None
    if size > MAX_KEY_BYTES:
        raise BadKey(f"a key of {size:,} bytes is over the limit of {MAX_KEY_BYTES:,}; nothing was sent")
    return key


def checked_keys(keys: Iterable[str]) -> list[str]:
    if isinstance(keys, (str, bytes)):
        raise TypeError(f"a list of keys is wanted, not one {type(keys).__name__}; nothing was sent")
    listed = list(keys)
    try:
        # All of them at once, which is quicker than each: ASCII, none empty, none too long.
        if "".join(listed).isascii():
            lengths = list(map(len, listed))
            if not lengths or (min(lengths) and max(lengths) <= MAX_KEY_BYTES):
                return listed
    except TypeError:
        # One of them is no str; below, the error says which kind.
        pass
    return [checked_key(key) for key in listed]


def checked_value(value: BytesLike) -> memoryview:
    """The bytes of a value, as they lie in memory."""
    view = _flat(value, "a value")
    if not view.nbytes:
        raise BadValue("a value cannot be empty; nothing was stored")
    if view.nbytes > MAX_OBJECT_BYTES:
        raise BadValue(f"a value of {view.nbytes:,} bytes is over the limit of {MAX_OBJECT_BYTES:,}")
    return view


def checked_values(items: Mapping[str, BytesLike]) -> tuple[list[str], list[Value]]:
    if not isinstance(items, Mapping):
        raise TypeError(f"put_many takes a dict of keys to values, not {type(items).__name__}; nothing was stored")
    values: list[Value] = list(items.values())
    # Short bytes, the common case, serve as they are: they need no view to be cut from.
    if {*map(type, values)} != {bytes} or not all(values) or max(map(len, values)) >= SHORT_BYTES:
        values = [
            value if type(value) is bytes and 0 < len(value) < SHORT_BYTES else checked_value(value) for value in values
        ]
    return checked_keys(items), values


def checked_target(buffer: BytesLike) -> memoryview:
    """The caller's buffer, to be written to."""
    view = _flat(buffer, "the buffer")
    if view.readonly:
        raise TypeError(f"the buffer ({type(buffer).__name__}) is read-only; give a writable one. Nothing was copied")
    return view


def _flat(value: BytesLike, what: str) -> memoryview:
    if isinstance(value, str):
        raise TypeError(f"{what} is bytes-like, not str; encode it first")
    try:
        view = memoryview(value)
    except TypeError:
        raise TypeError(
            f"{what} is anything with a buffer (bytes, bytearray, memoryview, a NumPy array), "
            f"not {type(value).__name__}; a tensor on the CPU gives one by .numpy()"
        ) from None
    if view.format == "B" and view.ndim == 1 and view.contiguous:
        return view
    if not view.c_contiguous:
        raise BadValue(f"{what} is not contiguous in memory; make a contiguous copy first. Nothing was changed")
    if not view.nbytes:
        return memoryview(b"")
    try:
        return view.cast("B")
    except (TypeError, ValueError):
        # The element type is none that memoryview knows, such as a record.
        raise BadValue(f"{what} has elements of format {view.format!r}; give its bytes (array.view('u1'))") from None


def checked_text(value: object, what: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{what} is a str, not {type(value).__name__}; nothing was sent")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise BadValue(f"{what} {value[:80]!r} is not valid Unicode (a lone surrogate); nothing was sent") from None
    return value


@dataclass(frozen=True, slots=True)
class PutOptions:
    """How objects are to be stored."""

    replicas: int = 1
    soft_pin: bool = False
    hard_pin: bool = False
    prefer: tuple[str, ...] = ()
    durability: str = ""
    upsert: bool = False


PLAIN_PUT = PutOptions()


def put_options(
    replicas: int,
    soft_pin: bool,
    hard_pin: bool,
    prefer: str | Sequence[str] | None,
    durability: str | None,
    upsert: bool,
) -> PutOptions:
    if replicas == 1 and not (soft_pin or hard_pin or prefer or durability or upsert):
        return PLAIN_PUT
    if type(replicas) is not int:
        raise TypeError(f"replicas is an int, not {type(replicas).__name__}; nothing was stored")
    if not 1 <= replicas <= MAX_REPLICAS:
        raise BadValue(f"replicas must be 1 to {MAX_REPLICAS}, not {replicas}; nothing was stored")
    if durability not in (None, "", "durable", "memory"):
        raise BadValue(f"durability is 'durable' or 'memory', not {durability!r}; nothing was stored")
    wanted = (prefer,) if isinstance(prefer, str) else tuple(prefer or ())
    names = tuple(checked_text(name, "a preferred node or segment") for name in wanted)
    return PutOptions(replicas, bool(soft_pin), bool(hard_pin), names, durability or "", bool(upsert))


def checked_timeout(timeout: float) -> float:
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)):
        raise TypeError(f"timeout is a number of seconds, not {type(timeout).__name__}")
    if not 0 < timeout <= 1e6:
        raise BadValue(f"timeout must be over 0 and at most 1,000,000 seconds, not {timeout}")
    return float(timeout)


def checked_tls(tls: object) -> None:
    if tls is not None and not isinstance(tls, ssl.SSLContext):
        raise TypeError(
            f"tls is an ssl.SSLContext, not {type(tls).__name__}; make one with ssl.create_default_context(cafile=...)"
        )
