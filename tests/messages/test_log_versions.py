"""The table of log versions, and everything that is decided by it: what is written, by what it is read (ADR 64)."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from holdfast.core.primary import primary as primary_module
from holdfast.core.primary.decision import Planned
from holdfast.core.primary.primary import Primary
from holdfast.core.rules import Rules
from holdfast.core.state import apply as apply_module
from holdfast.core.state.state import State
from holdfast.errors import LogHeldBack
from holdfast.master.announcement import ANNOUNCED_MS, AWAY_MS, LogVersions, _log_version
from holdfast.master.engine import engine as engine_module
from holdfast.master.engine.engine import Engine
from holdfast.messages import log_versions
from holdfast.messages import records as r
from holdfast.messages import requests as q
from holdfast.messages.log_versions import LOG_VERSION, NEW_FIELDS, NEW_RECORDS, version_of
from holdfast.messages.shapes import Record
from holdfast.replication import batches as batches_module
from holdfast.replication import log_writer, snapshots
from holdfast.replication.batches import Position, UnknownRecord, decode_batch
from holdfast.replication.log_writer import PendingLog
from holdfast.replication.snapshot_store import SnapshotStore
from holdfast.replication.snapshots import NewerSnapshot, dump, load
from tests.core.world import World

READERS = (apply_module, primary_module, engine_module, batches_module, log_writer, snapshots, log_versions)


@pytest.fixture
def next_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a later release, which has added a record and a field."""
    for module in READERS:
        monkeypatch.setattr(module, "LOG_VERSION", 4)
    monkeypatch.setitem(NEW_RECORDS, r.NodeModeChanged, 4)
    monkeypatch.setitem(NEW_FIELDS, r.SessionOpened, {"owner": 4})


def fields_of(kind: type[Record]) -> list[str]:
    return [field.name for field in msgspec.structs.fields(kind)]


def records_by_tag() -> dict[str, type[Record]]:
    kinds = [kind for kind in vars(r).values() if isinstance(kind, type) and issubclass(kind, Record)]
    return {str(kind.__struct_config__.tag): kind for kind in kinds if kind is not Record}


def unlisted(known: dict[str, list[str]], kinds: dict[str, type[Record]]) -> list[str]:
    """Records and fields that neither release 0.2.0 had nor the table names."""
    found = []
    for tag, kind in kinds.items():
        named = known.get(tag, [kind.__name__, *fields_of(kind)] if kind in NEW_RECORDS else [kind.__name__])
        if tag not in known and kind not in NEW_RECORDS:
            found.append(kind.__name__)
        new = [name for name in fields_of(kind) if name not in (*named[1:], *NEW_FIELDS.get(kind, {}))]
        found += [f"{kind.__name__}.{name}" for name in new if tag in known or kind not in NEW_RECORDS]
    return found


def test_every_record_and_field_that_release_0_2_0_did_not_have_names_its_log_version() -> None:
    """Read CONTRIBUTING.md, "A record", if this fails: masters of the release before could not read the log."""
    known: dict[str, list[str]] = json.loads((Path(__file__).parent / "log_version_1.json").read_text())
    kinds = records_by_tag()
    assert unlisted(known, kinds) == []
    for tag, (name, *fields) in known.items():
        assert kinds[tag].__name__ == name, "a tag is never used again, and a record never taken away"
        assert fields_of(kinds[tag])[: len(fields)] == fields, "fields are read by their place"
    forgotten = {tag: named for tag, named in known.items() if tag != "52"} | {"13": known["13"][:-1]}
    assert unlisted(forgotten, kinds) == ["SessionOpened.owner", "ClientsRevoked", "ClientsRevoked.clients"]


def test_the_table_names_fields_that_exist_and_versions_that_are_read() -> None:
    listed = [*NEW_RECORDS.values(), *(since for fields in NEW_FIELDS.values() for since in fields.values())]
    assert all(1 < since <= LOG_VERSION for since in listed)
    for kind, fields in NEW_FIELDS.items():
        by_name = {field.name: field for field in msgspec.structs.fields(kind)}
        assert all(not by_name[name].required for name in fields), "a new field has a default"


@pytest.mark.usefixtures("next_version")
def test_a_record_is_as_new_as_what_it_holds() -> None:
    assert version_of(r.EpochStarted(1)) == 1
    assert version_of(r.NodeModeChanged("a", 1)) == 4
    assert version_of(r.SessionOpened(1, "a", 1)) == 1, "the new field has its default"
    assert version_of(r.SessionOpened(1, "a", 1, "somebody")) == 4


def engine_at(read_by_all: int) -> Engine:
    primary = Primary(State(), Rules())
    primary.read_by_all = lambda: read_by_all
    engine = Engine(primary, PendingLog(Position()))
    engine.start_log(1, "test", b"secret", 0)
    engine.start_epoch(1, 0)
    return engine


def batch_in(engine: Engine) -> bytes:
    assert engine.log is not None
    cut = engine.log.cut(1 << 20)
    assert cut is not None
    return cut[0]


def cordon(engine: Engine) -> None:
    engine.carry_out(Planned([r.NodeModeChanged("a", 1)]), 0)


@pytest.mark.usefixtures("next_version")
def test_a_record_that_is_too_new_is_refused_and_changes_nothing() -> None:
    engine = engine_at(3)
    engine.state.modes["a"] = 0
    index = engine.state.index
    with pytest.raises(LogHeldBack, match=r"log version 4.* 3 is in force; nothing was changed"):
        cordon(engine)
    assert (engine.state.index, engine.state.modes, engine.state.log_version) == (index, {"a": 0}, 1)
    assert decode_batch(Position(), 1, batch_in(engine))[1].index == index


