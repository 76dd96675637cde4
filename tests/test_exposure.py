"""Which hosts are this machine's own, and which combination protects a listener."""

from __future__ import annotations

import pytest

from holdfast.exposure import Exposed, PlannedListener, check_exposure, is_loopback


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1", "localhost"])
def test_hosts_that_only_this_machine_reaches(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "10.0.0.1", "fe80::1", "::ffff:10.0.0.1", "*", "no.such.host.invalid"]
)
def test_hosts_that_others_may_reach(host: str) -> None:
    assert not is_loopback(host)


@pytest.mark.parametrize(
    ("address", "asks", "encrypts", "is_protected"),
    [
        ("127.0.0.1:7070", False, False, True),
        ("[::1]:7070", False, False, True),
        ("10.0.0.1:7070", True, True, True),
        ("10.0.0.1:7070", True, False, False),
        ("10.0.0.1:7070", False, True, False),
        ("0.0.0.0:0", False, False, False),
    ],
)
def test_both_are_needed_beyond_loopback(address: str, asks: bool, encrypts: bool, is_protected: bool) -> None:
    listeners = [PlannedListener("--listen", address, asks, encrypts)]
    assert bool(check_exposure(listeners, insecure=True, ways="--token-file")) is not is_protected
    if is_protected:
        assert check_exposure(listeners, insecure=False, ways="--token-file") == []
    else:
        with pytest.raises(Exposed, match="--token-file"):
            check_exposure(listeners, insecure=False, ways="--token-file")


def test_the_refusal_names_each_listener_and_what_it_lacks() -> None:
    listeners = [
        PlannedListener("--listen", "10.0.0.1:7070", asks=True, encrypts=False),
        PlannedListener("--http", "127.0.0.1:7080", asks=False, encrypts=False),
        PlannedListener("--events", "10.0.0.1:5557", asks=False, encrypts=False, why="it has neither"),
    ]
    with pytest.raises(Exposed) as refused:
        check_exposure(listeners, insecure=False, ways="--identities")
    assert "--listen 10.0.0.1:7070: nothing is encrypted;" in str(refused.value)
    assert "--events 10.0.0.1:5557: anybody may connect and nothing is encrypted (it has neither)." in str(
        refused.value
    )
    assert "--http" not in str(refused.value)
