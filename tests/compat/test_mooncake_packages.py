"""The two distributions that put holdfast in Mooncake's place: built as wheels, installed in fresh environments."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import msgspec
import pytest

import holdfast

ROOT = Path(__file__).parents[2]
PACKAGES = ROOT / "packages"
WITHIN_S = 110.0

PRINT_WHOSE = "import mooncake.store as s; print(s.MooncakeDistributedStore.__module__)"
PRETEND = "class MooncakeDistributedStore: pass"


def built(name: str, folder: Path) -> Path:
    pytest.importorskip("hatchling", reason="wheels are built by hatchling, which is not installed")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(command, cwd=PACKAGES / name, check=True, capture_output=True, timeout=WITHIN_S)
    (wheel,) = folder.glob("*.whl")
    return wheel


class Environment:
    """A fresh virtual environment without pip. holdfast and what it needs are found where the tests find them."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder, with_pip=False, symlinks=True)
        self.python = folder / "bin" / "python"
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        self.site = folder / "lib" / version / "site-packages"
        libraries = {str(Path(module.__file__ or "").parents[1]) for module in (holdfast, msgspec)}
        (self.site / "holdfast-of-the-tests.pth").write_text("".join(f"{path}\n" for path in libraries))

    def install(self, wheel: Path) -> None:
        with zipfile.ZipFile(wheel) as packed:
            packed.extractall(self.site)

    def run(self, program: str, **variables: str) -> subprocess.CompletedProcess[str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST_", "PYTHON"))}
        return subprocess.run(
            [str(self.python), "-c", program],
            env={**kept, **variables},
            capture_output=True,
            text=True,
            timeout=WITHIN_S,
        )


@pytest.fixture(scope="module")
def hook(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built("holdfast-mooncake-hook", tmp_path_factory.mktemp("hook"))


def test_the_hook_s_wheel_has_the_pth_file_where_python_looks(hook: Path) -> None:
    with zipfile.ZipFile(hook) as packed:
        assert {"holdfast_mooncake_hook.pth", "holdfast_mooncake_hook.py"} <= {*packed.namelist()}


def test_the_hook_gives_holdfast_s_store_only_when_it_is_switched_on(hook: Path, tmp_path: Path) -> None:
    environment = Environment(tmp_path / "env")
    environment.install(hook)
    switched = environment.run(PRINT_WHOSE, HOLDFAST_AS_MOONCAKE="127.0.0.1:1")
    assert (switched.stdout.strip(), switched.returncode) == ("holdfast.compat.mooncake.store", 0), switched.stderr
    off = environment.run(PRINT_WHOSE)
    assert off.returncode != 0
    assert "No module named 'mooncake'" in off.stderr
    more = environment.run(
        "from mooncake.mooncake_config import MooncakeConfig; from mooncake.async_store import *\n"
        "from mooncake.buffer_pool import BufferPool; import mooncake; print(MooncakeDistributedStoreAsync)",
        HOLDFAST_AS_MOONCAKE="on",
    )
    assert more.returncode == 0, more.stderr
    engine = environment.run("import mooncake.engine", HOLDFAST_AS_MOONCAKE="on")
    assert "No module named 'mooncake.engine'" in engine.stderr


def test_the_hook_leaves_the_rest_of_an_installed_mooncake_alone(hook: Path, tmp_path: Path) -> None:
    environment = Environment(tmp_path / "env")
    environment.install(hook)
    package = environment.site / "mooncake"
    package.mkdir()
    (package / "__init__.py").write_text("from mooncake.store import MooncakeDistributedStore\n")
    (package / "store.py").write_text(PRETEND)
    (package / "engine.py").write_text("NAME = 'the real one'")
    (package / "mooncake_config.py").write_text("NAME = 'the real one'")
    asked = (
        "import mooncake, mooncake.engine, mooncake.mooncake_config as c\n"
        "print(mooncake.MooncakeDistributedStore.__module__, mooncake.engine.NAME, c.NAME)"
    )
    switched = environment.run(asked, HOLDFAST_AS_MOONCAKE="on")
    assert switched.stdout.strip() == "holdfast.compat.mooncake.store the real one the real one", switched.stderr
    assert environment.run(asked).stdout.strip() == "mooncake.store the real one the real one"


def test_a_hook_without_holdfast_does_not_keep_python_from_starting(hook: Path, tmp_path: Path) -> None:
    environment = Environment(tmp_path / "env")
    environment.install(hook)
    (environment.site / "holdfast-of-the-tests.pth").unlink()
    done = environment.run("print('started')", HOLDFAST_AS_MOONCAKE="on")
    assert done.stdout.strip() == "started"
    assert "holdfast cannot be imported" in done.stderr


def test_the_shim_is_a_mooncake_of_its_own(tmp_path: Path) -> None:
    environment = Environment(tmp_path / "env")
    environment.install(built("mooncake-shim", tmp_path / "wheel"))
    done = environment.run(
        f"{PRINT_WHOSE}\nfrom mooncake.mooncake_config import MooncakeConfig\nfrom mooncake import BufferPool\n"
        "from mooncake.async_store import MooncakeDistributedStoreAsync\nprint(s.ReplicateConfig().replica_num)"
    )
    assert done.stdout.split() == ["holdfast.compat.mooncake.store", "1"], done.stderr


def test_the_site_directory_is_the_one_that_python_uses() -> None:
    """Or the environments above would look elsewhere."""
    assert sysconfig.get_path("purelib").endswith("site-packages")
