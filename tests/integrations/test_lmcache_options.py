"""What an operator writes into LMCache's configuration, and the names that chunks get: no cluster is needed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.ids import MAX_KEY_BYTES
from holdfast.integrations.lmcache.keys import L2, META, RAW, Namespace, l2_name, parsed_l2_name
from holdfast.integrations.lmcache.options import BadOption, LmcacheOptions
from tests.integrations import lmcache_shapes as shapes
from tests.integrations.lmcache_shapes import ObjectKey

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "engines" / "lmcache.md").read_text()


def options_of(url: str, extra: dict[str, object], plugin_name: str | None = None) -> LmcacheOptions:
    with shapes.in_place_of_lmcache():
        from holdfast.integrations.lmcache.remote_connector import options_of

        context = SimpleNamespace(url=url, plugin_name=plugin_name, config=SimpleNamespace(extra_config=extra))
        return options_of(context)


def test_values_may_be_written_as_text() -> None:
    options = LmcacheOptions.from_mapping(
        {"address": "a:1,b:2", "timeout_s": "2.5", "replicas": "2", "verify": "false", "prefer": ["n1", "n2"]}
    )
    assert (options.timeout_s, options.replicas, options.verify) == (2.5, 2, False)
    assert options.preferred == ["n1", "n2"]
    assert options.reached_at == "a:1,b:2"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"adress": "a:1"}, "did you mean 'address'"),
        ({"nonsense": 1}, "known are address"),
        ({"address": "a:notaport"}, "adapter_params: "),
        ({"address": 7}, "address must be text"),
        ({"timeout_s": 0}, "timeout must be over 0"),
        ({"timeout_s": "soon"}, "timeout_s must be a number, not 'soon'"),
        ({"replicas": 0}, "replicas must be 1"),
        ({"replicas": 1.5}, "replicas must be a whole number"),
        ({"replicas": True}, "replicas must be a whole number"),
        ({"verify": "maybe"}, "verify must be true or false"),
        ({"durability": "eternal"}, "durability is 'durable', 'standby' or 'memory'"),
        ({"workers": 0}, "workers must be 1 to"),
        ({"key_prefix": ""}, "key_prefix must have"),
        ({"key_prefix": "a@b"}, "without '@'"),
        ({"max_capacity_gb": -1}, "cannot be negative"),
    ],
)
def test_a_wrong_option_is_named_with_what_would_be_right(given: dict[str, Any], said: str) -> None:
    with pytest.raises(BadOption, match="adapter_params") as raised:
        LmcacheOptions.from_mapping(given)
    assert said in str(raised.value)


def test_address_and_token_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOLDFAST_ADDRESS", "m1:7070,m2:7070")
    monkeypatch.setenv("HOLDFAST_TOKEN", "from the environment")
    assert LmcacheOptions.from_mapping({}).reached_at == "m1:7070,m2:7070"
    assert LmcacheOptions.from_mapping({}).secret() == "from the environment"
    assert LmcacheOptions.from_mapping({"token": "given"}).secret() == "given"
    (tmp_path / "token").write_text("of the file\n")
    options = LmcacheOptions.from_mapping({"token": "given", "token_file": str(tmp_path / "token")})
    assert options.secret() == "of the file"
    assert "given" not in repr(options)
    with pytest.raises(BadOption, match="token_file"):
        LmcacheOptions.from_mapping({"token_file": str(tmp_path / "none")}).secret()


def test_certificates_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    assert LmcacheOptions.from_mapping({}).tls() is None
    with pytest.raises(BadOption, match="tls_ca"):
        LmcacheOptions.from_mapping({"tls_ca": str(tmp_path / "none.pem")}).tls()
    with pytest.raises(BadOption, match="without tls_ca"):
        LmcacheOptions.from_mapping({"tls_cert": "x"}).tls()


def test_the_help_names_every_key() -> None:
    assert all(f"- {name} (" in LmcacheOptions.explained() for name in LmcacheOptions.__dataclass_fields__)


def test_options_of_an_instance_come_from_its_own_keys() -> None:
    extra = {
        "remote_storage_plugin.holdfast.module_path": "m",
        "remote_storage_plugin.holdfast.class_name": "c",
        "remote_storage_plugin.holdfast.address": "first:1",
        "remote_storage_plugin.holdfast.b.address": "second:2",
        "remote_storage_plugin.holdfast.b.replicas": 2,
        "save_chunk_meta": False,
    }
    assert options_of("plugin://holdfast", extra, "holdfast").reached_at == "first:1"
    second = options_of("plugin://holdfast.b", extra, "holdfast.b")
    assert (second.reached_at, second.replicas) == ("second:2", 2)
    legacy = options_of("holdfast://third:3,fourth:4/?timeout_s=2&key_prefix=kv", extra)
    assert (legacy.reached_at, legacy.timeout_s, legacy.key_prefix) == ("third:3,fourth:4", 2.0, "kv")
    with pytest.raises(BadOption, match="names no master"):
        options_of("holdfast://", {})
    with pytest.raises(BadOption, match=r"remote_storage_plugin\.holdfast\.\*"):
        options_of("plugin://holdfast", {"remote_storage_plugin.holdfast.adress": "x:1"}, "holdfast")


@pytest.mark.parametrize(
    "chunk",
    [
        ObjectKey(bytes(range(32)), "meta-llama/Llama-3.1-8B", 0x02010201, 3, "alice"),
        ObjectKey(b"\0\1", "模型", 0),
        ObjectKey(b"\xff", "m", 0xFFFFFFFF, 255, "ключ"),
    ],
)
def test_a_name_can_be_read_back(chunk: ObjectKey) -> None:
    namespace = Namespace("lmcache", L2)
    key = namespace.key_of(l2_name(chunk))
    assert key.startswith(f"lmcache/l2/{chunk.model_name}@{chunk.kv_rank:08x}@")
    found = parsed_l2_name(namespace.name_of(key))
    assert found == (chunk.model_name, chunk.kv_rank, chunk.object_group_id, chunk.chunk_hash, chunk.cache_salt)


@pytest.mark.parametrize("model", ["m" * 2_000, "模" * 400, "\ud800", "~" * 1_100])
def test_a_long_name_is_cut_to_a_valid_key_of_its_own(model: str) -> None:
    namespace = Namespace("p" * 128, L2)
    keys = {namespace.key_of(l2_name(ObjectKey(bytes([i]), model, i, 0, salt))) for i in range(9) for salt in ("", "s")}
    assert len(keys) == 18
    for key in keys:
        assert len(key.encode()) <= MAX_KEY_BYTES
        assert parsed_l2_name(namespace.name_of(key)) is None


def test_layouts_have_keys_of_their_own() -> None:
    assert len({Namespace("lmcache", layout).key_of("same") for layout in (L2, META, RAW)}) == 3


@pytest.mark.parametrize("name", ["m@1@0@ab@half", "m@01000100@0", "m@0100010g@0@ab", "m@01000100@0@abc", "m~abc"])
def test_other_names_are_no_chunks(name: str) -> None:
    assert parsed_l2_name(name) is None


def test_the_guide_shows_the_examples_as_they_are_and_every_setting() -> None:
    for name, kind in (("lmcache_l2_adapter.json", "json"), ("lmcache_in_process.yaml", "yaml")):
        assert f"```{kind}\n{(ROOT / 'examples' / name).read_text()}```" in GUIDE
    rows = re.findall(r"^\| ([a-z_, ]+) \|", GUIDE.partition("## Settings")[2].partition("##")[0], re.MULTILINE)
    assert {name for row in rows for name in row.split(", ")} - {"key"} == set(LmcacheOptions.__dataclass_fields__)


def test_the_examples_name_classes_that_are_there() -> None:
    given = json.loads((ROOT / "examples" / "lmcache_l2_adapter.json").read_text())
    assert LmcacheOptions.from_mapping(given["adapter_params"]).reached_at == "127.0.0.1:7070,127.0.0.1:7072"
    lines = (ROOT / "examples" / "lmcache_in_process.yaml").read_text().splitlines()
    extra = dict(line.strip().split(": ", 1) for line in lines if "remote_storage_plugin.holdfast." in line)
    with shapes.in_place_of_lmcache():
        from holdfast.integrations import lmcache as faces

        assert given["module_path"] == faces.__name__ == extra["remote_storage_plugin.holdfast.module_path"]
        for name in (given["class_name"], extra["remote_storage_plugin.holdfast.class_name"]):
            assert isinstance(getattr(faces, name), type)
        with pytest.raises(AttributeError, match="it has HoldfastConnectorAdapter"):
            _ = faces.HoldfastL3Adapter  # type: ignore[attr-defined]
