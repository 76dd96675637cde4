"""The commands of README, of the first five minutes and of the guides, and which test runs each as it stands there.

A command is a line of an indented block that begins with one of `PROGRAMS`; one with an ellipsis of its own (` ...`)
is no command yet. Most run against the cluster of `test_guides.py`. Those that need machines, addresses or a directory
of their own belong to a scene (`test_guide_scenes.py`), those of a developer to `test_guides_of_development.py`. What
cannot run in a test has a line in `EXCUSED` with the reason.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = [
    "README.md",
    "docs/start.md",
    *sorted(f"docs/guides/{one.name}" for one in (ROOT / "docs/guides").glob("*.md")),
]
PROGRAMS = ("holdfast", ".venv/bin/holdfast", "curl", "make", "python", "pip", "uvx", "kill", "export", "chmod")
EXCUSED = {
    ("README.md", "pip install . && vllm"): "needs a GPU",
    ("README.md", "make check"): "is what runs this test",
    ("docs/guides/simulation.md", "make sim"): "hunts planted bugs for minutes after the seeds, which `run` plays here",
}
PLACES = {
    ("README.md", "make up"): "new user",
    ("README.md", ".venv/bin/holdfast"): "new user",
    ("docs/start.md", "uvx"): "installation",
    ("docs/start.md", ""): "new user",
    ("docs/guides/events.md", "pip install"): "installation",
    ("docs/guides/events.md", ""): "events",
    ("docs/guides/operating.md", "export HOLDFAST_TOKEN"): "several machines",
    ("docs/guides/operating.md", "holdfast master --listen"): "several machines",
    ("docs/guides/operating.md", "holdfast node --address etcd"): "several machines",
    ("docs/guides/operating.md", "holdfast config check"): "several machines",
    ("docs/guides/operating.md", "curl -H"): "several machines",
    ("docs/guides/recovery.md", "holdfast restore"): "several machines",
    ("docs/guides/operating.md", "holdfast token"): "identities",
    ("docs/guides/operating.md", "chmod"): "identities",
    ("docs/guides/operating.md", "holdfast clients"): "identities",
    ("docs/guides/operating.md", "holdfast status --token-file"): "identities",
    ("docs/guides/tenants.md", "curl"): "identities",
    ("docs/guides/tls.md", ""): "identities",
    ("docs/guides/chaos.md", ""): "development",
    ("docs/guides/simulation.md", ""): "development",
    ("docs/guides/tuning.md", "python -m benchmarks"): "development",
}
"""Where a command runs that does not run against the cluster of `test_guides.py`, by its page and its beginning."""
CLUSTER = "cluster"


class Command(NamedTuple):
    page: str
    text: str

    @property
    def reason(self) -> str:
        """Why it cannot run in a test; empty if it does."""
        return self._entry_of(EXCUSED)

    @property
    def place(self) -> str:
        """Where it runs."""
        return self._entry_of(PLACES) or CLUSTER

    def _entry_of(self, table: dict[tuple[str, str], str]) -> str:
        return next((found for key, found in table.items() if self.matches(*key)), "")

    def matches(self, page: str, start: str) -> bool:
        return self.page == page and self.text.startswith(start)


def commands_of(page: str) -> Iterator[Command]:
    text = re.sub(r"^```.*?^```", "", (ROOT / page).read_text(), flags=re.MULTILINE | re.DOTALL)
    for found in re.finditer(r"^ {4}(\S(?:.*\\\n)*.*)$", text, re.MULTILINE):
        line = re.sub(r"\s*\\\n\s*", " ", found[1])
        if line.split()[0] in PROGRAMS and " ..." not in line:
            yield Command(page, line)


COMMANDS = [command for page in PAGES for command in commands_of(page)]


def commands_at(place: str) -> list[Command]:
    """The commands that run there, in the order of the pages."""
    return [command for command in COMMANDS if command.place == place and not command.reason]


class Script:
    """The commands of a place, each to be taken once: what is left at the end was not run."""

    def __init__(self, place: str) -> None:
        self._left = commands_at(place)
        assert self._left, f"no command runs at {place!r}"

    def take(self, page: str, start: str) -> str:
        """The next command of the page that begins like this."""
        found = next((one for one in self._left if one.matches(page, start)), None)
        assert found is not None, f"{page} has no further command that begins with {start!r}"
        self._left.remove(found)
        return found.text

    def take_all(self, page: str, start: str = "") -> list[str]:
        texts = [one.text for one in self._left if one.matches(page, start)]
        assert texts, f"{page} has no command that begins with {start!r}"
        return [self.take(page, start) for _ in texts]

    def check_all_were_run(self) -> None:
        assert not self._left, f"not run: {self._left}"


def make_reader(place: Path) -> None:
    """A directory as a checkout looks to a reader, with `holdfast` in its `bin`."""
    (place / "bin").mkdir(parents=True)
    shutil.copy(ROOT / "README.md", place)
    shutil.copytree(ROOT / "examples", place / "examples")
    command = place / "bin" / "holdfast"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m holdfast "$@"\n')
    command.chmod(0o755)
