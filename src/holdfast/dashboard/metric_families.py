"""Families of Prometheus, made of plain numbers when somebody asks (ADR 57)."""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from holdfast import __version__
from holdfast.operations.durations import BOUNDS_SECONDS, Durations

_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def snake(name: str) -> str:
    """CommitPuts -> commit_puts."""
    return _HUMP.sub("_", name).lower()


def gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"holdfast_{name}", text, value)


def counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"holdfast_{name}", text, value)


def counters(name: str, text: str, label: str, counts: Mapping[str, float]) -> Metric:
    found = CounterMetricFamily(f"holdfast_{name}", text, labels=[label])
    for value, count in list(counts.items()):
        found.add_metric([value], count)
    return found


def gauges(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    found = GaugeMetricFamily(f"holdfast_{name}", text, labels=[label])
    for value, count in list(values.items()):
        found.add_metric([value], count)
    return found


def histogram(name: str, text: str, durations: Durations) -> Metric:
    found = HistogramMetricFamily(f"holdfast_{name}", text)
    found.add_metric([], buckets_of(durations), durations.total_ns / 1e9)
    return found


def buckets_of(durations: Durations) -> list[tuple[str, float]]:
    bounds = [*(repr(bound) for bound in BOUNDS_SECONDS), "+Inf"]
    return list(zip(bounds, durations.cumulative(), strict=True))


def build_info() -> Metric:
    labels = ["version", "python"]
    found = GaugeMetricFamily("holdfast_build_info", "1, with the version of holdfast and of Python.", labels=labels)
    found.add_metric([__version__, platform.python_version()], 1)
    return found
