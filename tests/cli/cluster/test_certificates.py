"""`holdfast certificates`: what it writes, what it says about it, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Run


def test_an_authority_a_server_and_a_client(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "made"
    done = run("certificates", "authority", "--directory", str(folder))
    assert done.code == 0, done.err
    assert f"written: {folder / 'ca.pem'}" in done.text
    assert "next: holdfast certificates server NAME" in done.err
    flags = ["--host", "10.0.0.7", "--host", "node-7.example", "--days", "30", "--directory", str(folder), "--json"]
    done = run("certificates", "server", "node-7", *flags)
    assert done.data["written"] == [str(folder / "node-7.pem"), str(folder / "node-7.key")]
    assert done.data["hosts"] == ["10.0.0.7", "node-7.example"]
    done = run("certificates", "client", "app", "--directory", str(folder))
    assert 'certificates = ["app"]' in done.err
    assert f"--tls-key {folder / 'app.key'} --tls-ca {folder / 'ca.pem'}" in done.err
    shown = done.text + done.err
    assert (folder / "app.key").read_text().splitlines()[1] not in shown
    again = run("certificates", "client", "app", "--directory", str(folder))
    assert again.code == 1
    assert "--force" in again.err
    assert run("certificates", "client", "app", "--directory", str(folder), "--force").code == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["king"],
        ["server"],
        ["server", "x"],
        ["client"],
        ["client", "x", "--host", "10.0.0.1"],
        ["authority", "--host", "10.0.0.1"],
        ["authority", "--days", "-1"],
    ],
)
def test_half_a_command_writes_nothing(run: Run, tmp_path: Path, arguments: list[str]) -> None:
    done = run("certificates", *arguments, "--directory", str(tmp_path / "made"))
    assert done.code == 1
    assert "othing was written" in done.err
    assert not (tmp_path / "made").exists()
