"""`holdfast config check FILE`: everything that is wrong with a settings file, at once; nothing is started."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast.cli.main import main
from holdfast.cli.processes.config_file import faults_of
from holdfast.settings import MODELS

SOUND = """
[master]
coordination = "etcd://10.0.0.1:2379,10.0.0.2:2379/prod"
data_dir = "/var/lib/holdfast"
snapshots = "s3://bucket/prefix?endpoint=http://minio:9000"

[node]
address = "10.0.0.1:7070"
size = "64GiB"

[client]
timeout = 5
"""


def test_a_sound_file_is_sound(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "holdfast.toml"
    file.write_text(SOUND)
    assert main(["config", "check", str(file)]) == 0
    assert capsys.readouterr().out == f"{file}: nothing is wrong ([master], [node], [client])\n"


def test_all_faults_of_all_tables_are_told_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "holdfast.toml"
    file.write_text(
        "[master]\nhigh_watermark = 7\nlease_ttl_ms = 'soon'\nclustre = 'a'\nsize = '1GiB'\n"
        "[nodes]\nsize = '1GiB'\n[node]\nsize = '4 giraffes'\n"
    )
    assert main(["config", "check", str(file)]) == 2
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == [
        "wrong: [nodes]: nothing reads this; is [node] meant?",
        "wrong: master.clustre: nothing reads this; is cluster meant?",
        "wrong: master.size: nothing reads this; size in [node] is read",
    ]
    assert [line.split(":")[1] for line in lines[3:6]] == [
        " [master] lease_ttl_ms",
        " [master] high_watermark",
        " [node] size",
    ]
    assert lines[-1] == f"{file}: 6 things are wrong ([master], [node])"


@pytest.mark.parametrize(
    ("table", "given", "told"),
    [
        ("master", {"coordination": "etcd://h/prod", "cluster": "test"}, "'prod', which counts; leave it out"),
        ("master", {"coordination": "redis://h/prod"}, "coordination: 'redis://h/prod' is no place"),
        ("master", {"snapshots": "bucket", "data_dir": "/d"}, "snapshots: 'bucket' says no place"),
        ("master", {"snapshots": "file:///d"}, "data_dir, where they are kept first"),
        ("master", {"events_replay": "127.0.0.1:1"}, "events, which it repeats"),
        ("master", {"tls_ask_clients": True}, "tls_ca, whose certificates"),
        ("master", {"tls_key": "/k"}, "tls_cert, whose key it is"),
        ("master", {"token": "a", "token_file": "/t"}, "give one of them"),
        ("master", {"high_watermark": 0.3, "eviction_margin": 0.3}, "would empty the memory"),
        ("master", {"session_reply_left_ms": 9_000, "session_lease_ms": 8_000}, "must be less than session_lease_ms"),
        ("node", {"size": "2GiB", "max_size": "1GiB"}, "less than size"),
        ("node", {"disk_size": "1GiB"}, "disk, the directory"),
    ],
)
def test_settings_that_contradict_each_other_are_told(table: str, given: dict[str, object], told: str) -> None:
    [fault] = faults_of({table: given})
    assert fault.startswith(f"[{table}] ")
    assert told in fault


def test_the_same_cluster_name_twice_is_no_contradiction() -> None:
    assert faults_of({"master": {"coordination": "etcd://h/prod", "cluster": "prod"}}) == []


def test_only_the_file_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_HIGH_WATERMARK", "7")
    file = tmp_path / "holdfast.toml"
    file.write_text("[master]\nlease_ttl_ms = 5000\n")
    assert main(["config", "check", str(file)]) == 0


def test_the_defaults_of_every_table_are_sound() -> None:
    assert faults_of({table: {} for table in MODELS}) == []


def test_a_file_that_is_named_and_not_here_is_a_note(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "holdfast.toml"
    file.write_text(f"[client]\ntoken_file = '{tmp_path}/token'\ntls_ca = '{file}'\n")
    assert main(["config", "check", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "file": str(file),
        "faults": [],
        "notes": [f"[client] token_file: {tmp_path}/token is not on this machine"],
    }


@pytest.mark.parametrize(
    ("content", "told"), [(None, "cannot be read"), ("[master", "is not TOML"), ("\udcff", "is not TOML")]
)
def test_what_cannot_be_read_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None, told: str
) -> None:
    file = tmp_path / "holdfast.toml"
    if content is not None:
        file.write_text(content, errors="surrogateescape")
    assert main(["config", "check", str(file)]) == 2
    assert told in capsys.readouterr().err


def test_another_action_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "make", str(tmp_path)]) == 2
    assert "holdfast config check FILE" in capsys.readouterr().err
