"""Many nodes in one process, each with its memory, its servers and its session: `ADDRESS PREFIX COUNT SIZE_BYTES`.

Prints a JSON object a line: `{"ready": COUNT}` once all are members, then what each of them says of its session and its
memory, with the instant (the machine's clock) at which it says so. Ends at the end of its input.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import MutableMapping
from typing import Any

import structlog

from holdfast.instant import now_ms
from holdfast.node.node import Node, NodePlan

SAID = {
    "the session is in jeopardy; serving on and looking for a master": "jeopardy",
    "the session is safe again": "safe_again",
    "the session is over; serving on and opening another": "expired",
    "the node's memory is void, taking new memory": "memory_void",
    "registered": "registered",
}
AT_ONCE = 10


def main(address: str, prefix: str, count: int, size_bytes: int) -> None:
    names: dict[int, str] = {}
    """By the thread that holds the session."""
    printing = threading.Lock()
    members = threading.Semaphore(0)

    def tell(**what: object) -> None:
        with printing:
            print(json.dumps(what), flush=True)

    def heard(logger: object, method: str, said: MutableMapping[str, Any]) -> str:
        kind, name = SAID.get(said["event"]), names.get(threading.get_ident())
        if kind is not None and name is not None:
            tell(node=name, kind=kind, at_ms=now_ms())
        raise structlog.DropEvent

    def joined(node: Node) -> None:
        names[threading.get_ident()] = node.card.name
        members.release()

    structlog.configure(processors=[heard])
    nodes = [Node(NodePlan(address, f"{prefix}{number}", size_bytes), joined) for number in range(count)]
    for start in range(0, count, AT_ONCE):
        some = nodes[start : start + AT_ONCE]
        for node in some:
            node.start()
        for _ in some:
            members.acquire()
    tell(ready=count)
    sys.stdin.read()
    for node in nodes:
        node.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
