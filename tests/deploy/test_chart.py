"""The chart, rendered by Helm itself: every manifest fits the schemas of Kubernetes, and wrong values are refused.

Helm comes as a program in a Python package, the schemas in another; neither needs a cluster.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.deploy.commands import CHART
from tests.failover.releases import newest_release

HELM = Path(sys.executable).parent / "helm"
KUBERNETES = ("1.29", "1.37")
"""The oldest version that the chart is for, and the newest whose schema the package has."""

ELSEWHERE = ["etcd.enabled=false", "coordination.url=zookeeper://zk.site:2181/prod?ca=/run/secrets/ca.crt"]
VARIANTS = {
    "as it is": [],
    "another store": ELSEWHERE,
    "larger": ["masters.replicas=3", "nodes.replicas=5", "etcd.replicas=5", "nodes.antiAffinity=preferred"],
    "no nodes": ["nodes.replicas=0", "masters.antiAffinity=preferred"],
    "storage classes": ["masters.storage.storageClassName=fast", "etcd.storage.storageClassName=fast"],
}


def helm(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([HELM, *words], capture_output=True, text=True, timeout=60)


def sets(values: list[str]) -> list[str]:
    return [word for value in values for word in ("--set", value)]


def rendered(values: list[str]) -> dict[tuple[str, str], dict[str, Any]]:
    """(kind, name) -> manifest."""
    done = helm("template", "cache", str(CHART), "--namespace", "serving", *sets(values))
    assert done.returncode == 0, done.stderr
    manifests = [one for one in yaml.safe_load_all(done.stdout) if one]
    return {(one["kind"], one["metadata"]["name"]): one for one in manifests}


def container_of(manifests: dict[tuple[str, str], dict[str, Any]], name: str) -> dict[str, Any]:
    [container] = manifests["StatefulSet", name]["spec"]["template"]["spec"]["containers"]
    return dict(container)


def test_helm_finds_nothing_wrong_with_the_chart() -> None:
    done = helm("lint", "--strict", str(CHART))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("values", VARIANTS.values(), ids=VARIANTS.keys())
def test_every_manifest_fits_the_schema_of_kubernetes(values: list[str], version: str) -> None:
    manifests = rendered(values)
    assert len(manifests) >= 6
    for manifest in manifests.values():
        kubernetes_validate.validate(manifest, version, strict=True)


def test_a_field_that_kubernetes_does_not_know_would_be_noticed() -> None:
    masters = rendered([])["StatefulSet", "cache-masters"]
    masters["spec"]["replica"] = 2
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(masters, KUBERNETES[-1], strict=True)


@pytest.mark.parametrize(
    "wrong",
    [
        ["etcd.enabled=false"],
        ["misspelt=1"],
        ["masters.replicas=0"],
        ["nodes.size=large"],
        ["coordination.url=sqlite:///x.db"],
        ["coordination.url=etcd://h:2379/prod?user=u&password=p"],
    ],
    ids=lambda wrong: wrong[0],
)
def test_wrong_values_are_refused(wrong: list[str]) -> None:
    done = helm("template", "cache", str(CHART), *sets(wrong))
    assert done.returncode != 0
    assert "schema" in done.stderr


def test_masters_and_nodes_are_told_where_the_others_are() -> None:
    manifests = rendered(["masters.replicas=3", "cluster=site"])
    at = "cache-masters.serving.svc:7070"
    node, master = container_of(manifests, "cache-nodes"), container_of(manifests, "cache-masters")
    assert f"--address=cache-masters-0.{at},cache-masters-1.{at},cache-masters-2.{at}" in node["args"]
    [coordination] = [one["value"] for one in master["env"] if one["name"] == "HOLDFAST_COORDINATION"]
    members = ",".join(f"cache-etcd-{number}.cache-etcd.serving.svc:2379" for number in range(3))
    assert coordination.startswith(f"etcd://{members}/site?")
    assert master["image"] == f"holdfast:{newest_release()[0]}"
    elsewhere = rendered(ELSEWHERE)
    assert not [name for _, name in elsewhere if "etcd" in name]
    [coordination] = [
        one["value"]
        for one in container_of(elsewhere, "cache-masters")["env"]
        if one["name"] == "HOLDFAST_COORDINATION"
    ]
    assert coordination.startswith("zookeeper://zk.site:2181/prod?")


def test_budgets_select_the_pods_and_services_name_their_ports() -> None:
    manifests = rendered([])
    labels = {
        name: one["spec"]["template"]["metadata"]["labels"]
        for (kind, name), one in manifests.items()
        if kind == "StatefulSet"
    }
    assert len(labels) == 3
    for kind in ("PodDisruptionBudget", "Service"):
        for name, of_pods in labels.items():
            spec = manifests[kind, name]["spec"]
            selector = spec["selector"]["matchLabels"] if kind == "PodDisruptionBudget" else spec["selector"]
            assert selector.items() <= of_pods.items(), f"{kind} {name}"
    for name in labels:
        container = container_of(manifests, name)
        declared = {port["name"] for port in container["ports"]}
        for probe in ("livenessProbe", "readinessProbe"):
            how = container[probe]
            target = how.get("httpGet") or how.get("tcpSocket")
            assert target is None or target["port"] in declared, f"{name}: {probe}"
    assert json.dumps(manifests["StatefulSet", "cache-masters"]).count("/readyz") == 1
    # While no master answers, nodes go on serving: their names must stay known though they are not ready.
    assert manifests["Service", "cache-nodes"]["spec"]["publishNotReadyAddresses"] is True
    assert json.dumps(manifests["StatefulSet", "cache-nodes"]).count("/readyz") == 2
