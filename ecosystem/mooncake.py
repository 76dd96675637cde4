"""Mooncake: holdfast's `mooncake.store` beside the real one, and under Mooncake's own Python tests.

UPSTREAM_MOONCAKE names a checkout of kvcache-ai/Mooncake; without it, its own tests are skipped."""

from __future__ import annotations

import json
import os
import venv
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ecosystem.cluster import cluster, kill_primary
from ecosystem.environments import ROOT, variables
from ecosystem.suites import Outcome, program_outcome, pytest_outcome, run, suite, tail
from tests.compat.mooncake_cases import CASES, differences
from tests.compat.record_mooncake import RECORDED, answers_in, real_answers

UPSTREAM = "UPSTREAM_MOONCAKE"
LEASE_TTL_MS = 2_000
PROGRAMS = ROOT / "ecosystem" / "programs"


def as_mooncake(folder: Path, address: str, **more: str) -> dict[str, str]:
    """The environment of a program whose `mooncake.store` shall be holdfast's. What the hook's .pth file does where it
    is installed is done by a sitecustomize here."""
    site = folder / "site"
    site.mkdir(exist_ok=True)
    (site / "sitecustomize.py").write_text("from holdfast.compat.mooncake.import_hook import install\n\ninstall()\n")
    plain = variables(HOLDFAST_AS_MOONCAKE=address, **more)
    return {**plain, "PYTHONPATH": os.pathsep.join([str(site), plain["PYTHONPATH"]])}


@suite("mooncake: the table of answers, asked of the real module and of holdfast's", engine="mooncake")
def the_table(python: Path, folder: Path) -> Outcome:
    real = real_answers(python, variables(GLOG_minloglevel="3"))
    recorded = json.loads(RECORDED.read_text(encoding="utf-8"))
    drifted = [
        f"the real one now says {real.get(name)} to {name!r}" for name in recorded if recorded[name] != real.get(name)
    ]
    with cluster(folder / "cluster", size="256MiB") as running:
        command = [str(python), str(ROOT / "tests" / "compat" / "mooncake_cases.py"), running.address, "--crash-too"]
        done = run(command, folder, as_mooncake(folder, "on", HOLDFAST_MOONCAKE_PUT_TIMEOUT="1"))
    ours = answers_in(done.stdout, done.stderr)
    failed = differences(ours, real) + drifted
    return Outcome(passed=len(CASES) - len(failed), failed=failed)


@dataclass(frozen=True)
class Upstream:
    """A file of Mooncake's own tests."""

    path: str
    must_fail: tuple[str, ...] = ()
    """Tests that assert what holdfast is there to prevent."""
    excused: Mapping[str, str] = field(default_factory=dict)
    """Tests that may fail, by name, and why."""


WHEEL = "mooncake-wheel/tests"
FILES = (
    Upstream(f"{WHEEL}/test_distributed_object_store.py", must_fail=("test_client_tear_down",)),
    Upstream(f"{WHEEL}/test_replicated_distributed_object_store.py"),
    Upstream(
        f"{WHEEL}/test_batch_replica_clear.py",
        excused={
            "test_clear_with_active_lease": "a put takes no lease; the real wheel fails it as well",
            "test_clear_mixed_expired_and_active": "a put takes no lease; the real wheel fails it as well",
            "test_clear_with_segment_name_self": "memory is lent by nodes, not by the client whose name is given",
            "test_clear_specific_segment_replica": "one replica of several cannot be given up by hand",
        },
    ),
    Upstream(f"{WHEEL}/test_import_structure.py"),
    Upstream(f"{WHEEL}/test_buffer_pool_native.py"),
    Upstream(f"{WHEEL}/test_mooncake_config.py"),
    Upstream(f"{WHEEL}/test_put_get_tensor.py"),
    Upstream(f"{WHEEL}/test_safetensor_functions.py"),
    Upstream("scripts/test_tensor_api.py"),
    Upstream("scripts/test_upsert_api.py"),
    Upstream("scripts/test_async_store.py"),
)


