"""Find planted bugs by whole hunts, and write down which seeds found them.

`python -m tests.simulation.found_seeds [name]`.

It takes a while, says what it finds as it goes, and keeps what is known of those that it was not asked about. Run it
with PYTHONPATH=src:. when a bug is new, or when the gate hunts one for long because its seed finds it no more.
"""

from __future__ import annotations

import json
import sys
from concurrent.futures import ProcessPoolExecutor, as_completed

from tests.simulation import test_planted_bugs, test_planted_losses
from tests.simulation.planted import FOUND_SEEDS, SEEDS_FILE, Planted, hunt

BUGS: dict[str, Planted] = {bug.name: bug for bug in (*test_planted_bugs.ALL, *test_planted_losses.ALL)}


def found_seed(name: str) -> int | None:
    found = hunt(BUGS[name])
    return None if found is None else found.script.seed


def main(names: list[str]) -> int:
    missed = 0
    with ProcessPoolExecutor() as processes:
        hunts = {processes.submit(found_seed, name): name for name in names or BUGS}
        for number, done in enumerate(as_completed(hunts), 1):
            name, seed = hunts[done], done.result()
            missed += seed is None
            FOUND_SEEDS.pop(name, None)
            if seed is not None:
                FOUND_SEEDS[name] = seed
            SEEDS_FILE.write_text(json.dumps(dict(sorted(FOUND_SEEDS.items())), indent=1) + "\n")
            print(f"{number} of {len(hunts)}: {name}: {'not found' if seed is None else seed}", flush=True)
    return min(missed, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
