"""Run the command line in this process, over a cache that is a dict."""

from __future__ import annotations

import io
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli import connection
from holdfast.cli.main import main
from holdfast.errors import Unreachable
from holdfast.messages.requests import Status
from holdfast.settings import ClientSettings
from tests.cli.fake_cache import FakeCache, FakeChannel


@dataclass
class Result:
    code: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        return self.out.decode()

    @property
    def data(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Result]


class Terminal(io.TextIOWrapper):
    """Somewhere that a person looks at."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def cache() -> FakeCache:
    return FakeCache()


@pytest.fixture
def masters() -> dict[str, Status]:
    """What the masters answer that are reached by their own addresses."""
    return {}


@pytest.fixture
def asked() -> list[ClientSettings]:
    """The settings that clients were opened with."""
    return []


@pytest.fixture
def run(
    cache: FakeCache,
    masters: dict[str, Status],
    asked: list[ClientSettings],
    monkeypatch: pytest.MonkeyPatch,
    capsysbinary: pytest.CaptureFixture[bytes],
) -> Run:
    def open_cache(settings: ClientSettings, brief: bool = False) -> FakeCache:
        asked.append(settings)
        return cache

    def open_channel(address: str, token: str, deadline: float) -> FakeChannel:
        if address not in masters:
            raise Unreachable(f"nobody answers at {address}")
        return FakeChannel(masters[address])

    def call(*arguments: str, terminal: bool = False) -> Result:
        capsysbinary.readouterr()
        seen = io.BytesIO()
        with monkeypatch.context() as patch:
            if terminal:
                patch.setattr(sys, "stdout", Terminal(seen, encoding="utf-8", write_through=True))
            code = main(arguments)
            shown = seen.getvalue()
        printed = capsysbinary.readouterr()
        return Result(code, shown or printed.out, printed.err.decode())

    monkeypatch.setattr(connection, "open_cache", open_cache)
    monkeypatch.setattr(connection, "open_channel", open_channel)
    return call


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path, because that of a Unix socket must be."""
    with tempfile.TemporaryDirectory(prefix="hf-") as short:
        yield Path(short)
