"""Files of secrets are read only if they are for their user alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.identity.secret_files import TOKEN_BYTES, BadSecretFile, read_token


def written(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def test_a_token_is_read_without_the_line_break_after_it(tmp_path: Path) -> None:
    assert read_token(written(tmp_path / "token", "  s3cret\n")) == "s3cret"
    assert read_token(written(tmp_path / "token", "s3cret", 0o400)) == "s3cret"


@pytest.mark.parametrize(
    ("text", "mode", "said"),
    [
        ("s3cret", 0o640, "chmod 600"),
        ("s3cret", 0o604, "mode 0604"),
        ("s3cret", 0o622, "chmod 600"),
        (" \n", 0o600, "is empty"),
        ("s3cret\nanother", 0o600, "several lines"),
        ("s" * (TOKEN_BYTES + 1), 0o600, "more than"),
    ],
)
def test_another_file_is_refused_and_its_content_not_told(tmp_path: Path, text: str, mode: int, said: str) -> None:
    with pytest.raises(BadSecretFile, match=said) as caught:
        read_token(written(tmp_path / "token", text, mode))
    assert "s3cret" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadSecretFile, match="nowhere cannot be read"):
        read_token(tmp_path / "nowhere")