@pytest.mark.usefixtures("next_version")
def test_a_request_that_needs_such_a_record_is_answered_with_what_to_upgrade() -> None:
    world = World()
    world.node("a")
    world.primary.read_by_all = lambda: 3
    index = world.state.index
    reply = world.send(q.ChangeMode("a", "cordoned"))
    assert isinstance(reply, q.Failed)
    assert (reply.code, "holdfast status" in reply.text, world.state.index) == ("log_held_back", True, index)
    world.primary.read_by_all = lambda: 4
    world.ask(q.Done, q.ChangeMode("a", "cordoned"))
    assert world.state.log_version == 4


@pytest.mark.usefixtures("next_version")
def test_the_first_newer_record_raises_the_version_of_its_batch_and_all_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """I13: a master that does not read it stops before the batch, and says what to do."""
    engine = engine_at(4)
    before = batch_in(engine)
    cordon(engine)
    after = batch_in(engine)
    assert (version_in_head(before), version_in_head(after)) == (1, 4)
    engine.primary.read_by_all = lambda: 1  # An older master has come back: the log has it already.
    cordon(engine)
    assert version_in_head(batch_in(engine)) == 4
    monkeypatch.setattr(batches_module, "LOG_VERSION", 3)
    _, position = decode_batch(Position(), 1, before)
    with pytest.raises(UnknownRecord, match=r"needs log version 4, .* reads 1 to 3: upgrade this master"):
        decode_batch(position, 2, after)


def version_in_head(batch: bytes) -> int:
    return int.from_bytes(batch[2:4], "little")


@pytest.mark.usefixtures("next_version")
def test_a_snapshot_needs_what_its_log_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_at(4)
    older = b"".join(dump(engine.state, Position(3), 0))
    cordon(engine)
    newer = b"".join(dump(engine.state, Position(4), 0))
    assert [load(content, 0).state.log_version for content in (older, newer)] == [1, 4]
    store = SnapshotStore(tmp_path)
    kept = store.write(4, newer)
    monkeypatch.setattr(snapshots, "LOG_VERSION", 3)
    assert load(older, 0).state.log_version == 1
    with pytest.raises(NewerSnapshot, match=r"needs log version 4.* upgrade this master"):
        load(newer, 0)
    assert store.read(kept) is None
    assert "upgrade this master" in store.too_new
    assert kept.path.exists(), "once the master is upgraded again, it needs it"


def test_a_primary_writes_what_all_masters_read_that_were_here_lately() -> None:
    versions = LogVersions("a", own=2)
    assert versions.common == 0, "before its first look it knows of none"
    versions.observe({"a", "b"}, {"a": 2, "b": 2}, 0)
    assert (versions.common, versions.held_back_by) == (2, [])
    versions.observe({"a", "b", "c"}, {"a": 2, "b": 2}, 1_000)
    assert (versions.common, versions.held_back_by) == (0, ["c (which has not said yet what it reads)"])
    renewed = 1_001 + ANNOUNCED_MS
    versions.observe({"a", "b", "c"}, {"a": 2, "b": 2}, renewed)
    assert (versions.common, versions.held_back_by) == (1, ["c (reads 1)"]), "release 0.2.0 announces none"
    versions.observe({"a", "b"}, {"a": 2, "b": 2}, AWAY_MS)
    assert versions.common == 1, "it is being started again, perhaps"
    versions.observe({"a", "b"}, {"a": 2, "b": 2}, renewed + 1 + AWAY_MS)
    assert versions.common == 2
    versions.observe({"a", "b"}, {"a": 2, "b": 3}, renewed + 2 + AWAY_MS)
    assert versions.common == 2, "a later release writes no more than this one reads"


def test_a_master_whose_version_was_lost_with_the_store_is_not_taken_for_one_of_0_2_0() -> None:
    """I20: memory would go from tenant to tenant as it is. The store was lost after the version was announced, and
    before the address was."""
    versions = LogVersions("a", own=2)
    versions.observe({"a", "b"}, {"a": 2, "b": 2}, 0)
    versions.observe({"a", "b"}, {"a": 2}, 3_000)
    assert versions.common == 2, "it was known"
    versions.observe({"a", "b", "c"}, {"a": 2, "b": 2}, 6_000)
    assert versions.common == 0, "whoever was never seen with one may be of any release"
    versions.observe({"a", "b", "c"}, {"a": 2, "b": 2, "c": 2}, 9_000)
    assert versions.common == 2
    versions.observe({"a", "c"}, {"a": 2}, 12_000)
    versions.observe({"a", "c"}, {"a": 2}, 12_001 + ANNOUNCED_MS)
    assert versions.common == 1, "it was replaced by one of 0.2.0"


def test_a_master_that_is_gone_before_it_is_known_holds_nothing_back() -> None:
    versions = LogVersions("a", own=2)
    versions.observe({"a", "b"}, {"a": 2}, 0)
    versions.observe({"a"}, {"a": 2}, 3_000)
    assert (versions.common, versions.held_back_by) == (2, [])


@pytest.mark.parametrize(("value", "read"), [(b'{"log":2,"release":"9.9.9"}', 2), (b"{}", 1), (b"\xff", 1), (b"2", 1)])
def test_what_is_no_announcement_counts_as_the_oldest_version(value: bytes, read: int) -> None:
    assert _log_version(value) == read
