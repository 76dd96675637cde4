"""Traces of a master: a span for each request, with the wait for the log as its child, as the SDK and a real receiver
see them; and none at all where nobody asked for them."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from benchmarks.processes import SOURCE
from holdfast.instant import now_seconds
from holdfast.master.connection import Connection
from holdfast.master.traces import LOG_APPEND, traced
from holdfast.messages.requests import Exists, Hello, RemoveMatching, Stat
from holdfast.messages.shapes import Message
from holdfast.transport.async_channel import AsyncChannel
from tests.failover.cluster import Cluster
from tests.master.access.test_permissions import leading
from tests.waiting import wait_until


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


async def spans_of(exporter: InMemorySpanExporter, *requests: Message) -> list[ReadableSpan]:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    server = leading(None)
    server.new_connection = traced(provider)
    host, port = await server.start("127.0.0.1", 0)
    channel = await AsyncChannel.open(f"{host}:{port}", Hello(5), now_seconds() + 20)
    for request in requests:
        await channel.call(request, now_seconds() + 20)
    channel.close()
    await server.stop()
    return list(exporter.get_finished_spans())


async def test_each_request_is_one_span_with_its_verb_and_its_error(exporter: InMemorySpanExporter) -> None:
    spans = await spans_of(exporter, Exists(["one"]), RemoveMatching("[", 1))
    assert [span.name for span in spans] == ["holdfast exists", "holdfast remove_matching"]
    exists, refused = spans
    assert exists.status.status_code is StatusCode.UNSET
    assert dict(exists.attributes or {}) == {"rpc.system": "holdfast", "rpc.method": "exists"}
    assert refused.status.status_code is StatusCode.ERROR
    assert dict(refused.attributes or {})["error.type"] == "bad_pattern"
    for span in spans:
        assert span.start_time is not None
        assert span.end_time is not None
        assert 0 <= span.end_time - span.start_time < 60e9
        assert span.parent is None, "a frame has no room for a caller's context"


async def test_a_costly_request_is_one_span_and_no_key_is_told(exporter: InMemorySpanExporter) -> None:
    [span] = await spans_of(exporter, Stat(["secret/key"]))
    assert span.name == "holdfast stat"
    assert "secret" not in span.to_json()


class Receiver:
    """A collector of the test's own: takes spans by OTLP over HTTP."""

    def __init__(self) -> None:
        taken = self.taken = ExportTraceServiceRequest()
        lock = self.lock = threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                content = self.rfile.read(int(self.headers["content-length"]))
                with lock:
                    taken.MergeFromString(content)
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def spans(self) -> list[tuple[str, bytes, bytes]]:
        """(name, id, parent)"""
        with self.lock:
            return [
                (span.name, span.span_id, span.parent_span_id)
                for resource in self.taken.resource_spans
                for scope in resource.scope_spans
                for span in scope.spans
            ]

    def services(self) -> set[str]:
        with self.lock:
            return {
                one.value.string_value
                for resource in self.taken.resource_spans
                for one in resource.resource.attributes
                if one.key in ("service.name", "service.instance.id")
            }


@contextmanager
def receiver() -> Iterator[Receiver]:
    found = Receiver()
    thread = threading.Thread(target=found.server.serve_forever)
    thread.start()
    try:
        yield found
    finally:
        found.server.shutdown()
        thread.join()
        found.server.server_close()


@pytest.mark.timeout(300)
def test_a_real_master_sends_them_and_a_put_waits_for_the_log_in_a_child(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with receiver() as taken:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", taken.url)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "200")
        cluster = Cluster(tmp_path, f"sqlite://{tmp_path}/c.db", masters=1, size="16MiB")
        cluster.masters[0].flags = (*cluster.masters[0].flags, "--traces")
        with cluster, cluster.connect() as cache:
            cache.put("key", b"x" * 1000)

            def put_spans() -> list[tuple[str, bytes, bytes]]:
                return [span for span in taken.spans() if span[0] == "holdfast commit_puts"]

            [(_, own, parent)] = wait_until(put_spans, 60, "the span of the put has come")
            assert parent == b""
            children = [span for span in taken.spans() if span[2] == own]
            assert [name for name, _, _ in children] == [LOG_APPEND]
            assert taken.services() >= {"holdfast-master", "master-1"}
            cluster.masters[0].stop()


def test_without_them_a_master_loads_nothing_and_has_plain_connections() -> None:
    program = (
        "import sys, holdfast.master.process, holdfast.cli.main; "
        "sys.exit(any(name.startswith('opentelemetry.sdk') for name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], env={"PYTHONPATH": SOURCE}, timeout=100)
    assert done.returncode == 0
    assert leading(None).new_connection is Connection
