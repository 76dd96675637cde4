"""LMCache on holdfast: its own checks, benchmark and tests, and traffic through the death of the primary."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from ecosystem.cluster import cluster, empty, evicted, kill_primary
from ecosystem.environments import source_archive, variables
from ecosystem.suites import Outcome, pytest_outcome, run, suite, tail
from tests.failover.cluster import Cluster
from tests.waiting import wait_until

VERSION = "0.5.6"
PROGRAMS = Path(__file__).parent / "programs"
QUIET = {"LMCACHE_TRACK_USAGE": "false", "LMCACHE_LOG_LEVEL": "WARNING"}
KINDS = {"plugin": "HoldfastL2Adapter", "native_plugin": "HoldfastNativeConnector"}
OWN_TESTS = [
    "tests/v1/distributed/test_native_connector_l2_adapter.py",
    "tests/v1/distributed/test_mock_l2_adapter.py",
]
"""With holdfast in place of their mocks."""
BESIDE = [
    *(f"tests/v1/distributed/test_{name}.py" for name in ("l2_adapter_factory", "l2_adapter_base")),
    *(f"tests/v1/distributed/test_{name}.py" for name in ("mooncake_store_l2_adapter", "fault_inject_l2_adapter")),
    "tests/v1/distributed/test_runtime_adapters.py",
    *(f"tests/v1/storage_backend/test_{name}.py" for name in ("remote_storage_plugin", "storage_plugin")),
    "tests/v1/test_connector_discovery.py",
]
"""That LMCache itself works in this environment, so that what fails above is ours."""
NOT_OURS = "test_store_completion_is_delayed_by_bandwidth"
"""A test of the mock's own slowness."""
PATIENT_S = 30


def l2_json(kind: str, address: str, **options: object) -> str:
    return json.dumps(
        {
            "type": kind,
            "module_path": "holdfast.integrations.lmcache",
            "class_name": KINDS[kind],
            "shared": True,
            "adapter_params": {"address": address, **options},
        }
    )


def in_process_config(folder: Path, address: str, with_metadata: bool, url: bool) -> Path:
    start = "remote_storage_plugin.holdfast"
    lines = [
        "chunk_size: 256",
        "local_cpu: false",
        "max_local_cpu_size: 0.5",
        "remote_serde: naive",
        f'remote_url: "holdfast://{address}"' if url else "",
        'remote_storage_plugins: ["holdfast"]',
        "extra_config:",
        f"  save_chunk_meta: {str(with_metadata).lower()}",
        f"  {start}.module_path: holdfast.integrations.lmcache",
        f"  {start}.class_name: HoldfastConnectorAdapter",
        f'  {start}.address: "{address}"',
        f"  {start}.timeout_s: {PATIENT_S // 4}",
    ]
    path = folder / f"lmcache-{with_metadata}-{url}.yaml"
    path.write_text("\n".join(lines) + "\n")
    return path


def passed_rows(text: str) -> Outcome:
    """The rows of basic_check's table: 16/16 passes, anything less does not."""
    rows = re.findall(r"^\| ([A-Z][^|]*?) *\|[^|]*\|[^|]*\|[^|]*\| *(\d+)/(\d+) *\|", text, re.MULTILINE)
    if not rows:
        return Outcome(failed=[f"basic_check printed no table: {text[-400:]}"])
    bad = [f"{name}: {good} of {all_}" for name, good, all_ in rows if good != all_ or all_ == "0"]
    return Outcome(passed=len(rows) - len(bad), failed=bad)


def checked(python: Path, folder: Path, mode: str, env: dict[str, str], *more: str) -> Outcome:
    command = [str(python), "-m", "lmcache.v1.basic_check", "--mode", mode, "--num-keys", "16", "--model", "m", *more]
    done = run(command, folder, variables(**QUIET, **env))
    outcome = passed_rows(done.stdout)
    return outcome if done.returncode == 0 else outcome + Outcome(failed=[f"exit {done.returncode}: {tail(done)}"])


@suite("lmcache: basic_check of the L2 adapters", engine="lmcache")
def basic_check_l2(python: Path, folder: Path) -> Outcome:
    outcome = Outcome()
    with cluster(folder) as running:
        for kind in KINDS:
            given = l2_json(kind, running.address, key_prefix=f"check-{kind}")
            outcome += checked(python, folder, "test_l2_adapter", {}, "--obj-size", "262144", "--l2-adapter", given)
    return outcome


