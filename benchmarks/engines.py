"""`python -m benchmarks.engines`: what a cached prompt is worth inside a real vLLM engine.

A request of 1,000 tokens whose 31 blocks (128 KiB each) are loaded, cold, by MooncakeStoreConnector: from holdfast by
the drop-in `mooncake.store`, and from real Mooncake; and the same request computed. The engine's main thread spins
while the connector's thread loads, so whatever gives up the GIL between two steps waits: a load must have few steps.

The engine is vLLM's for CPUs with a model of four layers. It computes so quickly that loading hardly pays; the row is
for comparing the two stores, and for seeing that a load takes no longer than the computation that it saves.

Needs the environment of `make ecosystem ONLY=vllm`, which is built if it is not there.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from benchmarks.processes import Cluster
from ecosystem.environments import python_of
from ecosystem.vllm_engine import Engine, mooncake_settings
from tests.ports import free_ports
from tests.waiting import wait_until

PROMPTS = range(1, 10)
CACHED = 992
CONNECTOR = {"kv_connector": "MooncakeStoreConnector", "kv_role": "kv_both"}
LENT = 512 << 20


def main() -> None:
    python = python_of("vllm")
    with tempfile.TemporaryDirectory(prefix="holdfast-engines-") as name:
        folder = Path(name)
        print("seconds of a whole request of 1,000 tokens, median of 9 (least, most)")
        tell("computed", compute(python, folder))
        with Cluster("1GiB", masters=2, coordination="sqlite") as cluster:
            env = {**mooncake_settings(folder, cluster.address), "HOLDFAST_AS_MOONCAKE": cluster.address}
            tell("31 blocks from holdfast, a new engine", load_in_new_engine(python, folder, env, cluster))
            tell("31 blocks from holdfast, the same engine", load_again(python, folder, env))
        with mooncake_master(python, folder) as address:
            tell(
                "31 blocks from Mooncake, the same engine",
                load_again(python, folder, mooncake_settings(folder, address, LENT)),
            )


def tell(what: str, seconds: list[float]) -> None:
    told = f"{statistics.median(seconds) * 1e3:.0f} ms ({min(seconds) * 1e3:.0f}, {max(seconds) * 1e3:.0f})"
    print(f"{what}: {told}", flush=True)


def compute(python: Path, folder: Path) -> list[float]:
    with Engine(python, folder) as engine:
        engine.generate(100)
        return [engine.generate(number)["seconds"] for number in PROMPTS]


def load_in_new_engine(python: Path, folder: Path, env: Mapping[str, str], cluster: Cluster) -> list[float]:
    """The engine that stored the blocks has ended: nothing of them is known here."""
    with Engine(python, folder, CONNECTOR, env) as engine:
        for number in PROMPTS:
            engine.generate(number)
        with cluster.connect() as cache:
            wait_until(lambda: cache.status().objects >= 31 * len(PROMPTS), 120, "the blocks are stored")
    with Engine(python, folder, CONNECTOR, env) as engine:
        engine.generate(100)
        return [loaded(engine, number) for number in PROMPTS]


def load_again(python: Path, folder: Path, env: Mapping[str, str]) -> list[float]:
    """The way that real Mooncake can be measured: its memory is the engine's own, and ends with it."""
    with Engine(python, folder, CONNECTOR, env) as engine:
        for number in PROMPTS:
            engine.generate(number + 200)
        wait_until(lambda: emptied(engine, PROMPTS[-1] + 200), 120, "the blocks are stored")
        engine.reset()
        return [loaded(engine, number + 200) for number in PROMPTS[:-1]]


def emptied(engine: Engine, prompt: int) -> bool:
    engine.reset()
    return int(engine.generate(prompt)["cached"]) == CACHED


def loaded(engine: Engine, prompt: int) -> float:
    answer = engine.generate(prompt)
    if answer["cached"] != CACHED:
        raise SystemExit(f"{answer['cached']} tokens were cached, not {CACHED}: the load was not measured")
    return float(answer["seconds"])


@contextmanager
def mooncake_master(python: Path, folder: Path) -> Iterator[str]:
    """The real one, from the wheel in the engine's environment."""
    (found,) = python.parents[1].glob("lib/python3*/site-packages/mooncake/mooncake_master")
    port, metrics = free_ports(2)
    ports = [f"--rpc_port={port}", "--metrics_host=127.0.0.1", f"--metrics_port={metrics}"]
    with (folder / "mooncake-master.log").open("wb") as log:
        process = subprocess.Popen(
            [str(found), "--rpc_address=127.0.0.1", *ports, "--logtostderr"],
            cwd=folder,
            env={**os.environ},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        yield f"127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    main()
