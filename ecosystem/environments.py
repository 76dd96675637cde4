"""Virtual environments of the engines, one each, because their pins exclude one another.

`requirements/NAME.txt` is installed with dependencies, then `requirements/NAME-no-deps.txt` without: packages whose
declared dependencies need a GPU. An environment is named by the hash of these files, so that it is built once and
again when they change. holdfast is not installed in it: programs find the source by PYTHONPATH.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import urllib.parse
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
REQUIREMENTS = ROOT / "ecosystem" / "requirements"
INSTALL_S = 1_800
DOWNLOAD_S = 600


class CannotBeBuilt(Exception):
    """An environment could not be installed; the text has the end of what pip printed."""


def home() -> Path:
    return Path(os.environ.get("ECOSYSTEM_HOME") or ROOT / ".ecosystem")


def python_of(name: str) -> Path:
    """The interpreter of this environment, which is built first if it is not there."""
    files = [path for path in (REQUIREMENTS / f"{name}.txt", REQUIREMENTS / f"{name}-no-deps.txt") if path.exists()]
    if not files:
        raise CannotBeBuilt(f"there is no requirements/{name}.txt")
    digest = hashlib.sha256(b"\0".join(path.read_bytes() for path in files)).hexdigest()[:12]
    folder = home() / f"{name}-{digest}"
    python = folder / "bin" / "python"
    home().mkdir(parents=True, exist_ok=True)
    with (home() / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            _build(folder, python, files)
    return python


def _build(folder: Path, python: Path, files: list[Path]) -> None:
    print(f"building {folder.name}; this takes minutes, once", file=sys.stderr, flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    _run([sys.executable, "-m", "venv", str(folder)])
    for path in files:
        alone = ["--no-deps"] if path.stem.endswith("-no-deps") else []
        _run([str(python), "-m", "pip", "install", "--quiet", *alone, "--requirement", str(path)])
    _run([str(python), "-m", "pip", "install", "--quiet", "msgspec>=0.19", "xxhash>=3.4"])
    (folder / "complete").touch()


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S, check=False)
    if done.returncode != 0:
        raise CannotBeBuilt(f"{' '.join(command[1:])} failed:\n{(done.stdout + done.stderr)[-2000:]}")


def variables(**more: str) -> dict[str, str]:
    """The environment of a program that runs inside one: it finds holdfast and the programs of this folder."""
    paths = [str(ROOT / "src"), str(ROOT)]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST_", "MOONCAKE_"))}
    return {**kept, "PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1", **more}


def source_archive(name: str, version: str, folder: Path) -> Path:
    """The unpacked source of a release, fetched from the package index without building it, as `pip download` would."""
    unpacked = folder / f"{name}-{version}"
    if unpacked.exists():
        return unpacked
    index = _index()
    with urllib.request.urlopen(f"{index}/{name}/", timeout=60) as answer:
        page = answer.read().decode()
    links = {file.strip(): link for link, file in re.findall(r'href="([^"]+)"[^>]*>([^<]+)<', page)}
    link = links.get(f"{name}-{version}.tar.gz")
    if link is None:
        raise CannotBeBuilt(f"the package index has no source archive of {name} {version}")
    address, _, fragment = urllib.parse.urljoin(f"{index}/{name}/", link).partition("#")
    archive = folder / f"{name}-{version}.tar.gz"
    folder.mkdir(parents=True, exist_ok=True)
    with urllib.request.urlopen(address, timeout=DOWNLOAD_S) as answer:
        content = answer.read()
    if fragment.startswith("sha256=") and hashlib.sha256(content).hexdigest() != fragment[len("sha256=") :]:
        raise CannotBeBuilt(f"{archive.name} is not what the package index says it is")
    archive.write_bytes(content)
    # By a program: tarfile's filter came with Python 3.11.4, and Debian 12 has 3.11.2.
    subprocess.run(["tar", "--extract", "--file", str(archive), "--directory", str(folder)], check=True)
    return unpacked


def _index() -> str:
    """The package index that pip is set up with."""
    configured = subprocess.run(
        [sys.executable, "-m", "pip", "config", "get", "global.index-url"], capture_output=True, text=True, check=False
    ).stdout.strip()
    asked = "from pip._internal.models.index import PyPI; print(PyPI.simple_url)"
    found = os.environ.get("PIP_INDEX_URL") or configured
    return (found or subprocess.check_output([sys.executable, "-c", asked], text=True).strip()).rstrip("/")
