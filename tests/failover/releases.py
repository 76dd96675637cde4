"""The release before this one, built from the commit that CHANGELOG.md names for it, to run beside this one.

Its wheel is built once per commit and kept, unpacked, in build/releases. A process of that release is one whose
PYTHONPATH begins there; its packages are those of this environment.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

import holdfast

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "build" / "releases"
RELEASE = re.compile(r"^## (\d+\.\d+\.\d+), commit `([0-9a-f]{40})`$", re.MULTILINE)
NEEDED = ("src", "pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "SECURITY.md", ".gitignore")
BUILD_S = 120.0


@dataclass(frozen=True, slots=True)
class Release:
    version: str
    source: str
    """The first entry of its processes' PYTHONPATH."""

    def command(self, *arguments: str) -> list[str]:
        """`-P`: it imports nothing from the directory that it is started in."""
        return [sys.executable, "-P", *arguments]

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": self.source}


THIS = Release(holdfast.__version__, str(Path(holdfast.__file__).parents[1]))


def newest_release() -> tuple[str, str]:
    """Number and commit of the last release that CHANGELOG.md names."""
    version, commit = RELEASE.findall((ROOT / "CHANGELOG.md").read_text())[0]
    return version, commit


def previous_release() -> Release:
    """The last release that CHANGELOG.md names with its commit. Skips where git does not have that commit."""
    version, commit = newest_release()
    place = KEPT / commit
    if not place.is_dir():
        packed = subprocess.run(["git", "archive", commit, *NEEDED], cwd=ROOT, capture_output=True)
        if packed.returncode:
            pytest.skip(f"release {version} cannot be built, its commit is not in this clone: {packed.stderr.decode()}")
        _build(packed.stdout, place)
    return Release(version, str(place))


def _build(archive: bytes, place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent) as folder:
        # By a program: tarfile's filter, which later Pythons insist on, came with 3.11.4, and Debian 12 has 3.11.2.
        Path(folder, "sources").mkdir()
        subprocess.run(["tar", "--extract", "--directory", f"{folder}/sources"], input=archive, check=True)
        command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", f"{folder}/wheel"]
        done = subprocess.run(command, cwd=f"{folder}/sources", capture_output=True, text=True, timeout=BUILD_S)
        assert done.returncode == 0, done.stderr
        [wheel] = Path(folder, "wheel").glob("*.whl")
        with zipfile.ZipFile(wheel) as packed:
            packed.extractall(f"{folder}/unpacked")
        keep(Path(folder, "unpacked"), place)


def keep(unpacked: Path, place: Path) -> None:
    """Move it there, unless another process of these tests was faster."""
    try:
        unpacked.rename(place)
    except OSError:
        if not place.is_dir():
            raise


def release_after(folder: Path) -> Release:
    """The release after this one, which has changed a record: this one's sources with two rows of the table altered."""
    place = folder / "next"
    shutil.copytree(THIS.source, place, ignore=shutil.ignore_patterns("__pycache__"))
    for path, old, new in (
        ("holdfast/messages/log_versions.py", "\nLOG_VERSION = 3\n", "\nLOG_VERSION = 4\n"),
        (
            "holdfast/messages/log_versions.py",
            "\nNEW_RECORDS: dict[type[Record], int] = {",
            "\nfrom holdfast.messages.records import ClientsRevoked\nNEW_RECORDS = {ClientsRevoked: 4, ",
        ),
        ("holdfast/__init__.py", f'__version__ = "{THIS.version}"', '__version__ = "9.9.9"'),
    ):
        text = (place / path).read_text()
        assert text.count(old) == 1, old
        (place / path).write_text(text.replace(old, new))
    return Release("9.9.9", str(place))