@suite("lmcache: basic_check of the in-process connector", engine="lmcache")
def basic_check_in_process(python: Path, folder: Path) -> Outcome:
    outcome = Outcome()
    with cluster(folder) as running:
        for with_metadata in (True, False):
            env = {"LMCACHE_CONFIG_FILE": str(in_process_config(folder, running.address, with_metadata, True))}
            for mode in ("test_remote", "test_storage_manager"):
                with running.connect() as cache:
                    cache.remove_all(force=True)
                # 512 elements are a chunk of 256 tokens; its default is two chunks, which no chunk's memory can hold.
                outcome += checked(python, folder, mode, env, "--obj-size", "512")
    return outcome


def bench_command(python: Path, given: str, rounds: int) -> list[str]:
    flags = ["--num-keys", "32", "--data-size-kb", "1024", "--rounds", str(rounds)]
    flags += ["--no-skip-verify", "--lookup-max-hit-rate", "1.0"]
    return [str(python.parent / "lmcache"), "bench", "l2", "--l2-adapter", given, *flags]


def bench_outcome(code: int, text: str) -> Outcome:
    """Every key of every round succeeded, and the bytes compared equal."""
    totals = re.findall(r"Operation: +(\w+)\n(?:.*\n)*?Total keys: +(\d+)\nTotal success: +(\d+)", text)
    bad = [f"{name}: {good} of {keys} keys" for name, keys, good in totals if good != keys]
    if code != 0 or len(totals) < 3:
        bad.append(f"exit {code}: {text[-400:]}")
    if "mismatch" in text or "[Verify]" not in text:
        bad.append("what was loaded was not found equal to what was stored")
    speeds = re.findall(r"Operation: +(\w+)\n(?:.*\n)*?Throughput avg \(MB/s\): +([\d.]+)", text)
    notes = [f"{name.lower()} {float(speed):,.0f} MB/s" for name, speed in speeds if float(speed)]
    return Outcome(passed=len(totals) if not bad else 0, failed=bad, notes=notes)


@suite("lmcache: bench l2, bytes verified", engine="lmcache")
def bench_l2(python: Path, folder: Path) -> Outcome:
    outcome = Outcome()
    with cluster(folder) as running:
        for kind in KINDS:
            done = run(
                bench_command(python, l2_json(kind, running.address, key_prefix=f"bench-{kind}"), 3),
                folder,
                variables(**QUIET),
            )
            outcome += bench_outcome(done.returncode, done.stdout)
    return outcome


@suite("lmcache: bench l2 through the death of the primary", engine="lmcache")
def bench_l2_through_a_death(python: Path, folder: Path) -> Outcome:
    outcome = Outcome()
    with cluster(folder, size="1GiB") as running:
        for kind in KINDS:
            given = l2_json(kind, running.address, key_prefix=f"bench-{kind}", timeout_s=PATIENT_S)
            log = folder / f"bench-{kind}.log"
            empty(running)
            with log.open("w") as output:
                process = subprocess.Popen(
                    bench_command(python, given, 20), cwd=folder, env=variables(**QUIET), stdout=output, stderr=output
                )
                try:
                    wait_until(lambda log=log: "Round" in log.read_text(), 120, "the benchmark is under way")
                    kill_primary(running)
                    code = process.wait(300)
                finally:
                    if process.poll() is None:
                        process.kill()
                        process.wait()
            found = bench_outcome(code, log.read_text())
            if found.failed and (gone := evicted(running)):
                found.failed.append(f"{gone} objects were evicted: there was less room than the benchmark stores")
            outcome += found
    return outcome


def own_tests(folder: Path) -> Path:
    """LMCache's tests in a folder of their own: beside its source, that would be imported."""
    source = source_archive("lmcache", VERSION, folder)
    apart = folder / "tests-apart"
    apart.mkdir()
    shutil.copytree(source / "tests", apart / "tests")
    shutil.copy(source / "pytest.ini", apart)
    return apart


@suite("lmcache: its own tests, on holdfast in place of its mocks", engine="lmcache")
def own_tests_on_holdfast(python: Path, folder: Path) -> Outcome:
    apart = own_tests(folder)
    with cluster(folder) as running:
        plugin = ["-p", "ecosystem.programs.lmcache_on_holdfast", "-o", "log_cli=false", "-k", f"not {NOT_OURS}"]
        env = variables(**QUIET, HOLDFAST_ADDRESS=running.address)
        return pytest_outcome(python, [*plugin, *OWN_TESTS], apart, env)


