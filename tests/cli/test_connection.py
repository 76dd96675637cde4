"""Whether anybody listens, before the client, which is patient, is asked to connect."""

from __future__ import annotations

import socket

import pytest

import holdfast
from holdfast.cli.connection import open_cache, refuse_where_nobody_listens
from holdfast.environment.client_settings import ClientSettings
from holdfast.errors import Unreachable
from tests.ports import free_ports


def test_where_nobody_listens_the_client_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would go on trying for five seconds."""
    monkeypatch.setattr(holdfast, "connect", lambda *_, **__: pytest.fail("the client was asked to connect"))
    addresses = [f"127.0.0.1:{port}" for port in free_ports(2)]
    with pytest.raises(Unreachable, match="nothing was sent") as told:
        open_cache(ClientSettings(address=",".join(addresses)))
    assert all(address in str(told.value) for address in addresses)


def test_a_name_that_is_none_is_told_at_once() -> None:
    with pytest.raises(Unreachable, match="no-such-host"):
        refuse_where_nobody_listens(["no-such-host.invalid:7070"], 5.0)


def test_one_that_listens_is_enough_for_the_client_to_try() -> None:
    """A standby may be about to take over."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        refuse_where_nobody_listens([f"127.0.0.1:{free_ports(1)[0]}", f"127.0.0.1:{listener.getsockname()[1]}"], 5.0)
