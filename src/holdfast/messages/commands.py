"""What a primary tells its nodes, over their sessions: a name, and a body that is one of these."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from holdfast.errors import BadRequest
from holdfast.ids import GrantId

CLEAN = "clean"


class Body(msgspec.Struct, array_like=True):
    """What a command says beside its name."""


class Clean(Body):
    """Close whatever still writes to these grants, refuse them from now on, and report when that is so."""

    grants: list[GrantId]


B = TypeVar("B", bound=Body)
_encode = msgspec.msgpack.Encoder().encode


def encode_body(body: Body) -> bytes:
    return _encode(body)


def decode_body(kind: type[B], body: bytes) -> B:
    try:
        return msgspec.msgpack.decode(body, type=kind)
    except (msgspec.DecodeError, ValueError) as error:
        raise BadRequest(f"the body of the command is no {kind.__name__} ({error}); nothing was done") from None
