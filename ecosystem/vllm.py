"""Suites of vLLM: the real engine on CPUs with a tiny model, through restarts and the death of the primary."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ecosystem.cluster import cluster, kill_primary
from ecosystem.environments import ROOT, variables
from ecosystem.suites import Outcome, pytest_outcome, suite
from ecosystem.vllm_engine import PLAIN, Engine, mooncake_settings
from tests.failover.cluster import Cluster
from tests.ports import free_ports
from tests.waiting import wait_until

PROGRAMS = ROOT / "ecosystem" / "programs"
CACHED = 992
"""Of 1,000 prompt tokens: 31 whole blocks of 32. The last one is always computed."""
BLOCKS = 31
PROMPTS = range(1, 5)
MOONCAKE = {"kv_connector": "MooncakeStoreConnector", "kv_role": "kv_both"}
STORED_S = 120.0


class Findings:
    """Checks with a name each, so that one that fails does not hide the next."""

    def __init__(self) -> None:
        self.outcome = Outcome()

    def check(self, what: str, good: bool, seen: object = "") -> None:
        if good:
            self.outcome.passed += 1
        else:
            self.outcome.failed.append(f"{what}: {seen}")


def computed(python: Path, folder: Path) -> dict[int, list[int]]:
    """The tokens of every prompt as the engine computes them without any connector."""
    with Engine(python, folder) as engine:
        return {number: engine.generate(number)["tokens"] for number in PROMPTS}


def wait_for_objects(running: Cluster, at_least: int) -> None:
    with running.connect() as cache:
        wait_until(lambda: cache.status().objects >= at_least, STORED_S, f"{at_least} objects are stored")


@suite("vllm: MooncakeStoreConnector on the drop-in, restart and kill -9 of the primary", engine="vllm")
def check_drop_in(python: Path, folder: Path) -> Outcome:
    found = Findings()
    expected = computed(python, folder)
    with cluster(folder) as running:
        env = {**mooncake_settings(folder, running.address), "HOLDFAST_AS_MOONCAKE": running.address}
        with Engine(python, folder, MOONCAKE, env) as engine:
            first = engine.generate(1)
            found.check("the first request is computed", first["cached"] == 0, first)
            found.check("and right", first["tokens"] == expected[1], first)
            wait_for_objects(running, BLOCKS)
            engine.reset()
            again = engine.generate(1)
            found.check("992 of 1,000 tokens come from holdfast", again["cached"] == CACHED, again)
            found.check("with the same result", again["tokens"] == expected[1], again)
        # The engine was killed with -9; now the primary is.
        kill_primary(running)
        with Engine(python, folder, MOONCAKE, env) as engine:
            after = engine.generate(1)
            found.check("a new engine and a new primary: 992 tokens cached", after["cached"] == CACHED, after)
            found.check("with the same result", after["tokens"] == expected[1], after)
            _generate_through_a_failover(found, running, engine, expected)
    return found.outcome


def _generate_through_a_failover(
    found: Findings, running: Cluster, engine: Engine, expected: dict[int, list[int]]
) -> None:
    """Requests go on while the primary dies under them: each may be computed or loaded, and must be right."""
    killer = threading.Thread(target=kill_primary, args=(running,))
    answers = []
    killer.start()
    while killer.is_alive() or len(answers) < 2 * len(expected):
        number = PROMPTS[len(answers) % len(PROMPTS)]
        engine.reset()
        answers.append((number, engine.generate(number)))
    killer.join()
    wrong = [answer for number, answer in answers if answer["tokens"] != expected[number]]
    found.check(f"{len(answers)} requests during a failover are all right", not wrong, wrong[:1])
    slowest = max(answer["seconds"] for _, answer in answers)
    found.outcome.notes.append(f"slowest request during the failover {slowest:.1f} s")
    engine.generate(2)
    engine.reset()
    settled = wait_until(lambda: _cached(engine, 2) == CACHED, STORED_S, "blocks are loaded again")
    found.check("blocks are loaded again afterwards", settled)


def _cached(engine: Engine, prompt: int) -> int:
    engine.reset()
    return int(engine.generate(prompt)["cached"])


@contextmanager
def lmcache_server(python: Path, folder: Path, address: str) -> Iterator[int]:
    """An LMCache server with holdfast behind it; its port. Killed at the end."""
    port, http = free_ports(2)
    adapter = {
        "type": "plugin",
        "module_path": "holdfast.integrations.lmcache",
        "class_name": "HoldfastL2Adapter",
        "shared": True,
        "adapter_params": {"address": address},
    }
    command = [str(python.parent / "lmcache"), "server", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--http-host", "127.0.0.1", "--http-port", str(http), "--l1-size-gb", "1", "--eviction-policy", "LRU"]
    command += ["--chunk-size", "32", "--supported-transfer-mode", "engine_driven", "--l2-adapter", json.dumps(adapter)]
    env = variables(**PLAIN, LMCACHE_TRACK_USAGE="false", LMCACHE_LOG_LEVEL="WARNING")
    with (folder / "lmcache-server.log").open("ab") as log:
        process = subprocess.Popen(command, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        yield port
    finally:
        process.kill()
        process.wait()


def over_lmcache(port: int) -> dict[str, object]:
    return {
        "kv_connector": "LMCacheMPConnector",
        "kv_connector_module_path": "lmcache.integration.vllm.lmcache_mp_connector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"lmcache.mp.host": "127.0.0.1", "lmcache.mp.port": port},
    }


@suite("vllm: LMCache server with holdfast as L2, restart and kill -9 of the primary", engine="vllm")
def check_lmcache(python: Path, folder: Path) -> Outcome:
    found = Findings()
    expected = computed(python, folder)
    with cluster(folder) as running:
        with (
            lmcache_server(python, folder, running.address) as port,
            Engine(python, folder, over_lmcache(port)) as engine,
        ):
            first = engine.generate(1)
            found.check("the first request is computed and right", first["tokens"] == expected[1], first)
            wait_for_objects(running, BLOCKS)
        # vLLM and the LMCache server were killed with -9; now the primary is.
        kill_primary(running)
        with (
            lmcache_server(python, folder, running.address) as port,
            Engine(python, folder, over_lmcache(port)) as engine,
        ):
            after = engine.generate(1)
            found.check("all of it started again: 992 tokens cached", after["cached"] == CACHED, after)
            found.check("with the same result", after["tokens"] == expected[1], after)
    return found.outcome


@suite("vllm: HoldfastTier under TieringOffloadingManager, two engines", engine="vllm")
def check_tier(python: Path, folder: Path) -> Outcome:
    with cluster(folder) as running:
        arguments = ["-c", os.devnull, "--rootdir", str(PROGRAMS), str(PROGRAMS / "vllm_tier.py")]
        env = variables(**PLAIN, HOLDFAST_ADDRESS=running.address)
        before = pytest_outcome(python, arguments, folder, env)
        kill_primary(running)
        return before + pytest_outcome(python, arguments, folder, env)
