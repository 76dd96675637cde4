"""Packages hold what users install and nothing else; each release has a number, an entry and a commit."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

import holdfast

ROOT = Path(__file__).parents[1]
WORKFLOW = ROOT / ".github" / "workflows" / "release.yml"
RELEASE = re.compile(r"^## (\d+\.\d+\.\d+), commit `([0-9a-f]{40})`$", re.MULTILINE)
TEST = re.compile(r"(^|/)(tests?/|test_|conftest)")
HEADING = re.compile(r"^## (?!Unreleased$)(.+)$", re.MULTILINE)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(place)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=100)
    return place


def wheel_of(built: Path) -> zipfile.ZipFile:
    [path] = built.glob("*.whl")
    return zipfile.ZipFile(path)


def test_the_wheel_is_the_package_and_nothing_else(built: Path) -> None:
    with wheel_of(built) as wheel:
        names = set(wheel.namelist())
    tops = {name.split("/")[0] for name in names}
    assert tops == {"holdfast", f"holdfast-{holdfast.__version__}.dist-info"}
    sources = {f"holdfast/{path.relative_to(ROOT / 'src' / 'holdfast')}" for path in tracked("src/holdfast")}
    assert len(sources) > 200
    assert {name for name in names if name.startswith("holdfast/")} == sources
    assert not [name for name in names if TEST.search(name)]


def test_the_source_distribution_has_the_sources_and_no_tests(built: Path) -> None:
    [path] = built.glob("*.tar.gz")
    with tarfile.open(path) as packed:
        names = {name.split("/", 1)[1] for name in packed.getnames()}
    assert {name.split("/")[0] for name in names} == {
        "src", "README.md", "LICENSE", "CHANGELOG.md", "SECURITY.md", "pyproject.toml", "PKG-INFO", ".gitignore",
    }  # fmt: skip
    assert not [name for name in names if TEST.search(name)]


def test_uvx_and_pipx_find_the_command_by_the_name_of_the_package(built: Path) -> None:
    with wheel_of(built) as wheel:
        about = f"holdfast-{holdfast.__version__}.dist-info"
        assert (
            "[console_scripts]\nholdfast = holdfast.cli.main:main" in wheel.read(f"{about}/entry_points.txt").decode()
        )
        known = Parser().parsestr(wheel.read(f"{about}/METADATA").decode())
    assert known["Author"] or known["Author-email"]
    versions = {text.rsplit(" ", 1)[1] for text in known.get_all("Classifier") if "Python :: 3." in text}
    assert versions == {"3.11", "3.12", "3.13", "3.14"}
    assert len(known.get_all("Project-URL")) == 5


def tracked(folder: str) -> list[Path]:
    """Files that are in git, as far as there is git: a developer's leftovers are no part of a package."""
    listed = git("ls-files", folder)
    return [ROOT / line for line in listed.splitlines() if (ROOT / line).is_file()]


def git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"git does not know: {done.stderr.strip()}")
    return done.stdout


def test_every_release_names_the_commit_that_has_its_number() -> None:
    """The last one may still be without: its commit is known only after it was made."""
    page = (ROOT / "CHANGELOG.md").read_text()
    releases = RELEASE.findall(page)
    assert ("0.1.0", "89c063ff3549c447477c6c61b26b98b82ffca3fd") in releases
    unnamed = [text for text in HEADING.findall(page) if not RELEASE.match(f"## {text}")]
    assert unnamed in ([], [holdfast.__version__])
    for number, commit in releases:
        assert f'__version__ = "{number}"' in git("show", f"{commit}:src/holdfast/__init__.py")


def test_the_release_workflow_is_one_and_names_no_secret() -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows", str(WORKFLOW)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    text = WORKFLOW.read_text()
    assert not re.search(r"secrets\.|password|api[-_]token", text, re.IGNORECASE)
    assert "id-token: write" in text
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"\bmake ([a-z-]+)", text)) <= targets
