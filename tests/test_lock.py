"""The lock file of development fits the bounds of pyproject.toml, and names no place that packages come from."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
LOCK = (ROOT / "requirements" / "dev.lock").read_text()
LOCKED = {canonicalize_name(name): version for name, version in re.findall(r"^([\w.-]+)==([\w.]+)", LOCK, re.MULTILINE)}


def wanted() -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    lists = [
        project["dependencies"],
        *(extras[name] for name in ("server", "etcd", "zookeeper", "s3", "lab", "events", "otel", "dev")),
    ]
    return [Requirement(text) for one in lists for text in one]


def test_everything_that_is_asked_for_is_locked_within_its_bounds() -> None:
    assert len(wanted()) > 30
    wrong = [str(one) for one in wanted() if not one.specifier.contains(LOCKED.get(canonicalize_name(one.name), "0"))]
    assert not wrong, "run `make lock`"


def test_the_lock_names_no_host_and_no_path() -> None:
    assert not re.search(r"://|--|\bfile:", LOCK)


def test_every_line_of_the_lock_is_one_version_of_one_package() -> None:
    """No URL, path or option of the machine that wrote it."""
    lines = [line for line in LOCK.splitlines() if line and not line.lstrip().startswith("#")]
    assert len(lines) > 50
    assert not [line for line in lines if not re.fullmatch(r"[a-z0-9][a-z0-9._-]*==[0-9][a-z0-9.]*", line)]


def test_whatever_a_locked_package_needs_is_locked_within_its_bounds() -> None:
    """As far as it is installed here, in the locked version."""
    looked_at, wrong = 0, []
    for found in distributions():
        name = canonicalize_name(found.name)
        if LOCKED.get(name) != found.version:
            continue
        looked_at += 1
        for needed in map(Requirement, found.requires or ()):
            if needed.marker is not None and not needed.marker.evaluate({"extra": ""}):
                continue
            if not needed.specifier.contains(LOCKED.get(canonicalize_name(needed.name), "0"), prereleases=True):
                wrong.append(f"{name} needs {needed}")
    assert looked_at > 20
    assert not wrong, "run `make lock`"
