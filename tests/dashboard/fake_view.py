"""A master's view without a master."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry, Counter


class FakeView:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        Counter("holdfast_puts", "Puts.", registry=self.registry).inc(3)
        self.unready = ""
        self.name = "master-1"
        self.keys = [f"key/{number}" for number in range(250)]

    def status(self) -> dict[str, Any]:
        return {
            "cluster": "holdfast",
            "name": self.name,
            "role": "primary",
            "epoch": 1,
            "log_index": 7,
            "applied_index": 7,
            "durable_index": 7,
            "promotable": False,
            "promotable_reason": "it is the primary",
            "objects": len(self.keys),
            "used_bytes": 1,
            "capacity_bytes": 2,
            "digest": "0" * 16,
            "leader": "127.0.0.1:7070",
            "uptime_ms": 5,
        }

    def nodes(self) -> list[dict[str, Any]]:
        return [{"name": "node-1", "available": True, "capacity_bytes": 2, "used_bytes": 1, "host": "here"}]

    def sessions(self, after: str, limit: int) -> list[dict[str, Any]]:
        return [
            {
                "name": f"node-{number}",
                "standing": "safe",
                "epoch": 1,
                "session_epoch": 4,
                "lease_left_ms": 900,
                "last_command": "clean",
                "segments": 1,
            }
            for number in range(5)
            if f"node-{number}" > after
        ][:limit]

    def events(self, after: int, limit: int) -> list[dict[str, Any]]:
        found = [
            {"number": n, "age_ms": 5, "kind": "session_created", "subject": "node-1", "text": ""} for n in range(1, 6)
        ]
        return [event for event in found if int(str(event["number"])) > after][:limit]

    def objects(self, prefix: str, cursor: int, limit: int) -> dict[str, Any]:
        found = [key for key in self.keys if key.startswith(prefix)]
        page = found[cursor : cursor + limit]
        after = cursor + limit
        return {
            "objects": [{"key": key, "size_bytes": 1} for key in page],
            "cursor": after if after < len(found) else 0,
        }

    def ready(self) -> tuple[bool, str]:
        return not self.unready, self.unready

    def stat(self, key: str) -> dict[str, Any] | None:
        if key not in self.keys:
            return None
        places = [("MEMORY", "node-1", 64), ("DISK", "node-1", 0)]
        replicas = [{"kind": kind, "node": node, "offset": offset, "size_bytes": 64} for kind, node, offset in places]
        return {"key": key, "size_bytes": 10, "replicas": replicas}
