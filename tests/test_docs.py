"""The site is built with broken links as errors, and its pages name promises, tests and commands that exist."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from benchmarks.__main__ import THEMES
from holdfast import errors
from holdfast.cli.app import VERBS
from holdfast.settings import MODELS, flag_of
from tests.test_requirements import stale_names

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PROMISES = (DOCS / "promises.md").read_text()
NEW = ("start", "concepts", "comparison", "promises", "upgrades", "troubleshooting")
PROMISE = re.compile(r"\bI(\d+)\b")
BENCHMARK = re.compile(r"-m benchmarks(?: --[a-z]+)*? --only ([a-z-]+)")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if importlib.util.find_spec("mkdocs") is None:
        pytest.skip("mkdocs is not installed here; make check installs it")
    place = tmp_path_factory.mktemp("site")
    done = build(ROOT / "mkdocs.yml", place)
    assert done.returncode == 0, done.stdout + done.stderr
    return place


def build(config: Path, place: Path) -> subprocess.CompletedProcess[str]:
    """As `make docs` does it. Not with --quiet, which also hides warnings from --strict."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(config), "--site-dir", str(place)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110)


@pytest.mark.parametrize("link", ["nowhere.md", "index.md#nothing", "../../outside.md"])
def test_a_broken_link_is_an_error(tmp_path: Path, link: str) -> None:
    """With the rules of the real site."""
    pytest.importorskip("mkdocs", reason="mkdocs is not installed here; make check installs it")
    (tmp_path / "docs").mkdir()
    page = tmp_path / "docs" / "index.md"
    page.write_text("# A page\n")
    config = tmp_path / "mkdocs.yml"
    rules = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["validation"]
    config.write_text(yaml.safe_dump({"site_name": "small", "validation": rules}))
    assert build(config, tmp_path / "good").returncode == 0
    page.write_text(f"# A page\n\n[a link]({link})\n")
    done = build(config, tmp_path / "bad")
    assert done.returncode != 0
    assert link in done.stderr


def test_the_site_is_built_without_a_broken_link_and_loads_nothing_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 80
    loaded = re.compile(r"<(?:script|link|img)[^>]+(?:src|href)=[\"']?(https?://[^\"'\s>]+)")
    found = {url for page in pages for url in loaded.findall(page.read_text())}
    assert not {url for url in found if not url.startswith("https://holdfast.example/")}


def test_references_have_all_that_is_declared(site: Path) -> None:
    def page(name: str) -> str:
        return re.sub(r"<[^>]+>", "", (site / "reference" / name / "index.html").read_text())

    assert not [verb for verb in VERBS if f"holdfast {verb}" not in page("cli")]
    settings = page("settings")
    assert not [name for model in MODELS.values() for name in model.model_fields if flag_of(name) not in settings]
    codes = {one.code for one in vars(errors).values() if isinstance(one, type) and issubclass(one, errors.Refused)}
    assert len(codes) > 10
    assert not [code for code in codes if code not in page("errors")]
    assert "holdfast_parked_puts" in page("metrics")
    assert "holdfast_tenant_limit_bytes" in page("metrics")
    assert "holdfast_node_tcp_bytes_total" in page("metrics")
    assert "GET /api/v1/sessions" in page("http")
    assert "Cache.put_many" in page("python")


def test_every_promise_is_on_the_page_with_tests_that_exist() -> None:
    assert re.findall(r"^### I(\d+)$", PROMISES, re.MULTILINE) == [str(number) for number in range(1, 21)]
    assert stale_names(PROMISES) == []
    for part in re.split(r"^### ", PROMISES, flags=re.MULTILINE)[1:]:
        assert re.search(r"`tests/[\w/]+\.py::test_\w+`", part), part.split("\n", maxsplit=1)[0]


def test_the_promises_are_watched_by_checkers_where_the_page_says_so() -> None:
    checked = set()
    for path in (ROOT / "src" / "holdfast" / "simulation").rglob("*.py"):
        checked.update(re.findall(r'"I(\d+)"', path.read_text()))
    parts = re.split(r"^### I", PROMISES, flags=re.MULTILINE)[1:]
    said = {
        part.split("\n", maxsplit=1)[0] for part in parts if "Watched by a checker in every simulated world" in part
    }
    assert said == checked


@pytest.mark.parametrize("name", NEW)
def test_commands_and_flags_of_the_new_pages_exist(name: str) -> None:
    text = (DOCS / f"{name}.md").read_text()
    verbs = set(re.findall(r"(?:`|bin/)holdfast ([a-z]+)\b", text))
    assert verbs <= VERBS.keys()
    flags = {flag_of(field) for model in MODELS.values() for field in model.model_fields} | {"--json", "--version"}
    # Options of the commands themselves.
    flags |= {"--engine", "--picture"}
    assert set(re.findall(r"`(--[a-z-]+)", text)) <= flags
    named = set(re.findall(r"`([A-Z][a-z]+[A-Z][A-Za-z]+)`", text))
    assert {one for one in named if not hasattr(errors, one)} == set()


def test_benchmarks_that_pages_name_exist() -> None:
    pages = [*DOCS.rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    named = {name for page in pages for name in BENCHMARK.findall(page.read_text())}
    assert len(named) > 15
    assert named <= set(THEMES)


def test_every_page_is_in_the_navigation() -> None:
    # The site itself warns of a page without a place, which is an error; this says so without building it.
    text = (ROOT / "mkdocs.yml").read_text()
    listed = set(re.findall(r": ([\w/-]+\.md)$", text, re.MULTILINE))
    pages = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md") if path.parent.name != "adr"}
    assert pages <= listed
    assert yaml.safe_load(text)["validation"]["links"]["not_found"] == "warn"
