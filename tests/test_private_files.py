"""Directories and files for one user alone: made so, and closed where an older version left them open."""

from __future__ import annotations

import logging
import stat
from pathlib import Path

import pytest

from holdfast import private_files
from holdfast.private_files import close_to_others, private_directory


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_directory_is_for_its_user_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert mode_of(private_directory(tmp_path / "new")) == 0o700
    assert not caplog.records


def test_a_directory_that_others_may_enter_is_closed_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    open_one = tmp_path / "open"
    open_one.mkdir()
    open_one.chmod(0o755)
    with caplog.at_level(logging.WARNING):
        private_directory(open_one)
        private_directory(open_one)
    assert mode_of(open_one) == 0o700
    assert [record.getMessage() for record in caplog.records] == [
        f"other users could look into {open_one}; it is closed to them now (mode 0700)"
    ]


def test_a_directory_that_is_read_only_stays_so(tmp_path: Path) -> None:
    path = tmp_path / "read-only"
    path.mkdir()
    path.chmod(0o555)
    assert mode_of(private_directory(path)) == 0o500


def test_a_directory_that_others_use_is_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Closing /tmp would stop every other program of the machine."""
    sticky = tmp_path / "sticky"
    sticky.mkdir()
    sticky.chmod(0o1777)
    private_directory(sticky)
    assert mode_of(sticky) == 0o1777
    assert "a directory of its own" in caplog.text
    for shared in (Path("/srv"), Path("/var/lib")):
        assert private_files._is_shared(shared, shared.stat())


def test_a_file_that_others_could_read_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    close_to_others(path)
    path.write_bytes(b"")
    path.chmod(0o644)
    close_to_others(path)
    assert mode_of(path) == 0o600
