"""Pages name modules, functions, tests and our own words: each of them exists, or the page has grown stale.

A module is named as `core/x.py` (relative to src/holdfast), `src/holdfast/core/x.py` or `holdfast.core.x`, a function
or class in it as `core/x.py:name` or `core/x.py:Class.name`, a test as `tests/path.py::test_name`. Names without a path
are checked in the tables of words of docs/requirements.md, where they stand beside theirs.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "requirements.md"
ARCHITECTURE = ROOT / "ARCHITECTURE.md"
FAST_PATHS = ROOT / "docs" / "fast-paths.md"
PAGES = (
    PAGE,
    ARCHITECTURE,
    FAST_PATHS,
    ROOT / "CONTRIBUTING.md",
    ROOT / "docs" / "glossary.md",
    ROOT / "docs" / "guides" / "chaos.md",
    ROOT / "docs" / "guides" / "simulation.md",
)
PACKAGE = ROOT / "src" / "holdfast"
SPAN = re.compile(r"`([^`\n]+)`")
TEST = re.compile(r"(tests/[\w/]+\.py)::(\w+)")
MODULE = re.compile(r"[\w/]+\.py")
DEFINITION = re.compile(r"([\w/]+\.py):([A-Za-z_][\w.]*)")
FOLDER = re.compile(r"(?!/)[\w/]+/")
DOTTED = re.compile(r"holdfast(\.[a-z]\w*)+")
LINK = re.compile(r"\]\(([^)#:]+\.md)(?:#[^)]*)?\)")
ANCHOR = re.compile(r"\]\(#([^)]+)\)")
FROM_ROOT = {"tests", "src", "benchmarks", "examples", "chaos", "ecosystem", "docs"}


@cache
def functions_of(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text())
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


@cache
def definitions_of(path: Path) -> frozenset[str]:
    """Functions, classes, and methods as `Class.name`."""
    names: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            methods = [each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
            names.update(f"{node.name}.{method.name}" for method in methods)
    return frozenset(names)


@cache
def source_words() -> frozenset[str]:
    words: set[str] = set()
    for path in PACKAGE.rglob("*.py"):
        words.update(re.findall(r"\w+", path.read_text()))
    return frozenset(words)


def place_of(path: str) -> Path:
    return (ROOT if path.split("/", maxsplit=1)[0] in FROM_ROOT else PACKAGE) / path


def is_there(span: str) -> bool:
    """True also for a span that names no module, definition or test."""
    if "::" in span and span.startswith("tests/"):
        found = TEST.fullmatch(span)
        return found is not None and (ROOT / found[1]).is_file() and found[2] in functions_of(ROOT / found[1])
    if MODULE.fullmatch(span):
        return place_of(span).is_file()
    if (found := DEFINITION.fullmatch(span)) is not None:
        return place_of(found[1]).is_file() and found[2] in definitions_of(place_of(found[1]))
    if FOLDER.fullmatch(span):
        return place_of(span).is_dir()
    if DOTTED.fullmatch(span):
        module = PACKAGE.parent / span.replace(".", "/")
        return module.with_suffix(".py").is_file() or (module / "__init__.py").is_file()
    return True


def stale_names(page: str) -> list[str]:
    return [span for span in SPAN.findall(page) if not is_there(span)]


def stale_words(page: str) -> list[str]:
    """Our words in the tables `theirs | ours | where` that the source does not hold."""
    stale: list[str] = []
    in_table = False
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        in_table = cells[1:4] == ["theirs", "ours", "where"] or (in_table and line.startswith("|"))
        if not in_table:
            continue
        for span in SPAN.findall(cells[2]):
            if re.fullmatch(r"[A-Za-z_][\w.]*", span):
                stale += [span for word in span.split(".") if word not in source_words()]
    return stale


def stale_links(page: str) -> list[str]:
    headings = {re.sub(r"[^\w\- ]", "", line.lstrip("# ").lower()).replace(" ", "-") for line in page.splitlines()
                if line.startswith("#")}  # fmt: skip
    files = [link for link in LINK.findall(page) if not (PAGE.parent / link).is_file()]
    return files + [anchor for anchor in ANCHOR.findall(page) if anchor not in headings]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_module_and_test_of_the_page_exists(page: Path) -> None:
    assert stale_names(page.read_text()) == []


def test_every_word_of_ours_is_in_the_source() -> None:
    assert stale_words(PAGE.read_text()) == []


def test_every_link_of_the_page_leads_somewhere() -> None:
    assert stale_links(PAGE.read_text()) == []


def test_the_page_names_much() -> None:
    """So that the checks above cannot pass by finding nothing."""
    spans = SPAN.findall(PAGE.read_text())
    assert sum(span.startswith("tests/") and "::" in span for span in spans) > 80
    assert sum(MODULE.fullmatch(span) is not None for span in spans) > 100
    flows = SPAN.findall(ARCHITECTURE.read_text())
    assert sum(bool(MODULE.fullmatch(span) or DEFINITION.fullmatch(span)) for span in flows) > 100
    pairs = SPAN.findall(FAST_PATHS.read_text())
    assert sum(DEFINITION.fullmatch(span) is not None for span in pairs) > 60
    assert sum(TEST.fullmatch(span) is not None for span in pairs) > 25


def test_the_checks_themselves_can_fail() -> None:
    here = "tests/test_requirements.py"
    assert (
        stale_names(f"`{here}::test_the_page_names_much` `{here}` `core/state/apply.py` `src/holdfast/errors.py`") == []
    )
    assert stale_names("`holdfast.core.state.apply` `holdfast.session` `session/` `put` `Standing.EXPIRED`") == []
    assert stale_names("`settings.py` `core/state/apply.py:apply` `client/cache.py:Cache.get`") == []
    for wrong in (
        f"{here}::test_that_nobody_wrote",
        "tests/test_of_nothing.py::test_x",
        f"{here}::",
        "core/nothing.py",
        "apply.py",
        "core/state/apply.py:nothing",
        "core/nothing.py:apply",
        "client/cache.py:View.get",
        "src/holdfast/core/nothing.py",
        "holdfast.core.nothing",
        "nowhere/",
    ):
        assert stale_names(f"see `{wrong}`, or not") == [wrong]
    table = "| theirs | ours | where |\n| --- | --- | --- |\n| PutEnd | `CommitPuts`, `{}` | `core/objects/puts.py` |\n"
    assert stale_words(table.format("ObjectsCommitted")) == []
    assert stale_words(table.format("Nonesuch" + "Record")) == ["NonesuchRecord"]
    assert stale_links("# A b\n[x](#a-b) [y](glossary.md)") == []
    assert stale_links("[x](#c) [y](nothing.md#z)") == ["nothing.md", "c"]
