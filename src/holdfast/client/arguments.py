"""Checks of the caller's arguments, before anything is sent: a bad one gives a clear error and changes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, cast, final

from holdfast.client.buffers import flat
from holdfast.client.targets import CallersTarget, Part, Scattered
from holdfast.errors import BadKey, BadValue
from holdfast.identity.secret_files import read_token
from holdfast.ids import FIRST_FREE, MAX_KEY_BYTES, MAX_OBJECT_BYTES, MAX_REPLICAS, RESERVED, is_reserved

T = TypeVar("T")

SHORT_BYTES = 64 << 10
_shape = attrgetter("format", "ndim", "contiguous", "readonly")


def checked_key(key: object) -> str:
    if not isinstance(key, str):
        raise TypeError(f"a key is a str, not {type(key).__name__}; nothing was sent")
    if key < FIRST_FREE:
        if not key:
            raise BadKey("a key cannot be empty; nothing was sent")
        if is_reserved(key):
            raise BadValue("a key cannot begin with \\x01, which is reserved; nothing was sent")
    # The size of an ASCII key is its length: it need not be encoded.
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
    listed = iterated(keys, "keys", "sent")
    try:
        # One check of all keys is quicker than one per key: ASCII, none empty, none too long, none reserved.
        if (joined := "".join(listed)).isascii() and RESERVED not in joined:
            lengths = list(map(len, listed))
            if not lengths or (min(lengths) and max(lengths) <= MAX_KEY_BYTES):
                return listed
    except TypeError:
        # One of them is not a str; the check below raises the error that names its type.
        pass
    return [checked_key(key) for key in listed]


def checked_one_or_many(which: str | Iterable[str]) -> list[str]:
    if not isinstance(which, str) and not isinstance(which, Iterable):
        raise TypeError(f"a key or a list of keys is wanted, not {type(which).__name__}; nothing was sent")
    return [checked_key(which)] if isinstance(which, str) else checked_keys(which)


def iterated(given: Iterable[T], what: str, not_done: str) -> list[T]:
    """A list of these; a clear error for what cannot be one, None for instance."""
    try:
        return list(given)
    except TypeError:
        if isinstance(given, Iterable):
            raise  # It comes from the caller's own iterator.
        raise TypeError(f"a list of {what} is wanted, not {type(given).__name__}; nothing was {not_done}") from None


@final
class Gathered:
    """A value made of several buffers, whose bytes are stored one after the other."""

    __slots__ = ("parts", "size_bytes")

    def __init__(self, parts: list[memoryview]) -> None:
        self.parts = parts
        self.size_bytes = sum(part.nbytes for part in parts)

    def __len__(self) -> int:
        return self.size_bytes


Value: TypeAlias = memoryview | bytes | Gathered


def checked_value(value: Any) -> Value:
    """The bytes of a value, as they lie in memory."""
    if type(value) is bytes and 0 < len(value) < SHORT_BYTES:
        return value  # The usual case. Nothing slices short ones, so they need no memoryview.
    flattened: Value
    if isinstance(value, (list, tuple)) and not isinstance(value, Part):
        flattened = Gathered([flat(part, "a part of a value") for part in value])
    else:
        flattened = flat(value, "a value")
    size = len(flattened)
    if not size:
        raise BadValue("a value cannot be empty; nothing was stored")
    if size > MAX_OBJECT_BYTES:
        raise BadValue(f"a value of {size:,} bytes is over the limit of {MAX_OBJECT_BYTES:,}")
    # Small ones are joined here, so that later code treats them like any other small value.
    return b"".join(flattened.parts) if type(flattened) is Gathered and size < SHORT_BYTES else flattened


@dataclass(frozen=True, slots=True)
class PutItems:
    """The objects of one put_many, without duplicate keys."""

    keys: list[str]
    values: list[Value]
    places: Sequence[int]
    """The index of each object in the caller's list."""
    count: int
    """How many the caller gave."""


def checked_items(
    items: Mapping[str, Any] | Iterable[tuple[str, Any]],
) -> PutItems:
    if isinstance(items, Mapping):
        keys, values = checked_keys(items), list(items.values())
    else:
        keys, values = _from_pairs(items)
    count = len(keys)
    places: Sequence[int] = range(count)
    if not isinstance(items, Mapping) and len(set(keys)) < count:
        # The first of each key.
        first = {key: place for place, key in zip(reversed(places), reversed(keys), strict=True)}
        places = sorted(first.values())
        keys, values = [keys[place] for place in places], [values[place] for place in places]
    return PutItems(keys, _checked_values(values, keys), places, count)


def _from_pairs(items: object) -> tuple[list[str], list[Any]]:
    wanted = "put_many takes a dict of keys to values, or pairs of them"
    if isinstance(items, (str, bytes)) or not isinstance(items, Iterable):
        raise TypeError(f"{wanted}, not {type(items).__name__}; nothing was stored")
    try:
        pairs = [(key, value) for key, value in items]
    except (TypeError, ValueError):
        raise TypeError(f"{wanted}; one of these is no pair. Nothing was stored") from None
    return checked_keys([key for key, _ in pairs]), [value for _, value in pairs]


def _checked_values(values: list[Any], keys: list[str]) -> list[Value]:
    # Short bytes are used as they are, as `checked_value` would; checked all at once.
    if {*map(type, values)} == {bytes} and all(values) and max(map(len, values)) < SHORT_BYTES:
        return values
    # So are views of bytes that are neither empty nor too long.
    if are_plain_views(values) and min(sizes := [*map(len, values)]) > 0 and max(sizes) <= MAX_OBJECT_BYTES:
        return values
    return [_checked_value_of(key, value) for key, value in zip(keys, values, strict=True)]


