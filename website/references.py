"""References as Markdown, from the declarations: Python, command line, settings, metrics, HTTP, errors."""

from __future__ import annotations

import contextlib
import inspect
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, cast
from urllib.request import urlopen

import typer

import holdfast
from holdfast import errors
from holdfast.cli.app import VERBS, app_for
from holdfast.cli.exit_codes import exit_code_of
from holdfast.dashboard.http import build_app
from holdfast.errors import HoldfastError, Refused, TryAgain, Uncertain
from holdfast.master.status.metrics import TENANT_GAUGES
from holdfast.settings import MODELS, flag_of, variable_of
from website import json_schema

STARTED_WITHIN_S = 60.0
SETTINGS = """# Settings

Every setting is a flag, a variable and a key of a TOML file (`--config FILE`), in the table of its process. A flag wins
over the variable, the variable over the file, the file over the default. An unknown key is refused by name."""
METRICS = """# Metrics

Served by every master at `/metrics`, and by nodes that are told where (`--http`), in the text format of Prometheus. A
dashboard for Grafana and alert rules are in [deploy/](../../deploy/README.md).

## Of a master

Figures of the cluster are the primary's."""
OF_NODES = """## Of a node

What passes through the node's process. Bytes in mapped memory do not, and are not counted."""
HTTP = """# HTTP

Served by every master at `--http`. Answers are JSON, but for `/metrics`. Who may ask, and how to show who you are:
[operating](../guides/operating.md#http). The same as OpenAPI: `/api/v1/openapi.json`."""
ERRORS = """# Errors and exit codes

All errors are in `holdfast.errors` and derive from one of three, by what the caller does next. The code travels on the
wire and is in the command line's `--json`. The last column is the exit code of a command that ends with the error."""
COMMANDS = """# Command line

`holdfast VERB --help` shows the same. Flags that are settings are also variables and keys of a file
([settings](settings.md))."""
OF_TABLES = {
    "master": "A master: `holdfast master`.",
    "node": "A node: `holdfast node`.",
    "up": "A whole cluster on one machine: `holdfast up`.",
    "client": "Commands that connect to a cluster.",
    "demo": "`holdfast demo`.",
    "lab": "`holdfast lab`.",
}


def all_pages() -> dict[str, str]:
    return {
        "python": python(),
        "cli": command_line(),
        "settings": settings(),
        "metrics": metrics(),
        "http": http(),
        "errors": all_errors(),
        "json": json_schema.page(),
    }


def table(header: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    return "\n".join([*lines, *("| " + " | ".join(cell(text) for text in row) + " |" for row in rows)])


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def python() -> str:
    parts = ["# Python", "From signatures and docstrings. Errors are listed [apart](errors.md)."]
    parts += [
        described(f"holdfast.{name}", getattr(holdfast, name), "##")
        for name in ("connect", "connect_async", "memory_at")
    ]
    for name in ("Cache", "AsyncCache", "Reservation", "Part"):
        owner = getattr(holdfast, name)
        parts += [f"## holdfast.{name}", inspect.getdoc(owner) or ""]
        for method, found in sorted(vars(owner).items()):
            if (
                not method.startswith("_")
                and inspect.getdoc(found)
                and (callable(found) or isinstance(found, property))
            ):
                parts.append(described(f"{name}.{method}", found, "###"))
    return "\n\n".join(part for part in parts if part) + "\n"


def described(name: str, found: Any, level: str) -> str:
    shown = "" if isinstance(found, property) else str(inspect.signature(found))
    # Annotations are texts. The text of a default that is a nameless object has an address, another one each time.
    shown = re.sub(r" at 0x[0-9a-f]+", "", re.sub(r"(: |-> )'([^']*)'", r"\1\2", shown)).replace("(self, ", "(")
    return f"{level} {name}\n\n```python\n{name}{shown.replace('(self)', '()')}\n```\n\n{inspect.getdoc(found)}"


def command_line() -> str:
    group = cast("Any", typer.main.get_command(app_for([])))
    parts = [COMMANDS]
    for verb, known in VERBS.items():
        command = group.commands[verb]
        arguments = [one for one in command.params if one.param_type_name == "argument"]
        usage = " ".join(["holdfast", verb, *(one.metavar or one.name.upper() for one in arguments)])
        rows = [
            [", ".join(f"`{flag}`" for flag in (*one.opts, *one.secondary_opts)), one.help or ""]
            for one in command.params
            if one.param_type_name == "option"
        ]
        text = inspect.cleandoc(command.help or "")
        parts += [f"## {verb}", f"    {usage}", text, f"`{known.example.removeprefix('Example: ')}`"]
        parts.append(table(["flag", "meaning"], rows))
    return "\n\n".join(parts) + "\n"


def settings() -> str:
    parts = [SETTINGS]
    for name, text in OF_TABLES.items():
        rows = [
            [
                f"`{field}`",
                f"`{flag_of(field)}`",
                f"`{variable_of(field)}`",
                default(info.default),
                info.description or "",
            ]
            for field, info in MODELS[name].model_fields.items()
        ]
        parts += [f"## [{name}]", text, table(["key", "flag", "variable", "default", "meaning"], rows)]
    return "\n\n".join(parts) + "\n"


def default(value: object) -> str:
    return "" if value is None or value == "" else f"`{value}`"


def metrics() -> str:
    """From a real master and a real node: the names, kinds and texts that they show."""
    of_master, of_node = metrics_of_processes()
    tenants = [[f"`holdfast_tenant_{name}`", "gauge", told] for name, told in TENANT_GAUGES.items()]
    tenants += [
        ["`holdfast_tenant_evicted_objects_total`", "counter", "Evicted, by tenant."],
        ["`holdfast_tenant_refused_requests_total`", "counter", "Refused by a quota, by tenant."],
    ]
    of_tenants = table(["name", "kind", "meaning"], sorted(tenants))
    apart = "### Where there are tenants\n\nEach with the label `tenant`."
    return "\n\n".join([METRICS, families(of_master), apart, of_tenants, OF_NODES, families(of_node)]) + "\n"


def families(text: str) -> str:
    """The families in a text of metrics, as a table."""
    kinds = dict(re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE))
    rows = [[f"`{name}`", kinds[name], told] for name, told in re.findall(r"^# HELP (\w+) (.*)$", text, re.MULTILINE)]
    return table(["name", "kind", "meaning"], sorted(rows))


