"""Examples and pages for engines: what can run without the engine runs, what is to be pasted is what the code reads."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.integrations.options import Options
from tests.failover.cluster import Cluster

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "engines").glob("*.md"))
INDEX = (ROOT / "docs" / "engines.md").read_text()
OF_UP = "127.0.0.1:7070,127.0.0.1:7072"
"""Both masters of `holdfast up`: with one alone, an engine that starts while that one is dead finds nobody."""
OF_VLLM = frozenset({"type", "module_path"})
OF_SGLANG = frozenset({"backend_name", "module_path", "class_name", "interface_v1"})


def test_the_example_for_mooncake_runs(cluster: Cluster) -> None:
    command = [sys.executable, str(ROOT / "examples" / "mooncake_store.py"), cluster.address]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    ran = subprocess.run(command, capture_output=True, text=True, timeout=100, env=variables)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "equal: True" in ran.stdout


def test_the_example_for_vllm_names_a_tier_and_options_that_are_there() -> None:
    tier: dict[str, Any] = json.loads((ROOT / "examples" / "vllm_tier.json").read_text())
    (tier,) = tier["kv_connector_extra_config"]["secondary_tiers"]
    assert isinstance(getattr(importlib.import_module(tier["module_path"]), tier["type"]), type)
    assert Options.read(tier, "the example", OF_VLLM).address == OF_UP


def test_what_is_pasted_for_vllm_is_the_example_and_connectors_that_vllm_reads() -> None:
    given = [json.loads(text) for text in pasted("vllm.md") + pasted("lmcache.md")]
    assert json.loads((ROOT / "examples" / "vllm_tier.json").read_text()) in given
    assert {one["kv_connector"] for one in given} == {
        "OffloadingConnector",
        "MooncakeStoreConnector",
        "LMCacheConnectorV1",
        "LMCacheMPConnector",
    }


def pasted(page: str) -> list[str]:
    text = (ROOT / "docs" / "engines" / page).read_text()
    return re.findall(r"--kv-transfer-config '(.+?)'", text, re.DOTALL)


def test_the_page_of_vllm_makes_a_configuration_file_that_is_json() -> None:
    page = (ROOT / "docs" / "engines" / "vllm.md").read_text()
    (text,) = re.findall(r"cat > mooncake.json <<'END'\n(.+?)END\n", page, re.DOTALL)
    assert json.loads(text)["global_segment_size"] == 0


def test_the_readme_shows_the_example_for_vllm_as_it_is() -> None:
    shown = (ROOT / "examples" / "vllm_tier.json").read_text()
    assert f"```json\n{shown}```" in (ROOT / "README.md").read_text()


def test_the_page_of_sglang_names_a_backend_and_options_that_are_there() -> None:
    page = (ROOT / "docs" / "engines" / "sglang.md").read_text()
    (text,) = re.findall(r"--hicache-storage-backend-extra-config '(.+?)'", page, re.DOTALL)
    given = json.loads(text)
    assert isinstance(getattr(importlib.import_module(given["module_path"]), given["class_name"]), type)
    Options.read(given, "the page", OF_SGLANG)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_index_names_every_engine(page: Path) -> None:
    assert f"(engines/{page.name})" in INDEX


@pytest.mark.parametrize("name", sorted(set(re.findall(r"examples/([\w.]+)", INDEX))))
def test_examples_that_the_index_names_are_there(name: str) -> None:
    assert (ROOT / "examples" / name).exists()
