"""`put` and `get`: files and pipes in, files and pipes out, never a partial file."""

from __future__ import annotations

import base64
import errno
import os
import resource
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.objects import transfer, upload
from holdfast.errors import NodeLost
from tests.cli.conftest import Run
from tests.cli.fake_cache import FakeCache


def test_a_file_is_put_and_got_back(run: Run, cache: FakeCache, tmp_path: Path) -> None:
    source, copy = tmp_path / "a", tmp_path / "b"
    source.write_bytes(b"\x00bytes\xff")
    assert run("put", "k", str(source)).code == 0
    assert cache.stored == {"k": b"\x00bytes\xff"}
    assert run("get", "k").out == b"\x00bytes\xff"
    assert run("get", "k", "-o", str(copy)).code == 0
    assert copy.read_bytes() == b"\x00bytes\xff"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_a_file_that_is_truncated_while_it_is_put_is_put_as_it_was_read(
    run: Run, cache: FakeCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mapped file would end the process with SIGBUS here."""
    content = os.urandom(100_000)
    source = tmp_path / "a"
    source.write_bytes(content)
    put = cache.put

    def put_after_truncation(key: str, data: Any, **options: Any) -> bool:
        os.truncate(source, 0)
        return put(key, data, **options)

    monkeypatch.setattr(cache, "put", put_after_truncation)
    assert run("put", "k", str(source)).code == 0
    assert cache.stored["k"] == content


@pytest.mark.parametrize("arguments", [("put", "k", "-"), ("put", "k")])
def test_stdin_is_put(run: Run, cache: FakeCache, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]) -> None:
    reading, writing = os.pipe()
    os.write(writing, b"typed")
    os.close(writing)
    with os.fdopen(reading) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        assert run(*arguments).code == 0
    assert cache.stored == {"k": b"typed"}


def test_put_says_when_the_key_was_taken_and_upsert_replaces(run: Run, cache: FakeCache, tmp_path: Path) -> None:
    cache.stored["k"] = b"old"
    source = tmp_path / "a"
    source.write_bytes(b"new")
    kept = run("put", "k", str(source))
    assert (kept.code, cache.stored["k"]) == (0, b"old")
    assert "was there already" in kept.err
    assert run("put", "k", str(source), "--json").data == {"key": "k", "stored": False, "size_bytes": 3}
    assert run("put", "k", str(source), "--upsert").code == 0
    assert cache.stored["k"] == b"new"


def test_put_passes_its_options_on(run: Run, cache: FakeCache, tmp_path: Path) -> None:
    source = tmp_path / "a"
    source.write_bytes(b"x")
    run("put", "k", str(source), "--replicas", "2", "--hard-pin", "--prefer", "node-1", "--durability", "standby")
    assert cache.options == {
        "replicas": 2,
        "soft_pin": False,
        "hard_pin": True,
        "upsert": False,
        "prefer": "node-1",
        "durability": "standby",
    }


def test_a_large_file_is_put_with_the_options_of_a_small_one(
    run: Run, cache: FakeCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upload, "LONG_FROM", 4096)
    source = tmp_path / "a"
    arguments = ("put", "k", str(source), "--upsert", "--durability", "memory")
    seen = []
    for size_bytes in (5_000, 50):
        source.write_bytes(b"x" * size_bytes)
        assert run(*arguments).code == 0
        seen.append(cache.options)
        cache.options = {}
    assert seen[0] == seen[1]
    assert seen[0]["durability"] == "memory"


def test_a_durability_that_there_is_not_is_wrong_usage(run: Run, cache: FakeCache, tmp_path: Path) -> None:
    result = run("put", "k", str(tmp_path / "absent"), "--durability", "sometimes")
    assert (result.code, cache.closed) == (2, 0)
    assert "'sometimes' is none of durable, standby, memory" in result.err


def test_pins_that_contradict_each_other_are_refused(run: Run, cache: FakeCache, tmp_path: Path) -> None:
    result = run("put", "k", str(tmp_path / "absent"), "--soft-pin", "--hard-pin")
    assert result.code == 2
    assert "contradict" in result.err
    assert cache.closed == 0


def test_a_node_that_does_not_exist_is_no_preference(run: Run, cache: FakeCache, tmp_path: Path) -> None:
    source = tmp_path / "a"
    source.write_bytes(b"x")
    result = run("put", "k", str(source), "--prefer", "nobody")
    assert result.code == 1
    assert result.err == "holdfast: no node is named 'nobody'; nothing was sent: the nodes are node-1\n"
    assert cache.stored == {}


def test_a_large_file_moves_in_pieces(
    run: Run, cache: FakeCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upload, "LONG_FROM", 4096)
    monkeypatch.setattr(upload, "PIECE_BYTES", 1000)
    content = os.urandom(10_500)
    source = tmp_path / "a"
    source.write_bytes(content)
    assert run("put", "k", str(source), "--json").data == {"key": "k", "stored": True, "size_bytes": 10_500}
    assert cache.stored["k"] == content
    assert run("put", "k", str(source), "--json").data["stored"] is False
    with source.open() as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        assert run("put", "from-stdin").code == 0
    assert cache.stored["from-stdin"] == content


def test_a_large_file_that_becomes_shorter_is_not_stored(
    run: Run, cache: FakeCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upload, "LONG_FROM", 4096)
    source = tmp_path / "a"
    source.write_bytes(b"x" * 10_000)
    reserve = cache.reserve

    def truncated(*arguments: Any, **options: Any) -> Any:
        os.truncate(source, 5_000)
        return reserve(*arguments, **options)

    monkeypatch.setattr(cache, "reserve", truncated)
    result = run("put", "k", str(source))
    assert result.code == 1
    assert "5,000 of 10,000 bytes; nothing was stored" in result.err
    assert cache.stored == {}


def test_what_no_node_can_hold_is_refused_before_it_is_read(
    run: Run, cache: FakeCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upload, "LONG_FROM", 4096)
    monkeypatch.setattr(upload, "fill", lambda *_: pytest.fail("it was read"))
    cache.free_bytes = 5_000
    source = tmp_path / "a"
    source.write_bytes(b"x" * 10_000)
    assert "could ever hold it" in run("put", "k", str(source)).err
    # A pipe says nothing about its length, so it is read as far as the largest node goes.
    monkeypatch.setattr(upload, "PIECE_BYTES", 1000)
    monkeypatch.setattr(upload, "largest_node", lambda _: 6_000)
    reading, writing = os.pipe()
    os.write(writing, b"x" * 20_000)
    with os.fdopen(reading) as stdin, os.fdopen(writing):
        monkeypatch.setattr(sys, "stdin", stdin)
        result = run("put", "k")  # It ends although the pipe is still open.
    assert result.code == 1
    assert "longer than 5.9 KiB" in result.err
    assert cache.stored == {}


@pytest.mark.parametrize("stored", [True, False])
def test_ctrl_c_says_whether_the_object_is_stored(
    run: Run, cache: FakeCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stored: bool
) -> None:
    source = tmp_path / "a"
    source.write_bytes(b"12345")
    put = cache.put

    def interrupted(key: str, data: Any, **options: Any) -> bool:
        if stored:
            put(key, data, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(cache, "put", interrupted)
    result = run("put", "k", str(source))
    assert result.code == 130
    assert result.err == (
        "holdfast: interrupted; k holds an object of 5 B\n"
        if stored
        else "holdfast: interrupted; no object is stored under k\n"
    )


def test_ctrl_c_says_when_nobody_knows(run: Run, cache: FakeCache, tmp_path: Path) -> None:
    source = tmp_path / "a"
    source.write_bytes(b"12345")

    def interrupted(*_: object, **__: object) -> bool:
        cache.failure = NodeLost("no")
        raise KeyboardInterrupt

    cache.put = interrupted  # type: ignore[method-assign]
    assert "whether k was stored is not known" in run("put", "k", str(source)).err


def test_ctrl_c_in_a_get_leaves_the_file_as_it_was(
    run: Run, cache: FakeCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "f"
    target.write_bytes(b"old")
    cache.stored["k"] = b"new"

    def interrupted(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(cache, "get_into", interrupted)
    result = run("get", "k", "-o", str(target))
    assert (result.code, result.err) == (130, f"holdfast: interrupted; {target} is as it was before\n")
    assert [path.name for path in tmp_path.iterdir()] == ["f"]
    assert target.read_bytes() == b"old"


def test_a_file_that_cannot_be_read_is_one_line(run: Run, cache: FakeCache, tmp_path: Path) -> None:
    result = run("put", "k", str(tmp_path / "absent"))
    assert result.code == 1
    assert result.err == f"holdfast: {tmp_path / 'absent'}: No such file or directory\n"
    assert run("put", "k", str(tmp_path)).code == 1
    assert cache.stored == {}


def test_an_absent_key_is_exit_code_4_and_leaves_no_file(run: Run, tmp_path: Path) -> None:
    assert run("get", "k", "-o", str(tmp_path / "f")).code == 4
    assert run("get", "k").code == 4
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_a_clear_error_and_the_old_file_stays(
    run: Run, cache: FakeCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_space(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    cache.stored["k"] = b"x" * 100
    target = tmp_path / "f"
    target.write_bytes(b"old")
    monkeypatch.setattr(os, "posix_fallocate", no_space)
    result = run("get", "k", "-o", str(target))
    assert result.code == 1
    assert "no room for k on the disk" in result.err
    assert result.err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["f"]
    assert target.read_bytes() == b"old"


def test_a_file_system_that_is_read_only_names_the_file_that_was_asked_for(
    run: Run, cache: FakeCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(path: object, *_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    cache.stored["k"] = b"x"
    monkeypatch.setattr(os, "open", read_only)
    monkeypatch.setattr(os, "unlink", read_only)
    result = run("get", "k", "-o", str(tmp_path / "f"))
    assert (result.code, result.err) == (1, f"holdfast: {tmp_path / 'f'}: Read-only file system\n")


def test_a_file_over_the_system_s_limit_is_a_clear_error_too(run: Run, cache: FakeCache, tmp_path: Path) -> None:
    cache.stored["k"] = b"x" * (4 << 20)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        result = run("get", "k", "-o", str(tmp_path / "f"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert result.code == 1
    assert "File too large" in result.err
    assert list(tmp_path.iterdir()) == []


def test_a_read_that_fails_halfway_leaves_no_file(run: Run, cache: FakeCache, tmp_path: Path) -> None:
    class Failing(FakeCache):
        def get_into(self, key: str, buffer: Any) -> int:
            raise NodeLost("no node that holds k answers")

    failing = Failing({"k": b"x"})
    with pytest.raises(NodeLost):
        transfer.write_file(failing, "k", tmp_path / "f")  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_an_object_that_grew_since_it_was_measured_is_read_again(tmp_path: Path) -> None:
    class Growing(FakeCache):
        def get_into(self, key: str, buffer: Any) -> int:
            self.stored.setdefault("grown", b"")
            self.stored[key] = b"longer than before"
            return super().get_into(key, buffer)

    assert transfer.write_file(Growing({"k": b"short"}), "k", tmp_path / "f") == 18  # type: ignore[arg-type]
    assert (tmp_path / "f").read_bytes() == b"longer than before"


def test_an_object_that_shrank_since_it_was_measured_leaves_no_tail(tmp_path: Path) -> None:
    class Shrinking(FakeCache):
        def get_into(self, key: str, buffer: Any) -> int:
            self.stored[key] = b"tiny"
            return super().get_into(key, buffer)

    transfer.write_file(Shrinking({"k": b"x" * 9_000}), "k", tmp_path / "f")  # type: ignore[arg-type]
    assert (tmp_path / "f").read_bytes() == b"tiny"


def test_a_missing_directory_is_named_as_the_user_wrote_it(run: Run, cache: FakeCache, tmp_path: Path) -> None:
    cache.stored["k"] = b"x"
    target = tmp_path / "absent" / "f"
    result = run("get", "k", "-o", str(target))
    assert (result.code, result.err) == (1, f"holdfast: {target}: No such file or directory\n")


def test_a_file_is_made_with_the_usual_permissions(run: Run, cache: FakeCache, tmp_path: Path) -> None:
    cache.stored["k"] = b"x"
    before = os.umask(0o027)
    try:
        run("get", "k", "-o", str(tmp_path / "f"))
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "f").stat().st_mode) == 0o640


def test_a_symbolic_link_is_written_through(run: Run, cache: FakeCache, tmp_path: Path) -> None:
    cache.stored["k"] = b"x"
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert run("get", "k", "-o", str(tmp_path / "link")).code == 0
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"x"


def test_a_device_is_written_not_replaced(run: Run, cache: FakeCache) -> None:
    cache.stored["k"] = b"x"
    assert run("get", "k", "-o", "/dev/null").code == 0
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)


def test_get_as_json_is_text(run: Run, cache: FakeCache, tmp_path: Path) -> None:
    cache.stored["k"] = b"\x00\xff"
    assert base64.b64decode(run("get", "k", "--json").data["base64"]) == b"\x00\xff"
    target = tmp_path / "f"
    assert run("get", "k", "--json", "-o", str(target)).data == {"key": "k", "size_bytes": 2, "file": str(target)}


def test_binary_is_not_printed_on_a_terminal_unless_insisted(run: Run, cache: FakeCache) -> None:
    cache.stored |= {"binary": b"\x00\x01", "escape": b"\x1b[2J", "text": "schön".encode()}
    for key in ("binary", "escape"):
        refused = run("get", key, terminal=True)
        assert (refused.code, refused.out) == (1, b"")
    assert run("get", "text", terminal=True).out == "schön".encode()
    assert run("get", "binary", "-o", "-", terminal=True).out == b"\x00\x01"


def test_a_long_transfer_shows_that_it_moves_to_a_person_only(
    run: Run, cache: FakeCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.stored["k"] = b"x" * 5_000
    monkeypatch.setattr(upload, "LONG_FROM", 4096)
    target = str(tmp_path / "f")
    assert "get k" not in run("get", "k", "-o", target).err
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert "get k (4.9 KiB)" in run("get", "k", "-o", target).err


def test_text_cut_inside_a_character_is_still_text() -> None:
    assert not transfer.is_binary("schön".encode()[:4])
    assert transfer.is_binary(b"\xff\xfe")
