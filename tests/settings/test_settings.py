"""Settings: one declaration, four sources, and clear words about what cannot be used."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.rules import Rules
from holdfast.master.process import rules_of
from holdfast.settings import (
    MODELS,
    BadSetting,
    ClientSettings,
    MasterSettings,
    NodeSettings,
    UpSettings,
    load,
    parse_size,
)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("1048576", 1 << 20),
        ("4GiB", 4 << 30),
        ("4GB", 4 << 30),
        ("4g", 4 << 30),
        ("512MB", 512 << 20),
        ("512 MiB", 512 << 20),
        ("1.5KiB", 1536),
        ("2TiB", 2 << 40),
        ("7B", 7),
    ],
)
def test_sizes_are_powers_of_1024_with_and_without_the_i(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize("text", ["", "GiB", "4 giraffes", "-1", "1e9", "4GiBB", "٤GiB", None, 1.5, True])
def test_what_is_no_size_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        parse_size(text)


@given(st.integers(min_value=0, max_value=1 << 50), st.sampled_from(["", "K", "MiB", "GB"]))
def test_a_size_keeps_every_digit(number: int, unit: str) -> None:
    shift = {"": 0, "K": 10, "MiB": 20, "GB": 30}[unit]
    assert parse_size(f"{number}{unit}") == number << shift


def test_a_flag_wins_over_the_environment_over_the_file_over_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "holdfast.toml"
    assert load(MasterSettings, {}).lease_ttl_ms == 10_000
    config.write_text("[master]\nlease_ttl_ms = 1\nreport_interval_ms = 500\n")
    assert load(MasterSettings, {}, config).lease_ttl_ms == 1
    monkeypatch.setenv("HOLDFAST_LEASE_TTL_MS", "2")
    assert load(MasterSettings, {}, config).lease_ttl_ms == 2
    loaded = load(MasterSettings, {"lease_ttl_ms": "3"}, config)
    assert loaded.lease_ttl_ms == 3
    assert loaded.report_interval_ms == 500


def test_a_file_may_hold_the_tables_of_all_processes(tmp_path: Path) -> None:
    config = tmp_path / "holdfast.toml"
    config.write_text('[master]\nname = "m"\n[node]\nsize = "2GiB"\n[up]\nnodes = 3\n[client]\ntimeout = 1.5\n')
    assert load(MasterSettings, {}, config).name == "m"
    assert load(NodeSettings, {}, config).size == 2 << 30
    assert load(UpSettings, {}, config).nodes == 3
    assert load(ClientSettings, {}, config).timeout == 1.5


def test_unknown_keys_and_tables_of_a_file_are_named(tmp_path: Path) -> None:
    config = tmp_path / "holdfast.toml"
    config.write_text("stray = 1\n[master]\nlease_ttl = 1\n[nodes]\nsize = 1\n")
    with pytest.raises(BadSetting, match=r"\[nodes\], master\.lease_ttl, stray"):
        load(ClientSettings, {}, config)


@pytest.mark.parametrize("content", [b"[master", b"\xff\xfe", b"[master]\nname = 'a'\nname = 'b'\n"])
def test_a_file_that_is_not_toml_is_refused(tmp_path: Path, content: bytes) -> None:
    config = tmp_path / "holdfast.toml"
    config.write_bytes(content)
    with pytest.raises(BadSetting, match="is not TOML"):
        load(MasterSettings, {}, config)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match=r"absent\.toml cannot be read: No such file"):
        load(MasterSettings, {}, tmp_path / "absent.toml")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"listen": "x"}, "--listen: 'x' is not an address"),
        ({"high_watermark": "2"}, "--high-watermark: .*less than or equal to 1.*'2'"),
        ({"lease_ttl_ms": "0"}, "--lease-ttl-ms: .*greater than 0"),
        ({"shared_grant_bytes": "0"}, "--shared-grant-bytes: "),
        ({"name": "a/b"}, "--name: 'a/b' is not a name"),
        ({"log_level": "loud"}, "--log-level: "),
        ({"durability": "perhaps"}, "--durability: "),
    ],
)
def test_a_bad_flag_is_named_with_what_was_given(flags: dict[str, str], said: str) -> None:
    with pytest.raises(BadSetting, match=said):
        load(MasterSettings, flags)


def test_a_bad_value_is_blamed_on_where_it_came_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "holdfast.toml"
    config.write_text('[node]\nsize = "big"\n')
    with pytest.raises(BadSetting, match=r"size in .*holdfast\.toml: 'big' is not a size"):
        load(NodeSettings, {}, config)
    monkeypatch.setenv("HOLDFAST_SIZE", "bigger")
    with pytest.raises(BadSetting, match="HOLDFAST_SIZE: 'bigger' is not a size"):
        load(NodeSettings, {}, config)


@pytest.mark.parametrize("count", ["0", "6", "two"])
def test_a_number_of_masters_that_makes_no_sense_is_refused_in_words(count: str) -> None:
    with pytest.raises(BadSetting, match="--masters"):
        load(UpSettings, {"masters": count})


def test_up_needs_a_log_that_every_master_can_follow() -> None:
    with pytest.raises(BadSetting, match="no other master could follow"):
        load(UpSettings, {"coordination": "memory://"})


@pytest.mark.parametrize("address", ["h1:1,h2:2", "etcd://h:2379/c", "[::1]:7070"])
def test_a_cluster_is_addressed_by_one_master_several_or_by_coordination(address: str) -> None:
    assert load(NodeSettings, {"address": address}).address == address


@pytest.mark.parametrize("address", ["", "h1:1,", "h1"])
def test_a_cluster_address_without_a_port_is_refused(address: str) -> None:
    with pytest.raises(BadSetting, match="--address"):
        load(ClientSettings, {"address": address})


def test_a_token_is_never_shown() -> None:
    with_one = [model for model in MODELS.values() if "token" in model.model_fields]
    assert len(with_one) == 4
    for model in with_one:
        assert "hush" not in repr(load(model, {"token": "hush"}))


def test_every_setting_is_described() -> None:
    bare = [
        f"{model.table}.{name}"
        for model in MODELS.values()
        for name, field in model.model_fields.items()
        if not field.description
    ]
    assert not bare


@pytest.mark.parametrize(
    ("preset", "expected"),
    [
        ("follow", ("batched", "follow", 0)),
        ("renew-all", ("every", "independent", 0)),
        ("delayed", ("off", "independent", 7_000)),
        ("mixed", ("every", "independent", 100)),
        ("timer", ("batched", "independent", 0)),
        ("promote-only", ("off", "none", 0)),
    ],
)
def test_a_preset_names_a_plan(preset: str, expected: tuple[str, str, int]) -> None:
    rules = rules_of(load(MasterSettings, {"preset": preset, "lease_ttl_ms": "7000"}))
    assert (rules.lease_sync, rules.standby_eviction, rules.standby_eviction_grace_ms) == expected


def test_a_master_without_settings_has_the_default_rules() -> None:
    assert rules_of(load(MasterSettings, {})) == Rules()


def test_what_is_set_by_itself_wins_over_the_preset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_LEASE_SYNC", "off")
    flags = {"preset": "mixed", "standby_eviction": "none", "standby_eviction_grace_ms": "0"}
    rules = rules_of(load(MasterSettings, flags))
    assert (rules.lease_sync, rules.standby_eviction, rules.standby_eviction_grace_ms) == ("off", "none", 0)


def test_a_preset_that_nobody_knows_is_refused_by_name() -> None:
    with pytest.raises(BadSetting, match="--preset"):
        load(MasterSettings, {"preset": "fast"})
    with pytest.raises(BadSetting, match="--renewal-interval-ms"):
        load(MasterSettings, {"renewal_interval_ms": "99"})


def test_a_keepalive_that_could_not_be_answered_within_its_lease_is_refused() -> None:
    with pytest.raises(BadSetting, match="answered before its lease ends"):
        load(MasterSettings, {"session_lease_ms": 3_000, "session_reply_left_ms": 3_000})


def test_a_token_may_come_from_a_file_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The source that wins says the token, in either way."""
    path = tmp_path / "token"
    path.write_text("hush\n")
    path.chmod(0o600)
    with_one = [model for model in MODELS.values() if "token" in model.model_fields]
    for model in with_one:
        assert load(model, {"token_file": str(path)}).model_dump()["token"] == "hush"
    monkeypatch.setenv("HOLDFAST_TOKEN", "of the environment")
    assert load(NodeSettings, {"token_file": str(path)}).token == "hush"
    monkeypatch.delenv("HOLDFAST_TOKEN")
    monkeypatch.setenv("HOLDFAST_TOKEN_FILE", str(path))
    assert load(NodeSettings, {"token": "given"}).token == "given"
    assert load(NodeSettings, {}).token == "hush"
    monkeypatch.setenv("HOLDFAST_TOKEN", "of the environment")
    with pytest.raises(BadSetting, match="both given"):
        load(NodeSettings, {})
    path.chmod(0o644)
    with pytest.raises(BadSetting, match="token_file: other users may read") as caught:
        load(ClientSettings, {"token_file": str(path)})
    assert "hush" not in str(caught.value)
