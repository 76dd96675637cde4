"""`holdfast clients` and `holdfast clients revoke`, and the same over REST, against real processes."""

from __future__ import annotations

import json
import os
import subprocess
import urllib.error
import urllib.request
from typing import Any

import pytest

from holdfast import errors
from holdfast.client.cache import Cache
from tests import prefork
from tests.e2e.rig import Rig
from tests.waiting import wait_until


def holdfast(rig: Rig, *arguments: str) -> subprocess.CompletedProcess[str]:
    return prefork.holdfast(*arguments, "--address", rig.address)


def clients(rig: Rig) -> list[dict[str, Any]]:
    ran = holdfast(rig, "clients", "--json")
    assert ran.returncode == 0, ran.stderr
    found: list[dict[str, Any]] = json.loads(ran.stdout)["clients"]
    return found


def rest(rig: Rig, path: str, method: str) -> Any:
    http = rig.masters["master-0"][1]["http"]
    request = urllib.request.Request(f"http://{http}/api/v1/clients{path}", method=method)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.loads(answer.read())


def check_revoked(gone: Cache) -> None:
    # The first put may have been sent before the client saw its connection closed: then it is told to be in doubt.
    with pytest.raises((errors.ClientRevoked, errors.ReplyLost), match="the operator has revoked this client"):
        gone.put("more", b"y" * 1000)
    with pytest.raises(errors.ClientRevoked, match="the operator has revoked this client"):
        gone.put("more", b"y" * 1000)


def is_refused(gone: Cache, key: str) -> bool:
    try:
        gone.get(key)
    except errors.ClientRevoked:
        return True
    return False


def test_a_client_is_seen_and_revoked_and_what_it_stored_stays() -> None:
    """I1: what was acknowledged stays, and others go on. Its leases keep nobody from removing."""
    with Rig("32MiB") as rig, rig.connect() as stays, rig.connect() as gone:
        assert gone.put("kept", b"x" * 1000)
        assert gone.get("kept") == b"x" * 1000
        assert gone.put("leased", b"l" * 1000)
        assert gone.get("leased") == b"l" * 1000
        with pytest.raises(errors.ObjectLeased):
            stays.remove("leased")
        mine = [one for one in clients(rig) if one["kind"] == "client" and one["pid"] == os.getpid()]
        writer = next(one for one in mine if one["grants"])
        assert writer["address"] == "local"
        assert writer["granted_bytes"] > 0
        assert "node" in {one["kind"] for one in clients(rig)}
        shown = holdfast(rig, "clients")
        assert writer["handle"] in shown.stdout

        ran = holdfast(rig, "clients", "revoke", writer["handle"])
        assert (ran.returncode, ran.stdout) == (0, "1 client revoked: grants and leases ended, connections closed\n")
        check_revoked(gone)
        assert stays.remove("leased") == 1
        assert stays.get("kept") == b"x" * 1000
        assert stays.put("others", b"z")
        wait_until(lambda: writer["handle"] not in {one["handle"] for one in clients(rig)}, what="it is not listed")

        again = holdfast(rig, "clients", "revoke", "nobody-of-this-name")
        assert again.returncode != 0
        assert "holdfast clients" in again.stderr


def test_the_same_over_rest_and_nodes_give_the_client_nothing_more_over_tcp() -> None:
    """The lease and the ticket that it holds would be good for longer than the test waits."""
    with Rig("32MiB", lease_ttl_ms=120_000) as rig, rig.connect(shared_memory=False) as gone:
        assert gone.put("kept", b"x")
        assert gone.get("kept") == b"x"
        writer = next(one for one in rest(rig, "", "GET")["clients"] if one["grants"])
        assert rest(rig, f"/{writer['handle']}/revoke", "POST") == {"revoked": 1}
        check_revoked(gone)
        wait_until(lambda: is_refused(gone, "kept"), what="the node refuses its ticket")
        with rig.connect() as other:
            assert other.get("kept") == b"x"
        with pytest.raises(urllib.error.HTTPError, match="404"):
            rest(rig, "/nobody/revoke", "POST")
