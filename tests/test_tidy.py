"""The code stays readable by being checked: lengths, names, imports, and what may not appear at all."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted((ROOT / "src").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
BENCHMARKS = sorted(path for folder in ("benchmarks", "chaos", "ecosystem") for path in (ROOT / folder).rglob("*.py"))
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
MOST_LINES = 600
MOST_FUNCTION_LINES = 50
MOST_FILES = 14
"""In one folder."""
BANNED_WORDS = {"manager", "helper", "helpers", "util", "utils", "base", "common", "misc"}
IMPURE = {"asyncio", "time", "random", "socket", "os", "logging", "threading", "structlog", "secrets", "datetime"}
ABSOLUTE_PATH = re.compile(r"(?<![\w.~$])/(?:work|root|home|Users|mnt)/[\w.]")


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def found_in(paths: list[Path], find: Callable[[Path], object]) -> dict[str, object]:
    """What is wrong, by file. One test looks at all files: one for each would be half of all tests there are."""
    return {str(path.relative_to(ROOT)): found for path in paths if (found := find(path))}


def definitions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node


def words_of(name: str) -> set[str]:
    apart = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    return {word.lower() for word in re.split(r"[^A-Za-z]+", apart) if word}


def imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def sleeps_outside_a_poll(tree: ast.AST) -> list[int]:
    allowed: set[ast.AST] = set()
    for node in definitions(tree):
        if isinstance(node, ast.FunctionDef) and node.name == "wait_until":
            allowed.update(ast.walk(node))
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "time.sleep" and node not in allowed
    ]


def test_there_is_something_to_check() -> None:
    assert len(SOURCES) > 10
    assert len(TESTS) > 3


def test_a_file_is_short() -> None:
    def lines_over(path: Path) -> int:
        lines = len(path.read_text().splitlines())
        return lines if lines >= MOST_LINES else 0

    assert found_in(SOURCES + TESTS + BENCHMARKS, lines_over) == {}, "split them by behaviour"


def long_functions(path: Path) -> list[str]:
    return [
        f"{node.name} ({node.end_lineno - node.lineno + 1} lines)"
        for node in definitions(parsed(path))
        if not isinstance(node, ast.ClassDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno + 1 >= MOST_FUNCTION_LINES
    ]


def test_a_function_is_short() -> None:
    assert found_in(SOURCES, long_functions) == {}


def test_a_module_says_what_it_is() -> None:
    def says_nothing(path: Path) -> bool:
        return path.stat().st_size > 0 and not ast.get_docstring(parsed(path))

    assert found_in(SOURCES + TESTS, says_nothing) == {}, "a module opens with what it is and why it exists"


def hollow_names(path: Path) -> list[str]:
    classes = [node.name for node in definitions(parsed(path)) if isinstance(node, ast.ClassDef)]
    return [name for name in [path.stem, *classes] if words_of(name) & BANNED_WORDS]


def test_names_say_something() -> None:
    assert found_in(SOURCES, hollow_names) == {}, "these words fit anything; say what it does"


def test_a_module_is_named_by_a_noun() -> None:
    """Nobody searches for `filling` or `keeping`: a module has the name of the thing that it is about."""
    assert found_in(SOURCES, lambda path: path.stem.endswith("ing")) == {}


def test_a_folder_can_be_taken_in_at_a_glance() -> None:
    files = Counter(path.parent for path in SOURCES)
    crowded = {str(folder.relative_to(ROOT)): count for folder, count in files.items() if count > MOST_FILES}
    assert not crowded, "group them by what they are about"


@pytest.mark.parametrize("package", ["core", "node", "client", "master", "cli"])
def test_tests_lie_in_the_rooms_of_what_they_are_about(package: str) -> None:
    """`core/objects/puts.py` is tested by `tests/core/objects/test_puts.py`; tests of more than one lie above them."""
    rooms = {path.parent.relative_to(ROOT / "tests") for path in (ROOT / "tests" / package).rglob("test_*.py")}
    assert [str(room) for room in rooms if not (ROOT / "src" / "holdfast" / room).is_dir()] == []
    assert len(rooms) > 1
    astray = []
    for path in (ROOT / "tests" / package).rglob("test_*.py"):
        named = path.name.removeprefix("test_")
        found = [one.parent.relative_to(ROOT / "src" / "holdfast") for one in SOURCES if one.name == named]
        here = path.parent.relative_to(ROOT / "tests")
        astray += [str(path.relative_to(ROOT)) for room in found if room.parts[0] == package and here not in found]
    assert astray == []


def test_no_two_public_classes_share_a_name() -> None:
    places: dict[str, list[str]] = {}
    for path in SOURCES:
        for node in parsed(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    assert not {name: found for name, found in places.items() if len(found) > 1}


def impure_imports(path: Path) -> list[str]:
    names = set(imported(parsed(path)))
    return sorted(name for name in names if name.split(".")[0] in IMPURE or name.startswith("holdfast.instant.now"))


def test_core_reads_no_clock_and_does_no_input_or_output() -> None:
    """I16, and what lets the simulator run this very code: `now` is an argument."""
    core = [path for path in SOURCES if path.is_relative_to(ROOT / "src" / "holdfast" / "core")]
    assert len(core) > 10
    assert found_in(core, impure_imports) == {}


def test_tests_wait_for_conditions_and_never_sleep() -> None:
    assert found_in(TESTS, lambda path: sleeps_outside_a_poll(parsed(path))) == {}, "poll with waiting.wait_until"


def test_pages_name_no_path_of_one_machine() -> None:
    assert found_in(PAGES, lambda path: ABSOLUTE_PATH.findall(path.read_text())) == {}


def test_the_checks_themselves_can_fail() -> None:
    assert found_in([TESTS[0]], lambda path: "wrong") == {str(TESTS[0].relative_to(ROOT)): "wrong"}
    assert words_of("SessionManager") & BANNED_WORDS
    assert not words_of("database") & BANNED_WORDS
    assert set(imported(ast.parse("from time import monotonic"))) == {"time.monotonic"}
    assert sleeps_outside_a_poll(ast.parse("def test():\n    time.sleep(1)")) == [2]
    assert not sleeps_outside_a_poll(ast.parse("def wait_until():\n    time.sleep(1)"))
    assert ABSOLUTE_PATH.search("see /work/x")
    assert not ABSOLUTE_PATH.search("see docs/work/x and https://example.org/home/x")
