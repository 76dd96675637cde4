"""The command lines of holdfast in deploy/: which verb, which flags, which variables."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

DEPLOY = Path(__file__).parents[2] / "deploy"
COMPOSE = DEPLOY / "docker" / "compose.yaml"
CHART = DEPLOY / "helm" / "holdfast"
TEMPLATED = re.compile(r"\{\{.*?\}\}|\$\([A-Z_]+\)")
"""An expression of Helm, or a variable that Kubernetes fills in."""


@dataclass(frozen=True, slots=True)
class Command:
    """One command line, as a file of deploy/ has it."""

    file: str
    words: tuple[str, ...]
    """The verb, its arguments and its flags, without `holdfast`."""
    variables: dict[str, str] = field(default_factory=dict)

    @property
    def verb(self) -> str:
        return self.words[0]

    @property
    def flags(self) -> dict[str, str]:
        """By name; a flag that is followed by another one has an empty value."""
        found: dict[str, str] = {}
        for word, after in zip(self.words, (*self.words[1:], "--"), strict=True):
            if word.startswith("--"):
                name, is_joined, value = word.partition("=")
                found[name] = value if is_joined else "" if after.startswith("--") else after
        return found


def all_commands() -> list[Command]:
    return [*of_units(), *of_compose(), *of_chart(), *of_scripts()]


def of_units() -> list[Command]:
    found = []
    for path in sorted((DEPLOY / "systemd").glob("*.service")):
        [line] = re.findall(r"^ExecStart=(.*)$", path.read_text(), re.MULTILINE)
        program, *words = shlex.split(line)
        assert program.endswith("/holdfast")
        found.append(Command(path.name, tuple(words)))
    return found


def of_compose() -> list[Command]:
    services: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())["services"]
    return [
        Command(f"{COMPOSE.name} {name}", tuple(service["command"]), service["environment"])
        for name, service in services.items()
        if service["image"] == "holdfast"
    ]


def of_chart() -> list[Command]:
    """Arguments and variables as far as they are literal: the templates cannot be rendered without Helm."""
    parts = (CHART / "templates" / "_parts.tpl").read_text()
    tls = dict(re.findall(r"name: (HOLDFAST_\w+), value: (\S+) \}", parts))
    found = []
    for name in ("masters", "nodes"):
        text = (CHART / "templates" / f"{name}.yaml").read_text()
        [block] = re.findall(r"^ +args:\n(.*?)^ +env:\n", text, re.MULTILINE | re.DOTALL)
        words = [TEMPLATED.sub("x", word) for word in re.findall(r"^ +- (.*)$", block, re.MULTILINE)]
        assert '{{- include "holdfast.tls"' in text
        named = dict.fromkeys(re.findall(r"name: (HOLDFAST_\w+)", text), "x")
        found.append(Command(f"chart {name}", tuple(words), {**named, **tls}))
    return found


def of_scripts() -> list[Command]:
    """Commands of shell scripts: from the word `holdfast` to the end of the line, across continued ones."""
    found = []
    for path in (DEPLOY / "slurm" / "holdfast.sbatch", DEPLOY / "docker" / "prepare.sh"):
        text = "\n".join(line for line in path.read_text().splitlines() if not line.lstrip().startswith("#"))
        joined = text.replace("\\\n", " ")
        variables = dict.fromkeys(re.findall(r"(HOLDFAST_\w+)=", joined), "x")
        for line in re.findall(r"\bholdfast ((?:master|node|token) [^;>&\n]*)", joined):
            words = shlex.split(line.rstrip().removesuffix("'"))
            found.append(Command(path.name, tuple(words), variables if words[0] != "token" else {}))
    return found
