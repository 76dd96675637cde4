"""What deploy/ holds is right as far as it can be checked without an engine or a cluster of Kubernetes.

Every flag and variable exists, every listener beyond loopback has identities and TLS (ADR 49), no secret is among the
arguments, units pass systemd's own checks, the Dockerfile a linter, the compose file its schema. `test_chart`
has the chart.
The command lines of the compose file are run, with the secrets of its own script.
"""

from __future__ import annotations

import os
import re
import shutil
import ssl
import subprocess
import sys
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
import typer
import yaml

import holdfast
from holdfast.cli.app import VERBS, app_for
from holdfast.exposure import is_loopback
from holdfast.settings import MODELS, MasterSettings, NodeSettings, Settings, read_file, variable_of
from tests.deploy.commands import CHART, COMPOSE, DEPLOY, Command, all_commands, of_compose
from tests.ports import free_ports
from tests.waiting import wait_until

ROOT = DEPLOY.parent
COMMANDS = all_commands()
SERVERS = [one for one in COMMANDS if one.verb in ("master", "node")]
SECRET = re.compile(r"--(token|password)$|^HOLDFAST_(TOKEN|COORDINATION_PASSWORD)$")
MOST_EXPOSED = 2.0
"""Of systemd's rating from 0 to 10; below it calls a unit OK."""


