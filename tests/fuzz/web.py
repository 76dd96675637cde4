"""HTTP by its own description: schemathesis makes requests from the OpenAPI document of a running master."""

from __future__ import annotations

import time

import schemathesis
from hypothesis import HealthCheck, given, seed, settings

from tests.fuzz.live import TOKENS, LiveCluster

HEADERS = {"Authorization": f"Bearer {TOKENS['good']}"}


def fuzz_http(cluster: LiveCluster, number: int, seconds: float, most: int) -> int:
    """How many requests were answered. Raises AssertionError for an answer that says that the server is at fault."""
    base = f"http://{cluster.masters['master-0'][1]['http']}"
    schema = schemathesis.openapi.from_url(f"{base}/api/v1/openapi.json", headers=HEADERS)
    operations = [found.ok() for found in schema.get_all_operations()]
    until, answered = time.monotonic() + seconds, 0
    while answered < most and time.monotonic() < until:
        for operation in operations:
            number += 1

            @seed(number)
            @settings(max_examples=10, deadline=None, database=None, suppress_health_check=list(HealthCheck))
            @given(case=operation.as_strategy())
            def ask(case: schemathesis.Case) -> None:
                nonlocal answered
                if answered < most and time.monotonic() < until:
                    response = case.call(base_url=base, headers=HEADERS, timeout=20)
                    assert response.status_code < 500 or response.status_code == 503, f"{case!r}: {response.text[:500]}"
                    answered += 1

            ask()
        cluster.check()
    cluster.check()
    return answered