@suite("mooncake: its own Python tests, on holdfast", engine="mooncake")
def its_own_tests(python: Path, folder: Path) -> Outcome:
    checkout = os.environ.get(UPSTREAM)
    if not checkout:
        return Outcome(skipped=[f"{UPSTREAM} names no checkout of kvcache-ai/Mooncake"])
    outcome = Outcome()
    with cluster(folder / "cluster", size="1GiB", lease_ttl_ms=LEASE_TTL_MS) as running:
        for number, file in enumerate(FILES):
            place = folder / str(number)
            place.mkdir()
            path = Path(checkout) / file.path
            if not path.exists():
                outcome.skipped.append(f"{file.path} is not in the checkout")
                continue
            outcome += _judged(file, pytest_outcome(python, [str(path)], place, _settings(place, running.address)))
            with running.connect() as cache:
                cache.remove_all(force=True)
    return outcome


def _settings(folder: Path, address: str) -> dict[str, str]:
    return as_mooncake(
        folder,
        address,
        MASTER_SERVER=address,
        MOONCAKE_MASTER=address,
        MOONCAKE_LOCAL_HOSTNAME="localhost",
        LOCAL_HOSTNAME="localhost",
        MC_METADATA_SERVER="P2PHANDSHAKE",
        DEFAULT_KV_LEASE_TTL=str(LEASE_TTL_MS),
    )


def _judged(file: Upstream, found: Outcome) -> Outcome:
    """What must fail has failed, and is no failure; what may fail is told with its reason."""

    def failures(name: str) -> list[str]:
        return [text for text in found.failed if f"::{name}:" in text]

    by_design = [name for name in file.must_fail if failures(name)]
    forgiven = {text for name in (*by_design, *file.excused) for text in failures(name)}
    failed = [f"{file.path}: {text}" for text in found.failed if text not in forgiven]
    failed += [
        f"{file.path}: {name} passed: data is gone with its writer" for name in file.must_fail if name not in by_design
    ]
    skipped = [*found.skipped, *(f"{name}: {why}" for name, why in file.excused.items() if failures(name))]
    return Outcome(found.passed + len(by_design), failed, skipped, [f"{name} fails by design" for name in by_design])


@suite("mooncake: tensors of every dtype, split and joined, through a failover", engine="mooncake")
def tensors(python: Path, folder: Path) -> Outcome:
    with cluster(folder / "cluster") as running:
        environment = as_mooncake(folder, running.address)
        program = [str(python), str(PROGRAMS / "mooncake_tensors.py"), running.address]
        outcome = program_outcome([*program, "put"], folder, environment)
        kill_primary(running)
        return outcome + program_outcome([*program, "get"], folder, environment)


@suite("mooncake: both wheels built and installed by pip in fresh environments", engine="mooncake")
def wheels(python: Path, folder: Path) -> Outcome:
    outcome = Outcome()
    whose = "import mooncake.store as s; print(s.MooncakeDistributedStore.__module__)"
    for package in ("holdfast-mooncake-hook", "mooncake-shim"):
        place = folder / package
        venv.create(place, with_pip=True)
        fresh = str(place / "bin" / "python")
        target = [str(ROOT / "packages" / package)]
        done = run([fresh, "-m", "pip", "install", "--quiet", str(ROOT), *target], folder, variables(PYTHONPATH=""))
        if done.returncode != 0:
            outcome.failed.append(f"{package}: {tail(done)}")
            continue
        asked = run([fresh, "-c", whose], folder, variables(PYTHONPATH="", HOLDFAST_AS_MOONCAKE="127.0.0.1:1"))
        if asked.stdout.strip() == "holdfast.compat.mooncake.store":
            outcome.passed += 1
        else:
            outcome.failed.append(f"{package}: {tail(asked)}")
    return outcome
