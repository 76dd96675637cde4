"""A small S3: buckets in memory, behind the few requests that a depot makes. It asks for a signature, as S3 does."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

ACCESS_KEY = "holdfast-tests"


class S3Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.objects: dict[str, bytes] = {}
        """By /bucket/key."""
        self.refuses = False

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: S3Server

    def log_message(self, *arguments: Any) -> None:
        """Nobody reads it."""

    def _answer(self, status: int, body: bytes = b"", length: int | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.send_header("ETag", '"0"')
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        address = urlsplit(self.path)
        path = unquote(address.path)
        objects = self.server.objects
        if self.server.refuses:
            self._answer(403, b"<Error><Code>AccessDenied</Code><Message>not today</Message></Error>")
        elif f"Credential={ACCESS_KEY}/" not in self.headers.get("Authorization", ""):
            self._answer(403, b"<Error><Code>InvalidAccessKeyId</Code><Message>who?</Message></Error>")
        elif self.command == "PUT":
            objects[path] = body
            self._answer(200)
        elif self.command == "DELETE":
            objects.pop(path, None)
            self._answer(204)
        elif "list-type" in address.query:
            self._answer(200, self._listed(path, parse_qs(address.query).get("prefix", [""])[0]))
        elif path not in objects:
            self._answer(404, b"<Error><Code>NoSuchKey</Code><Message>no such key</Message></Error>")
        else:
            self._answer(200, objects[path], len(objects[path]))

    do_GET = do_PUT = do_HEAD = do_DELETE = _handle  # noqa: N815 - the library asks for these names.

    def _listed(self, bucket: str, prefix: str) -> bytes:
        start = bucket.rstrip("/") + "/"
        keys = sorted(path.removeprefix(start) for path in self.server.objects if path.startswith(start + prefix))
        found = "".join(f"<Contents><Key>{escape(key)}</Key><Size>1</Size></Contents>" for key in keys)
        return f"<ListBucketResult><IsTruncated>false</IsTruncated>{found}</ListBucketResult>".encode()


@contextmanager
def s3_server() -> Iterator[S3Server]:
    server = S3Server()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
