"""Who may do what at the two sockets of a node, as tables; and the page that shows them beside RPC and HTTP.

    python -m tests.access_tables > docs/access.md

The columns of `PROOFS` are the requests that nodes read (`DATA_REQUESTS`), those of RPC and HTTP come from what message
classes and routes declare: a test fails for a request or a route that is not on the page.
"""

from __future__ import annotations

from fastapi import FastAPI
from fastapi.routing import APIRoute

from holdfast.dashboard.access import declared
from holdfast.dashboard.http import build_app
from holdfast.dashboard.mooncake_http import build_mooncake_app
from holdfast.identity.roles import Role, with_included
from holdfast.master.access.permissions import may_send
from holdfast.messages.requests import Hello
from holdfast.messages.shapes import Message
from holdfast.wire.codec import REQUESTS
from tests.dashboard.fake_view import FakeView, SameLoop

Table = dict[str, dict[str, str]]
"""Row -> column -> outcome."""


def parsed(text: str) -> Table:
    """Cells are divided by two blanks or more."""
    head, *rows = [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in text.strip().splitlines()]
    assert all(len(row) == len(head) for row in rows), "a cell is missing"
    return {row[0]: dict(zip(head[1:], row[1:], strict=True)) for row in rows}


PROOFS = parsed("""
shown                    ReadRanges      CheckFile       WriteRange     ReadBack       AttachSegment   HearRevocations
the right one            served          served          served         served         served          served
right, other connection  served          served          served         served         served          served
none                     ticket_refused  ticket_refused  grant_refused  grant_refused  ticket_refused  ticket_refused
forged                   ticket_refused  ticket_refused  grant_refused  grant_refused  ticket_refused  ticket_refused
another client's number  ticket_refused  ticket_refused  grant_refused  grant_refused  ticket_refused  ticket_refused
by another node's key    ticket_refused  ticket_refused  grant_refused  grant_refused  ticket_refused  ticket_refused
for another segment      ticket_refused  ticket_refused  grant_refused  grant_refused  ticket_refused  ticket_refused
for another range        ticket_refused  ticket_refused  grant_refused  grant_refused  served          served
expired, or grant ended  ticket_expired  ticket_expired  grant_refused  grant_refused  ticket_expired  ticket_expired
of a revoked client      ticket_refused  ticket_refused  grant_refused  grant_refused  ticket_refused  ticket_refused
for reading              served          served          grant_refused  grant_refused  ticket_refused  served
of a grant               ticket_refused  ticket_refused  served         served         ticket_refused  ticket_refused
right, on other socket   bad_request     bad_request     bad_request    bad_request    bad_request     bad_request
right, other user        served          served          served         served         unreachable     unreachable
""")
"""What a request shows -> what a node answers. `AttachSegment` asks to map for writing. Over TCP no user is known. A
ticket has no name but its client's: whoever has it can use it, so TLS keeps it from others (ADR 48)."""

ROLES = parsed("""
at a real node                     reader   writer   operator   node   master   red   stranger
data: read an object               yes      yes      yes        no     no       no    no
data: write to a grant             no       yes      yes        no     no       yes   no
data: read a grant back            no       yes      yes        no     no       yes   no
attach: map for reading            yes      yes      yes        no     no       no    no
attach: map for writing            no       yes      yes        no     no       no    no
attach: hear of revoked leases     yes      yes      yes        no     no       no    no
""")
"""What an identity of this role can do at the sockets with all that the master gives it. `red` is a writer of another
tenant, without `shared_memory`: it is given nothing for objects of others, and reads and writes its own over TCP."""


def rpc() -> Table:
    """Verb -> role -> yes or no."""
    table: Table = {}
    for kind in sorted((one for one in REQUESTS if one is not Hello), key=lambda one: one.__name__):
        table[kind.__name__] = {role.value: _allowed(kind, with_included([role])) for role in Role}
    return table


def _allowed(kind: type[Message], roles: frozenset[Role]) -> str:
    if not may_send(roles, kind):
        return "no"
    return "yes" if kind.force_needs is None or kind.force_needs in roles else "not with force"


def http() -> Table:
    """Method and path -> role -> yes or no."""
    table: Table = {}
    apps: list[FastAPI] = [build_app(FakeView(), SameLoop()), build_mooncake_app(FakeView(), SameLoop())]
    for route in [route for app in apps for route in app.routes if isinstance(route, APIRoute)]:
        needed = declared(route.endpoint)
        assert needed is not None, f"{route.path} declares no role"
        row = {role.value: "yes" if needed.role in {None, *with_included([role])} else "no" for role in Role}
        for method in sorted(route.methods or ()):
            table[f"{method} {route.path}"] = {**row, "stranger": "yes" if needed.role is None else "no"}
    return dict(sorted(table.items()))


def grouped(table: Table) -> Table:
    """One row for all that have the same cells."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for row, cells in table.items():
        groups.setdefault(tuple(cells.values()), []).append(f"`{row}`")
    columns = list(next(iter(table.values())))
    return {
        ", ".join(rows): dict(zip(columns, cells, strict=True)) for cells, rows in sorted(groups.items(), reverse=True)
    }


PAGE = """# Who may do what

Made by `python -m tests.access_tables > docs/access.md`. Tests try every row at running servers, and fail for a
request or a route that is not here.

## RPC

By the role that a message class declares (ADR 45). Strangers are refused at their greeting. Beside its role, a node
speaks for itself only, and an identity sees the keys of its own tenant only.

{rpc}

## HTTP

By the role that a route declares (ADR 47). Boot ids, addresses and places are shown to operators only.

{http}

## A node's sockets

The data port (TCP) and the attach socket (Unix) ask for a proof that masters hand out (ADR 48). With all that the
masters give to an identity of this role (`red` is a writer of another tenant, without `shared_memory`):

{roles}

By the proof that is shown: `served`, or the code of the error. After a refusal nothing has moved, and no memory was
passed. `AttachSegment` asks to map for writing.

{proofs}
"""


def page() -> str:
    return PAGE.format(
        rpc=shown("requests", grouped(rpc())),
        http=shown("routes", grouped(http())),
        roles=shown("", ROLES),
        proofs=shown("shown", PROOFS),
    )


def shown(corner: str, table: Table) -> str:
    columns = list(next(iter(table.values())))
    lines = [
        [corner, *columns],
        ["---"] * (len(columns) + 1),
        *([row, *cells.values()] for row, cells in table.items()),
    ]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


if __name__ == "__main__":
    print(page(), end="")