def metrics_of_processes() -> tuple[str, str]:
    """What a master and its node show."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as processes:
        found: dict[str, str] = {}
        address: tuple[str, ...] = ()
        for kind in ("master", "node"):
            ready = Path(folder) / f"{kind}.json"
            local = ("--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--ready-file", str(ready), *address)
            process = subprocess.Popen([sys.executable, "-m", "holdfast", kind, *local, "--log-level", "error"])
            processes.callback(process.wait, 30)
            processes.callback(process.terminate)
            give_up_at = time.monotonic() + STARTED_WITHIN_S
            while not ready.exists():
                if process.poll() is not None or time.monotonic() > give_up_at:
                    raise RuntimeError(f"the {kind} whose metrics are to be listed did not start")
                time.sleep(0.05)
            facts = json.loads(ready.read_text())
            address = ("--address", facts.get("address", ""), "--size", "1MiB")
            with urlopen(f"http://{facts['http']}/metrics", timeout=30) as answer:
                found[kind] = answer.read().decode()
        return found["master"], found["node"]


def http() -> str:
    document = build_app(cast("Any", None), cast("Any", None)).openapi()
    parts = [HTTP]
    for path, methods in document["paths"].items():
        for method, told in methods.items():
            parts += [f"## {method.upper()} {path}", told.get("description") or told.get("summary", "")]
            asked = [[f"`{one['name']}`", one["in"], one.get("description", "")] for one in told.get("parameters", ())]
            parts += [table(["parameter", "in", "meaning"], asked)] if asked else []
            answers = [[code, one.get("description", "")] for code, one in sorted(told["responses"].items())]
            parts.append(table(["status", "meaning"], answers))
    return "\n\n".join(parts) + "\n"


def all_errors() -> str:
    parts = [ERRORS]
    known = [one for one in vars(errors).values() if inspect.isclass(one) and issubclass(one, HoldfastError)]
    for group in (Refused, TryAgain, Uncertain):
        rows = [
            [f"`{one.__name__}`", f"`{one.code}`", inspect.getdoc(one) or "", str(exit_code_of(one()))]
            for one in known
            if issubclass(one, group)
        ]
        parts += [
            f"## {group.__name__}",
            inspect.getdoc(group) or "",
            table(["error", "code", "meaning", "exit"], rows),
        ]
    codes = [
        ["0", "done"],
        ["1", "refused or failed; asking again will not help"],
        ["2", "wrong usage or settings; nothing was started"],
        ["3", "unreachable, or not now: the same command may succeed later"],
        ["4", "no object of this key"],
        ["130", "interrupted"],
        ["141", "whoever read the output has closed it"],
    ]
    parts += ["## Exit codes", table(["code", "meaning"], codes)]
    return "\n\n".join(parts) + "\n"