def _checked_value_of(key: str, value: Any) -> Value:
    try:
        return checked_value(value)
    except (TypeError, BadValue) as error:
        raise type(error)(f"{key!r}: {error}") from None


def are_plain_views(buffers: list[Any]) -> bool:
    """Are these all writable, contiguous views of bytes? Most engines pass such views, and one check of all of them is
    enough."""
    return {*map(type, buffers)} == {memoryview} and {*map(_shape, buffers)} == {("B", 1, True, False)}


def checked_target(target: Any) -> CallersTarget:
    """The caller's memory to write to: one buffer, several that are filled one after the other, or parts."""
    if isinstance(target, Part):
        target = [target]
    if not isinstance(target, (list, tuple)):
        return _writable(target)
    parts = [part for part in target if isinstance(part, Part)]
    if not parts:
        room = Scattered([_writable(buffer) for buffer in target])
    elif len(parts) == len(target):
        room = Scattered([_writable(part.buffer) for part in parts], [_checked_start(part.start) for part in parts])
    else:
        raise TypeError("a list of buffers has either only Parts or none; nothing was copied")
    if not room.size_bytes:
        raise BadValue("there is no room in an empty list of buffers; nothing was copied")
    return room


def checked_targets(keys: Iterable[str], targets: Iterable[Any]) -> tuple[list[str], list[CallersTarget]]:
    listed, given = checked_keys(keys), iterated(targets, "targets", "copied")
    rooms: list[CallersTarget]
    if are_plain_views(given):
        rooms = cast("list[CallersTarget]", given)
    else:
        rooms = [checked_target(target) for target in given]
    if len(listed) != len(rooms):
        raise BadValue(f"{len(listed):,} keys and {len(rooms):,} targets do not match; nothing was copied")
    return listed, rooms


def _checked_start(start: object) -> int:
    if type(start) is not int:
        raise TypeError(f"the start of a Part is an int, not {type(start).__name__}; nothing was copied")
    if start < 0:
        raise BadValue(f"the start of a Part cannot be negative ({start}); nothing was copied")
    return start


def _writable(buffer: Any) -> memoryview:
    view = flat(buffer, "the buffer")
    if view.readonly and view.nbytes:
        raise TypeError(f"the buffer ({type(buffer).__name__}) is read-only; give a writable one. Nothing was copied")
    return view


def checked_token(token: str, token_file: str | Path) -> str:
    """The token itself, or that in the file; a file that others may read is refused."""
    if not token_file:
        return token
    if token:
        raise BadValue("a token and a file of one are given; nothing was sent. Give one of them")
    return read_token(Path(token_file))


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
    replicas: int = 1,
    soft_pin: bool = False,
    hard_pin: bool = False,
    prefer: str | Sequence[str] | None = None,
    durability: str | None = None,
    upsert: bool = False,
) -> PutOptions:
    if replicas == 1 and not (soft_pin or hard_pin or prefer or durability or upsert):
        return PLAIN_PUT
    if type(replicas) is not int:
        raise TypeError(f"replicas is an int, not {type(replicas).__name__}; nothing was stored")
    if not 1 <= replicas <= MAX_REPLICAS:
        raise BadValue(f"replicas must be 1 to {MAX_REPLICAS}, not {replicas}; nothing was stored")
    if durability not in (None, "", "durable", "standby", "memory"):
        raise BadValue(f"durability is 'durable', 'standby' or 'memory', not {durability!r}; nothing was stored")
    wanted = [prefer] if isinstance(prefer, str) else iterated(prefer or (), "preferred nodes or segments", "stored")
    names = tuple(checked_text(name, "a preferred node or segment") for name in wanted)
    return PutOptions(replicas, bool(soft_pin), bool(hard_pin), names, durability or "", bool(upsert))


def checked_timeout(timeout: object) -> float:
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)):
        raise TypeError(f"timeout is a number of seconds, not {type(timeout).__name__}")
    if not 0 < timeout <= 1e6:
        raise BadValue(f"timeout must be over 0 and at most 1,000,000 seconds, not {timeout}")
    return float(timeout)


def checked_tls(tls: object) -> None:
    if tls is None:
        return
    import ssl

    if not isinstance(tls, ssl.SSLContext):
        raise TypeError(
            f"tls is an ssl.SSLContext, not {type(tls).__name__}; make one with ssl.create_default_context(cafile=...)"
        )


def checked_sizes(sizes: Mapping[str, int] | Iterable[tuple[str, int]]) -> tuple[list[str], list[int]]:
    """Keys and sizes, from a mapping or from pairs, in their order."""
    pairs = iterated(sizes.items() if isinstance(sizes, Mapping) else sizes, "keys and sizes", "reserved")
    keys = checked_keys([key for key, _ in pairs])
    for key, size in pairs:
        if type(size) is not int:
            raise TypeError(f"the size of {key!r} is an int, not {type(size).__name__}; nothing was reserved")
        if not 0 < size <= MAX_OBJECT_BYTES:
            raise BadValue(f"{key!r} cannot have {size:,} bytes: from 1 to {MAX_OBJECT_BYTES:,}; nothing was reserved")
    return keys, [size for _, size in pairs]
