"""Which requests an identity may send.

A message class declares the role that it needs (`Message.needs`). Each set of roles has a decoder of its own, which
knows the requests of these roles and no others: the tag is the first thing that it reads, so that nothing of a request
is decoded that the sender may not send, one that nobody thought of is refused, and those that are allowed cost nothing
more than without roles.
"""

from __future__ import annotations

from functools import cache

from holdfast.core.state.tenants import DEFAULT_NAME
from holdfast.errors import BadRequest, NotAllowed
from holdfast.identity.identities import Identity, fault_for
from holdfast.identity.roles import Role
from holdfast.messages.of_masters import GetOverview, ListClients
from holdfast.messages.requests import Hello, ListSegments, Status
from holdfast.messages.shapes import MappingRight, Message
from holdfast.wire.codec import REQUESTS, Decode, decoder, tag_of

BY_TAG: dict[int, type[Message]] = {kind.__struct_config__.tag: kind for kind in REQUESTS}  # type: ignore[misc]

OF_TENANTS = (ListSegments, ListClients, GetOverview)
"""Answered to each sender as far as it may see."""
CHECKED = frozenset(
    kind
    for kind in REQUESTS
    if kind.force_needs is not None or getattr(kind, "needs", None) is Role.NODE or kind in OF_TENANTS
)
"""Requests of which more is checked than the role of their sender."""

decode_hello = decoder((Hello,))


def is_other_than_hello(payload: memoryview) -> bool:
    return BY_TAG.get(tag_of(payload), Hello) is not Hello


def may_send(roles: frozenset[Role], kind: type[Message]) -> bool:
    """A request without a declared role is nobody's."""
    if "needs" not in vars(kind):
        return False
    return kind.needs is None or kind.needs in roles or not roles.isdisjoint(kind.also_for)


@cache
def decoder_for(roles: frozenset[Role]) -> Decode:
    return decoder(tuple(kind for kind in REQUESTS if may_send(roles, kind)))


def why_not_decoded(payload: memoryview, identity: Identity, error: BadRequest) -> BadRequest | NotAllowed:
    """Why this identity's decoder refused it: the request is another role's, or nobody could read it."""
    kind = BY_TAG.get(tag_of(payload))
    if kind is None or may_send(identity.roles, kind) or "needs" not in vars(kind):
        return error
    return not_allowed(identity, kind, kind.needs)


def check_force(request: Message, identity: Identity) -> None:
    """Removing what others read or have pinned needs more than removing."""
    role = request.force_needs
    if role is not None and request.force and not identity.may(role):  # type: ignore[attr-defined]
        raise not_allowed(identity, type(request), role, " with force")


def limit_mapping(request: Message, identity: Identity) -> None:
    """Give an identity tickets to map memory only if it may map it, and for writing only if it may write."""
    if type(request) is ListSegments:
        right = MappingRight.WRITE if identity.may(Role.WRITER) else MappingRight.READ
        request.attach = min(request.attach, right if identity.shared_memory else MappingRight.NONE)


def confine(request: Message, identity: Identity) -> None:
    """Have it ask about the sender's own tenant only."""
    if isinstance(request, ListClients) and not identity.may(Role.OPERATOR):
        request.tenant = identity.tenant
    elif isinstance(request, GetOverview) and not identity.may(Role.OPERATOR):
        request.tenant = identity.tenant or DEFAULT_NAME


def withhold(reply: Message, identity: Identity) -> None:
    """Take out of an answer what its receiver may not know (I20)."""
    if isinstance(reply, Status):
        reply.identities_fault = fault_for(identity, reply.identities_fault)


def not_allowed(identity: Identity, kind: type[Message], role: Role | None, how: str = "") -> NotAllowed:
    return NotAllowed(
        f"{kind.__name__}{how} needs the role {role}, and {identity.name!r} has "
        f"{', '.join(sorted(identity.roles)) or 'none'}; nothing was changed. Use a token that has it"
    )
