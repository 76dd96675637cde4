"""Memory and disk space that a machine can still give, by its own figures and its control groups'."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.errors import Refused
from holdfast.node.host_capacity import available_memory, check_disk, check_memory, memory_to_lend
from holdfast.node.memory.lent_memory import Lending, LentMemory

GIB = 1 << 30


def machine(root: Path, files: dict[str, str]) -> Path:
    for name, text in {"proc/meminfo": "MemTotal: 9 kB\nMemAvailable:    8388608 kB\n", **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


V2 = {
    "proc/self/cgroup": "0::/pods/one\n",
    "sys/fs/cgroup/pods/one/memory.max": f"{6 * GIB}\n",
    "sys/fs/cgroup/pods/one/memory.current": f"{3 * GIB}\n",
    "sys/fs/cgroup/pods/one/memory.stat": f"anon 5\ninactive_file {GIB}\n",
}
V1 = {
    "proc/self/cgroup": "5:cpu:/other\n4:memory:/pods/one\n",
    "sys/fs/cgroup/memory/pods/one/memory.limit_in_bytes": f"{6 * GIB}\n",
    "sys/fs/cgroup/memory/pods/one/memory.usage_in_bytes": f"{3 * GIB}\n",
    "sys/fs/cgroup/memory/pods/one/memory.stat": f"inactive_file 7\ntotal_inactive_file {GIB}\n",
}
PARENT_V2 = {**V2, "sys/fs/cgroup/pods/memory.max": f"{GIB}\n", "sys/fs/cgroup/pods/memory.current": "0\n"}
NO_LIMIT_V2 = {**V2, "sys/fs/cgroup/pods/one/memory.max": "max\n"}
NO_LIMIT_V1 = {**V1, "sys/fs/cgroup/memory/pods/one/memory.limit_in_bytes": "9223372036854771712\n"}
CONTAINER = {
    "proc/self/cgroup": "0::/not/seen/from/inside\n",
    "sys/fs/cgroup/memory.max": f"{2 * GIB}\n",
    "sys/fs/cgroup/memory.current": "0\n",
}


@pytest.mark.parametrize(
    ("files", "available"),
    [
        ({}, 8 * GIB),
        (V2, 4 * GIB),
        (V1, 4 * GIB),
        (PARENT_V2, GIB),
        (NO_LIMIT_V2, 8 * GIB),
        (NO_LIMIT_V1, 8 * GIB),
        (CONTAINER, 2 * GIB),
        ({"proc/meminfo": "MemTotal: 5 kB\n"}, None),
    ],
    ids=["machine", "v2", "v1", "a parent's limit", "v2 without limit", "v1 without limit", "container", "unknown"],
)
def test_the_tightest_limit_counts(tmp_path: Path, files: dict[str, str], available: int | None) -> None:
    assert available_memory(machine(tmp_path, files)) == available


def test_this_machine_says_how_much_it_has() -> None:
    assert (available_memory() or 0) > 0


def test_some_memory_stays_for_others_and_the_refusal_has_the_figures() -> None:
    most = memory_to_lend(8 * GIB)
    assert most < 8 * GIB
    check_memory(most, 8 * GIB)
    check_memory(1 << 60, None)
    with pytest.raises(Refused, match=rf"{most + 1:,} bytes .* only {most:,} .* {8 * GIB:,} available.*--force"):
        check_memory(most + 1, 8 * GIB)


def test_a_disk_tier_larger_than_its_file_system_is_refused_with_figures(tmp_path: Path) -> None:
    space = os.statvfs(tmp_path)
    free = space.f_bavail * space.f_frsize
    check_disk(tmp_path, free // 2, 0)
    check_disk(tmp_path, 2 * free, held_bytes=2 * free)
    with pytest.raises(Refused, match=r"disk tier .* free.*--force"):
        check_disk(tmp_path, 1 << 60, 0)


@pytest.mark.parametrize("flags", [["--size", "1TiB"], ["--size", "1MiB", "--disk", "{disk}", "--disk-size", "900TiB"]])
def test_a_node_that_would_take_more_than_there_is_ends_before_it_takes_anything(
    tmp_path: Path, flags: list[str]
) -> None:
    command = [sys.executable, "-m", "holdfast", "node", "--address", "127.0.0.1:1", "--listen", "127.0.0.1:0"]
    filled = [flag.replace("{disk}", str(tmp_path / "disk")) for flag in flags]
    done = subprocess.run([*command, *filled], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "Nothing was taken" in done.stderr
    assert "--force" in done.stderr


def test_memory_that_the_machine_lacks_is_not_added_unless_it_is_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.node.memory.lent_memory.available_memory", lambda: 1 << 20)
    lending = Lending()
    lending.lend(LentMemory.create("n1", 1 << 20, 1))
    try:
        with pytest.raises(Refused, match="--force"):
            lending.grow(4 << 20)
        assert lending.grow(4 << 20, force=True) is not None
    finally:
        lending.withdraw()