@suite("lmcache: its own tests of what holdfast plugs into", engine="lmcache")
def own_tests_beside(python: Path, folder: Path) -> Outcome:
    return pytest_outcome(python, ["-o", "log_cli=false", *BESIDE], own_tests(folder), variables(**QUIET))


def story(
    python: Path, folder: Path, program: str, arguments: list[str], env: dict[str, str], meanwhile: Callable[[], object]
) -> dict[str, object]:
    """Run a program of ours until it says that it has stored; do something to the cluster; its report at the end."""
    with (folder / f"{program}.log").open("a") as errors:
        process = subprocess.Popen(
            [str(python), str(PROGRAMS / f"{program}.py"), *arguments],
            cwd=folder,
            env=variables(**QUIET, **env),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            said = process.stdout.readline().strip()
            if said != "stored":
                raise RuntimeError(f"{program} said {said!r} and not that it had stored; see {errors.name}")
            meanwhile()
            answer, _ = process.communicate("go on\n", timeout=300)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    if process.returncode != 0:
        raise RuntimeError(f"{program} ended with {process.returncode}; see {errors.name}")
    report: dict[str, object] = json.loads(answer.strip().splitlines()[-1])
    return report


def expect(report: dict[str, object], **wanted: object) -> Outcome:
    bad = [f"{name} is {report[name]!r}, not {value!r}" for name, value in wanted.items() if report[name] != value]
    return Outcome(passed=len(wanted) - len(bad), failed=bad)


@suite("lmcache: L2 traffic through the death of the primary", engine="lmcache")
def l2_traffic(python: Path, folder: Path) -> Outcome:
    outcome = Outcome()
    with cluster(folder) as running:
        for kind in KINDS:
            given = l2_json(kind, running.address, key_prefix=f"traffic-{kind}", timeout_s=PATIENT_S)
            report = story(python, folder, "lmcache_l2_traffic", [given], {}, lambda: kill_primary(running))
            outcome += expect(report, wrong=0, lost=0, failed=0, stored=192)
            outcome.notes.append(
                f"{kind}: {report['rounds_meanwhile']} lookups meanwhile, longest call {report['longest_s']} s"
            )
    return outcome


@suite("lmcache: L2 traffic while no master answers", engine="lmcache")
def l2_outage(python: Path, folder: Path) -> Outcome:
    """Both masters are stopped for a while: misses, no call far over its timeout, and everything there afterwards."""
    outcome = Outcome()

    def stop_and_go_on(running: Cluster) -> None:
        log = folder / "lmcache_l2_traffic.log"
        known = len(log.read_text())
        for master in running.masters:
            master.pause()
        wait_until(lambda: "a lookup failed" in log.read_text()[known:], 60, "a lookup is a miss")
        for master in running.masters:
            master.resume()
        running.settle()
        wait_until(lambda: "holdfast is back" in log.read_text()[known:], 60, "the adapter has found the master again")

    with cluster(folder) as running:
        for kind in KINDS:
            given = l2_json(kind, running.address, key_prefix=f"outage-{kind}", timeout_s=2, retry_s=0.2)
            report = story(python, folder, "lmcache_l2_traffic", [given], {}, lambda: stop_and_go_on(running))
            outcome += expect(report, wrong=0, lost=0, failed=0, stored=192)
            outcome.notes.append(f"{kind}: {report['misses']} misses meanwhile, longest call {report['longest_s']} s")
    return outcome


@suite("lmcache: in-process batches through the death of the primary", engine="lmcache")
def in_process(python: Path, folder: Path) -> Outcome:
    outcome = Outcome()
    with cluster(folder) as running:
        for with_metadata in (True, False):
            for url in (True, False):
                with running.connect() as cache:
                    cache.remove_all(force=True)
                config = in_process_config(folder, running.address, with_metadata, url)
                report = story(
                    python,
                    folder,
                    "lmcache_in_process",
                    [],
                    {"LMCACHE_CONFIG_FILE": str(config)},
                    lambda: kill_primary(running),
                )
                outcome += expect(
                    report,
                    before=24,
                    prefix_hits=24,
                    contains=[True, False],
                    after=24,
                    new=24,
                    removed=True,
                    gone=True,
                    problems=[],
                )
    return outcome
