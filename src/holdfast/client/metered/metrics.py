"""What a client counts if it is asked to: latency by verb, hits and misses, bytes by path, retries, errors.

`ClientMetrics` is given to `connect`; several clients may share one. Plain numbers under one lock, shown when somebody
asks (ADR 57), so that the client needs no metrics library. A client without it runs none of this: it is another class
(`clients.py`).
"""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

from holdfast.operations.durations import BOUNDS_SECONDS, Durations

PATHS = ("shared", "tcp")


class ClientMetrics:
    """For any number of clients and threads of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._latency: dict[str, Durations] = {}
        self._errors: Counter[str] = Counter()
        self._hits = self._misses = self._retries = 0
        self._read = self._written = self._tcp_read = self._tcp_written = 0

    def _took(self, verb: str, ns: int, hits: int = 0, misses: int = 0, read: int = 0, written: int = 0) -> None:
        with self._lock:
            latency = self._latency.get(verb)
            if latency is None:
                latency = self._latency[verb] = Durations()
            latency.add(ns)
            self._hits += hits
            self._misses += misses
            self._read += read
            self._written += written

    def _failed(self, code: str) -> None:
        with self._lock:
            self._errors[code] += 1

    def _retried(self) -> None:
        with self._lock:
            self._retries += 1

    def _moved(self, read: int = 0, written: int = 0) -> None:
        """Over TCP."""
        with self._lock:
            self._tcp_read += read
            self._tcp_written += written

    def as_dict(self) -> dict[str, Any]:
        """All figures since the metrics were made:

        - `latency`: per verb `count`, `sum_seconds`, and `cumulative`, the number of calls within each of
          `bounds_seconds` and last of all.
        - `hits`, `misses`: keys that reads found and did not find.
        - `read_bytes`, `written_bytes`: of objects, by path: `shared` memory or `tcp`. Replicas count each.
        - `retries`: requests sent to a master again. `errors`: calls that raised, by the error's code.
        """
        with self._lock:
            return {
                "latency": {
                    verb: {"count": one.count, "sum_seconds": one.total_ns / 1e9, "cumulative": one.cumulative()}
                    for verb, one in self._latency.items()
                },
                "bounds_seconds": BOUNDS_SECONDS,
                "hits": self._hits,
                "misses": self._misses,
                "read_bytes": _by_path(self._read, self._tcp_read),
                "written_bytes": _by_path(self._written, self._tcp_written),
                "retries": self._retries,
                "errors": dict(self._errors),
            }

    def prometheus(self) -> str:
        """The same in the text format of Prometheus, to be served or written to a file by the program."""
        found = self.as_dict()
        lines = ["# TYPE holdfast_client_call_duration_seconds histogram"]
        for verb, one in sorted(found["latency"].items()):
            name = "holdfast_client_call_duration_seconds"
            for bound, count in zip([*map(str, BOUNDS_SECONDS), "+Inf"], one["cumulative"], strict=True):
                lines.append(f'{name}_bucket{{verb="{verb}",le="{bound}"}} {count}')
            lines.append(f'{name}_sum{{verb="{verb}"}} {one["sum_seconds"]}')
            lines.append(f'{name}_count{{verb="{verb}"}} {one["count"]}')
        for counter in ("hits", "misses", "retries"):
            lines += [f"# TYPE holdfast_client_{counter}_total counter"]
            lines += [f"holdfast_client_{counter}_total {found[counter]}"]
        for counter, label in (("read_bytes", "path"), ("written_bytes", "path"), ("errors", "code")):
            lines += [f"# TYPE holdfast_client_{counter}_total counter"]
            lines += [f'holdfast_client_{counter}_total{{{label}="{one}"}} {n}' for one, n in found[counter].items()]
        return "\n".join(lines) + "\n"


def _by_path(size: int, over_tcp: int) -> dict[str, int]:
    """What did not come over TCP was in mapped memory. Bytes that TCP moved in vain (the key was taken meanwhile) are
    nobody's, so that the difference may be negative."""
    return dict(zip(PATHS, (max(0, size - over_tcp), over_tcp), strict=True))
