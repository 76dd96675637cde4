"""The dashboard and the alert rules of deploy/: every metric in them exists, every alert is provoked."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest
import yaml

from holdfast.cli.main import main
from tests.deploy.commands import DEPLOY
from tests.e2e.rig import Rig
from tests.ports import free_ports

RULES = DEPLOY / "prometheus" / "alerts.yml"
CASES = DEPLOY / "prometheus" / "alerts_test.yml"
DASHBOARD = DEPLOY / "grafana" / "holdfast.json"
METRIC = re.compile(r"\bholdfast_\w+")


@pytest.fixture(scope="module")
def shown() -> Iterator[dict[str, str]]:
    """The kind of each metric, by name, of a real master with a tenant and of its node."""
    [port] = free_ports(1)
    with Rig("16MiB", nodes=0) as rig:
        rig.add_node("node-1", "--http", f"127.0.0.1:{port}")
        assert main(["tenants", "set", "blue", "--limit", "1MiB", "--address", rig.address]) == 0
        with rig.connect() as cache:
            cache.put("greeting", b"hello")
        [(_, facts)] = rig.masters.values()
        text = ""
        for place in (facts["http"], f"127.0.0.1:{port}"):
            with urlopen(f"http://{place}/metrics", timeout=30) as answer:
                text += answer.read().decode()
        yield dict(re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE))


def expressions_of_the_dashboard() -> list[str]:
    dashboard = json.loads(DASHBOARD.read_text())
    found = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    found += [one["expr"] for one in dashboard["annotations"]["list"]]
    return found + [one["query"]["query"] for one in dashboard["templating"]["list"] if one["type"] == "query"]


def alerts() -> dict[str, str]:
    [group] = yaml.safe_load(RULES.read_text())["groups"]
    return {rule["alert"]: rule["expr"] for rule in group["rules"]}


def named_in(texts: list[str]) -> set[str]:
    return {name for text in texts for name in METRIC.findall(text)}


def test_every_metric_of_the_dashboard_exists(shown: dict[str, str]) -> None:
    named = named_in(expressions_of_the_dashboard())
    assert len(named) > 20
    assert named <= shown.keys()


def test_every_metric_of_the_alerts_exists(shown: dict[str, str]) -> None:
    named = named_in(list(alerts().values()))
    assert len(named) > 12
    assert named <= shown.keys()


def test_only_counters_have_rates(shown: dict[str, str]) -> None:
    for text in [*expressions_of_the_dashboard(), *alerts().values()]:
        for name in re.findall(r"\b(?:rate|increase)\((holdfast_\w+)", text):
            assert shown[name] == "counter", text


def test_the_panels_of_the_dashboard_lie_side_by_side() -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24
        assert not taken & cells, panel["title"]
        taken |= cells


def test_every_alert_is_provoked_says_what_to_do_and_is_about_this_cluster() -> None:
    [group] = yaml.safe_load(RULES.read_text())["groups"]
    cases = yaml.safe_load(CASES.read_text())["tests"]
    provoked = {case["name"].split()[0] for case in cases if case["promql_expr_test"][0]["exp_samples"]}
    assert provoked == alerts().keys()
    assert all(rule["annotations"].keys() == {"summary", "action"} for rule in group["rules"])
    assert {rule["labels"]["severity"] for rule in group["rules"]} == {"critical", "warning", "info"}


def test_prometheus_accepts_the_rules_and_each_alert_fires_when_it_should() -> None:
    promtool = shutil.which("promtool", path=str(Path(sys.executable).parent)) or shutil.which("promtool")
    if promtool is None:
        pytest.skip("there is no promtool here; make check fetches it")
    for words in (["check", "rules", "alerts.yml"], ["test", "rules", "alerts_test.yml"]):
        done = subprocess.run([promtool, *words], cwd=RULES.parent, capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, done.stdout + done.stderr