def named(commands: list[Command]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("command", commands, ids=lambda one: f"{one.file}: {' '.join(one.words[:3])}")


def flags_of(verb: str) -> set[str]:
    group = typer.main.get_command(app_for([verb]))
    parameters = group.commands[verb].params  # type: ignore[attr-defined]
    return {flag for parameter in parameters for flag in (*parameter.opts, *parameter.secondary_opts)}


def settings_of(command: Command) -> dict[str, str]:
    """Fields of its settings, from flags, variables and the file that it names."""
    model = MODELS[command.verb]
    found = {name: value for name in model.model_fields if (value := command.variables.get(variable_of(name)))}
    found |= {flag[2:].replace("-", "_"): value for flag, value in command.flags.items() if flag != "--config"}
    if (config := command.flags.get("--config")) is not None:
        found = {**read_file(DEPLOY / "systemd" / Path(config).name)[command.verb], **found}
    return found


def test_there_are_commands_to_check() -> None:
    files = {one.file.split()[0] for one in COMMANDS}
    assert files == {
        "holdfast-master.service", "holdfast-node.service", "compose.yaml", "chart", "holdfast.sbatch", "prepare.sh",
    }  # fmt: skip
    assert len(SERVERS) == 10
    assert any(one.verb == "token" for one in COMMANDS)


@named(COMMANDS)
def test_every_flag_and_variable_exists(command: Command) -> None:
    assert command.verb in VERBS
    assert command.flags.keys() <= flags_of(command.verb)
    known = {variable_of(name) for model in MODELS.values() for name in model.model_fields}
    assert command.variables.keys() <= known


@named(SERVERS)
def test_every_listener_beyond_loopback_has_identities_and_tls(command: Command) -> None:
    """ADR 49, and nobody insists on doing without."""
    given = settings_of(command)
    listeners = [given[name] for name in ("listen", "http") if name in given]
    assert any(not is_loopback(one.rpartition(":")[0]) for one in listeners)
    assert given.keys() >= {"tls_cert", "tls_key", "tls_ca", "token_file"}
    assert "identities" in given or command.verb == "node"
    assert "insecure" not in given


@named(COMMANDS)
def test_secrets_come_from_files(command: Command) -> None:
    assert not [name for name in (*command.flags, *command.variables) if SECRET.search(name)]
    assert "password=" not in " ".join((*command.words, *command.variables.values()))


@pytest.mark.parametrize("model", [MasterSettings, NodeSettings], ids=["master", "node"])
def test_the_settings_files_of_the_units_are_valid(model: type[Settings]) -> None:
    table = read_file(DEPLOY / "systemd" / f"{model.table}.toml")[model.table]
    assert model(**table).model_fields_set >= {"name", "listen", "tls_cert", "token_file"}


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze here")
@pytest.mark.parametrize("unit", ["holdfast-master.service", "holdfast-node.service"])
def test_systemd_accepts_the_units_and_rates_their_sandbox(unit: str, tmp_path: Path) -> None:
    program = tmp_path / "holdfast"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    copied = tmp_path / unit
    copied.write_text((DEPLOY / "systemd" / unit).read_text().replace("/opt/holdfast/bin/holdfast", str(program)))
    verified = subprocess.run(["systemd-analyze", "verify", copied], capture_output=True, text=True, timeout=60)
    assert not [line for line in verified.stderr.splitlines() if unit in line]
    assert verified.returncode == 0, verified.stderr
    command = ["systemd-analyze", "security", "--offline=true", "--no-pager", copied]
    rated = subprocess.run(command, capture_output=True, text=True, timeout=60)
    [exposure] = re.findall(r"Overall exposure level for \S+: ([\d.]+)", rated.stdout)
    assert float(exposure) < MOST_EXPOSED


def test_the_dockerfile_passes_its_linter() -> None:
    hadolint = Path(sys.executable).parent / "hadolint"
    path = DEPLOY / "docker" / "Dockerfile"
    done = subprocess.run([hadolint, "--no-color", path], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    extras = re.findall(r'"\.\[([\w,]+)\]"', path.read_text())
    assert extras == ["server,etcd,zookeeper,s3,events"]
    for copied in re.findall(r"^COPY (?!--from)(.*) \S+$", path.read_text(), re.MULTILINE):
        assert all((ROOT / name).exists() for name in copied.split())


def test_the_compose_file_fits_the_schema_of_compose_files() -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(COMPOSE)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_flag_of_etcd_exists() -> None:
    """In the compose file and in the chart; Debian's etcd is a little older than theirs."""
    told = subprocess.run(["etcd", "--help"], capture_output=True, text=True, timeout=60)
    known = set(re.findall(r"(--[a-z-]+)", told.stdout + told.stderr))
    text = COMPOSE.read_text() + (CHART / "templates" / "etcd.yaml").read_text()
    used = set(re.findall(r"^ +- (--[a-z-]+)=", text, re.MULTILINE))
    assert len(used) > 15
    assert used <= known


def test_every_service_is_given_the_secrets_that_it_names() -> None:
    compose = yaml.safe_load(COMPOSE.read_text())
    for name, service in compose["services"].items():
        text = " ".join((*service["command"], *service.get("environment", {}).values()))
        wanted = set(re.findall(r"/run/secrets/([\w.-]+)", text))
        assert wanted, name
        assert wanted == set(service["secrets"])
        assert wanted <= compose["secrets"].keys()


def test_the_commands_of_the_compose_file_run_with_the_secrets_of_its_script(tmp_path: Path) -> None:
    """A master and a node as the file starts them, on ports of their own, with the log in a file."""
    command = tmp_path / "bin" / "holdfast"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m holdfast "$@"\n')
    command.chmod(0o755)
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PATH": f"{command.parent}:{os.environ['PATH']}"}
    script = ["sh", str(DEPLOY / "docker" / "prepare.sh"), str(tmp_path)]
    subprocess.run(script, check=True, capture_output=True, timeout=100, env=environment)
    rpc, http, data, of_node = free_ports(4)
    places = {
        "0.0.0.0:7070": f"127.0.0.1:{rpc}",
        "0.0.0.0:7080": f"127.0.0.1:{http}",
        "0.0.0.0:7071": f"127.0.0.1:{data}",
        "0.0.0.0:7081": f"127.0.0.1:{of_node}",
        "master-1:7070,master-2:7070": f"127.0.0.1:{rpc}",
        "master-1:7070": f"127.0.0.1:{rpc}",
        "node-1:7071": f"127.0.0.1:{data}",
        "/run/secrets/": f"{tmp_path}/secrets/",
        "/var/lib/holdfast": f"{tmp_path}/data/master-1",
        "/tmp": str(tmp_path / "sockets"),
        "1GiB": "16MiB",
    }

    def here(text: str) -> str:
        for place, ours in places.items():
            if place in text:
                return text.replace(place, ours)
        return text

    started: list[subprocess.Popen[bytes]] = []
    try:
        for one in (each for each in of_compose() if each.file.endswith("-1")):
            variables = {name: here(value) for name, value in one.variables.items()}
            if "HOLDFAST_COORDINATION" in variables:
                variables["HOLDFAST_COORDINATION"] = f"sqlite:///{tmp_path}/cluster.db"
            ready = tmp_path / f"{one.verb}.json"
            words = [here(word) for word in one.words]
            started.append(subprocess.Popen([command, *words, "--ready-file", ready], env={**environment, **variables}))
            wait_until(ready.exists, what=f"the {one.verb} is ready", deadline_s=60)
        tls = ssl.create_default_context(cafile=tmp_path / "secrets" / "ca.pem")
        token = tmp_path / "secrets" / "app.token"
        with holdfast.connect(f"127.0.0.1:{rpc}", tls=tls, token_file=token) as cache:
            assert cache.put("greeting", b"hello")
            assert cache.get("greeting") == b"hello"
        shown = {"authorization": f"Bearer {(tmp_path / 'secrets' / 'prometheus.token').read_text().strip()}"}
        for port, metric in ((http, "holdfast_primary 1.0"), (of_node, "holdfast_node_ready 1.0")):
            request = Request(f"https://127.0.0.1:{port}/metrics", headers=shown)
            with urlopen(request, timeout=30, context=tls) as answer:
                assert metric in answer.read().decode()
    finally:
        for process in reversed(started):
            process.terminate()
        for process in started:
            process.wait(60)
