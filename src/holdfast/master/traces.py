"""OpenTelemetry traces of a master: one span for each request, with the wait for the log as its child.

A master that was not told to trace imports nothing of this, and its connections are plain ones: `traced` gives the
server connections of another class. They begin a span when a request is decided and end it when its reply leaves. Spans
name the verb, the tenant and the error, never a key.

The frame of a request has no room for a caller's context, and masters and clients of the release before must read it:
so a span has no parent in the client (docs/guides/operating.md).
"""

from __future__ import annotations

import os
import threading
from functools import partial
from typing import TYPE_CHECKING

from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context

from holdfast import __version__
from holdfast.dashboard.metric_families import snake
from holdfast.instant import Instant, calendar_seconds, now_ns
from holdfast.master.connection import Connection, RequestOrigin
from holdfast.messages.of_sessions import GiveSign, KeepAlive
from holdfast.messages.requests import Failed

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.core.primary.decision import NextStep
    from holdfast.master.server import RpcServer
    from holdfast.messages.shapes import Message

UNTRACED = frozenset({KeepAlive, GiveSign})
"""They are held on purpose, or say nothing."""
LOG_APPEND = "log append"
ROOM = "wait for room"
SHUTDOWN_SECONDS = 3.0


class TracedConnection(Connection):
    def __init__(self, tracer: Tracer, server: RpcServer) -> None:
        super().__init__(server)
        self._tracer = tracer
        self._spans: dict[int, Span] = {}
        """Request id -> its span, until its reply has left."""
        self._waits: dict[int, Span] = {}
        """Request id -> the span of what its reply waits for."""
        self._deciding = 0
        self._waits_for = LOG_APPEND

    def _decide(
        self,
        request_id: int,
        timeout_ms: int,
        request: Message | NextStep,
        now: Instant,
        verb: type[Message],
        began_ns: int,
    ) -> None:
        if verb not in UNTRACED and request_id not in self._spans:  # Else it is the next step of the same one.
            attributes = {"rpc.system": "holdfast", "rpc.method": snake(verb.__name__)}
            if self.identity.tenant:
                attributes["holdfast.tenant"] = self.identity.tenant
            started = int(calendar_seconds() * 1e9) - (now_ns() - began_ns)
            self._spans[request_id] = self._tracer.start_span(
                f"holdfast {snake(verb.__name__)}", kind=SpanKind.SERVER, attributes=attributes, start_time=started
            )
        self._deciding = request_id
        super()._decide(request_id, timeout_ms, request, now, verb, began_ns)

    def _park(self, origin: RequestOrigin, timeout_ms: int, request: Message | NextStep, now: Instant) -> None:
        self._waits_for = ROOM
        try:
            super()._park(origin, timeout_ms, request, now)
        finally:
            self._waits_for = LOG_APPEND

    def _count_unanswered(self) -> None:
        super()._count_unanswered()
        span = self._spans.get(self._deciding)
        if span is not None:
            self._waits[self._deciding] = self._tracer.start_span(self._waits_for, set_span_in_context(span))

    def send(self, request_id: int, reply: Message) -> None:
        if (waited := self._waits.pop(request_id, None)) is not None:
            waited.end()
        super().send(request_id, reply)
        if (span := self._spans.pop(request_id, None)) is not None:
            if isinstance(reply, Failed):
                span.set_attribute("error.type", reply.code)
                span.set_status(Status(StatusCode.ERROR, reply.code))
            span.end()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        for span in (*self._waits.values(), *self._spans.values()):
            span.set_status(Status(StatusCode.ERROR, "the connection ended before the reply"))
            span.end()
        self._waits.clear()
        self._spans.clear()


class Traces:
    """The spans of one master on their way out. Where to, and how many of them, the variables of OpenTelemetry say:
    `OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_TRACES_SAMPLER` and others."""

    def __init__(self, name: str) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        own = {"service.name": os.environ.get("OTEL_SERVICE_NAME", "holdfast-master"), "service.instance.id": name}
        resource = OTELResourceDetector().detect().merge(Resource(own))
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))

    def connect(self, server: RpcServer) -> None:
        """Trace the requests of all connections from now on."""
        server.new_connection = traced(self._provider)

    def close(self) -> None:
        """Send what there is, for a few seconds at most: a receiver that is away holds up no master."""
        closing = threading.Thread(target=self._provider.shutdown, name="traces", daemon=True)
        closing.start()
        closing.join(SHUTDOWN_SECONDS)


def traced(provider: TracerProvider) -> Callable[[RpcServer], Connection]:
    return partial(TracedConnection, provider.get_tracer("holdfast", __version__))
