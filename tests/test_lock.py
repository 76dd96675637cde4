"""The lock file of development fits the bounds of pyproject.toml, and names no place that packages come from."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
LOCK = (ROOT / "requirements" / "dev.lock").read_text()


def wanted() -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    lists = [
        project["dependencies"],
        *(extras[name] for name in ("server", "etcd", "zookeeper", "s3", "lab", "events", "otel", "dev")),
    ]
    return [Requirement(text) for one in lists for text in one]


def test_everything_that_is_asked_for_is_locked_within_its_bounds() -> None:
    locked = {
        canonicalize_name(name): version for name, version in re.findall(r"^([\w.-]+)==([\w.]+)", LOCK, re.MULTILINE)
    }
    assert len(wanted()) > 30
    wrong = [str(one) for one in wanted() if not one.specifier.contains(locked.get(canonicalize_name(one.name), "0"))]
    assert not wrong, "run `make lock`"


def test_the_lock_names_no_host_and_no_path() -> None:
    assert not re.search(r"://|--|\bfile:", LOCK)


def test_every_line_of_the_lock_is_one_version_of_one_package() -> None:
    """No URL, path or option of the machine that wrote it."""
    lines = [line for line in LOCK.splitlines() if line and not line.lstrip().startswith("#")]
    assert len(lines) > 50
    assert not [line for line in lines if not re.fullmatch(r"[a-z0-9][a-z0-9._-]*==[0-9][a-z0-9.]*", line)]
