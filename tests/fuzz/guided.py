"""One target under atheris (libFuzzer): inputs that reach new lines are altered further.

    python -m tests.fuzz.guided TARGET SECONDS SEED FOLDER

The mutations are those of `mutation`, which know where records and sections begin; atheris chooses what to alter next.
A failing input is written to FOLDER/TARGET-crash-HASH, and the process ends with libFuzzer's code.
"""

from __future__ import annotations

import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["holdfast"]):
    from tests.fuzz.targets import TARGETS

from tests.fuzz.mutation import Mutator


def main(name: str, seconds: str, seed: str, folder: str) -> None:
    target = TARGETS[name]
    corpus = Path(folder) / "guided" / name
    corpus.mkdir(parents=True, exist_ok=True)
    for number, good in enumerate(target.seeds()):
        (corpus / f"seed-{number}").write_bytes(good)

    def altered(data: bytes, most_bytes: int, number: int) -> bytes:
        return target.alter(Mutator(number), data)[:most_bytes]

    options = [f"-max_total_time={seconds}", f"-seed={seed}", f"-artifact_prefix={folder}/{name}-", "-max_len=65536"]
    atheris.Setup(
        [sys.argv[0], *options, "-verbosity=0", "-print_final_stats=1", str(corpus)], target.run, custom_mutator=altered
    )
    atheris.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])
