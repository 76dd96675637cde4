"""A seed is a run: whatever hashes, addresses and processes it is played with, the same events happen."""

from __future__ import annotations

import os
import subprocess
import sys

SEEDS = "0 7 11 23"
PLAYED = """
import sys
from holdfast.simulation.runs.run import run
from holdfast.simulation.scripts.draw import draw
for seed in map(int, sys.argv[1:]):
    played = run(draw(seed))
    print(seed, played.steps, f"{played.trace:x}", played.violation)
"""


def played(seeds: str, hash_seed: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", PLAYED, *seeds.split()],
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    return done.stdout.splitlines()


def test_a_seed_is_the_same_run_whatever_strings_hash_to() -> None:
    first = played(SEEDS, "1")
    assert len(first) == len(SEEDS.split())
    assert first == played(SEEDS, "2024")


def test_seeds_are_different_runs_and_the_order_of_playing_is_nothing_to_them() -> None:
    forwards = played("5 6", "random")
    backwards = played("6 5", "random")
    assert forwards == backwards[::-1]
    assert forwards[0].split()[2] != forwards[1].split()[2]
