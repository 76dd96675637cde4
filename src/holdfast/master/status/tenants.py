"""Tenants as an operator sees and changes them, over RPC and over HTTP: the same decisions, the same texts.

Rates cost nothing while nobody asks: connections count their requests, and whoever asks waits for the half second
between two looks at the counts, as for the list of clients.
"""

from __future__ import annotations

import asyncio
from collections import Counter

from holdfast.core.primary.decision import Parked, Unfinished
from holdfast.core.state.tenants import DEFAULT_NAME
from holdfast.errors import Busy
from holdfast.ids import COPIES
from holdfast.instant import Instant, now_ms
from holdfast.master.connection import ONE_REQUEST
from holdfast.master.engine.waiting_room import Answer
from holdfast.master.server import RpcServer
from holdfast.messages.of_tenants import ChangeTenant, ListTenants, RemoveTenant, TenantList
from holdfast.messages.shapes import Message
from holdfast.wire.codec import failed

SAMPLE_SECONDS = 0.5
MOST_ASKING = 64


class TenantDesk:
    """Answers requests about tenants at one server."""

    def __init__(self, server: RpcServer) -> None:
        self._server = server
        self._asking = 0
        server.views[ListTenants] = lambda request, answer: self.list(None, answer)

    def list(self, tenant: str | None, answer: Answer) -> None:
        """All tenants, or the one of this name."""
        if self._asking >= MOST_ASKING:
            answer(failed(Busy("too many ask for the tenants at once; try again")))
            return
        self._asking += 1
        earlier = {number: one.asked for number, one in self._server.connections.items()}
        asyncio.get_running_loop().call_later(SAMPLE_SECONDS, self._answer, tenant, answer, earlier, now_ms())

    def _answer(self, tenant: str | None, answer: Answer, earlier: dict[int, int], began: Instant) -> None:
        self._asking -= 1
        seconds = max(1, now_ms() - began) / 1000
        asked: Counter[str] = Counter()
        for number, one in self._server.connections.items():
            if one.is_greeted:
                requests = (one.asked - earlier.get(number, 0)) // ONE_REQUEST
                asked[one.identity.tenant or DEFAULT_NAME] += requests

        def with_rates(reply: Message) -> None:
            if isinstance(reply, TenantList):
                reply.tenants = [one for one in reply.tenants if tenant is None or one.name == tenant]
                for one in reply.tenants:
                    one.request_rate = round(asked[one.name] / seconds, 1)
            answer(reply)

        self._decide(ListTenants(), with_rates)

    def change(self, name: str, quotas: dict[str, int | float | None], answer: Answer) -> None:
        self._decide(ChangeTenant(name, quotas), answer)

    def remove(self, name: str, answer: Answer) -> None:
        self._decide(RemoveTenant(name), answer)

    def _decide(self, request: Message, answer: Answer) -> None:
        """Answer once the records of the decision are durable."""
        engine = self._server.engine
        if engine is None:
            answer(failed(self._server.not_leading()))
            return
        reply, after = engine.handle(request, COPIES, 0, now_ms())
        assert not isinstance(reply, Parked | Unfinished), "it needs no room, and one step"
        if after:
            engine.when_durable(after, lambda: answer(reply))
        else:
            answer(reply)
