"""etcd as it is run in earnest: three members of which one dies, a full quota, a revoked lease (I1, I12)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc.aio
import pytest
import pytest_asyncio

from holdfast.coordination.backends import open_coordination
from holdfast.coordination.etcd import rpc
from holdfast.coordination.interface import CoordinationLost
from holdfast.coordination.leader_lookup import find_leader
from holdfast.errors import ReplyLost
from holdfast.instant import now_seconds
from tests.contract.servers import Server, etcd_of_three, start_etcd
from tests.contract.stories import append_all, has_passed, read_log, soon, until
from tests.contract.test_outages import append_at_last
from tests.ports import free_ports


async def raft_leader(members: dict[str, Server]) -> Server:
    """The member that leads the others."""
    for member in members.values():
        async with grpc.aio.insecure_channel(f"127.0.0.1:{member.port}") as channel:
            status = await rpc.stub(channel, "Maintenance").Status(rpc.StatusRequest(), timeout=10)
        if status.leader == status.header.member_id:
            return member
    raise AssertionError("no member leads")


async def test_nothing_is_lost_when_the_leading_member_of_three_is_killed_amid_appends(tmp_path: Path) -> None:
    """I1."""
    with etcd_of_three(tmp_path) as members:
        hosts = ",".join(f"127.0.0.1:{member.port}" for member in members.values())
        one = await open_coordination(f"etcd://{hosts}/c")
        two = await open_coordination(f"etcd://{hosts}/c")
        term = await soon(one.campaign("one:7070"))
        following = asyncio.create_task(read_log(two, 0, 200))
        for index in range(1, 201):
            if index == 60:
                (await raft_leader(members)).end()
            assert await append_at_last(term, index, f"batch {index}".encode())
        assert await soon(following) == [(index, f"batch {index}".encode()) for index in range(1, 201)]
        await one.close()
        await two.close()


@pytest_asyncio.fixture
async def small_etcd(tmp_path: Path) -> AsyncIterator[Server]:
    with start_etcd(tmp_path / "small", "--quota-backend-bytes", str(16 << 20)) as server:
        yield server


async def make_room(server: Server) -> None:
    """What an operator does: defragment, then disarm the alarm."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        stub = rpc.stub(channel, "Maintenance")
        await stub.Defragment(rpc.DefragmentRequest(), timeout=20)
        for alarm in (await stub.Alarm(rpc.AlarmRequest(action=rpc.AlarmRequest.GET), timeout=20)).alarms:
            disarm = rpc.AlarmRequest(action=rpc.AlarmRequest.DEACTIVATE, memberID=alarm.memberID, alarm=alarm.alarm)
            await stub.Alarm(disarm, timeout=20)


async def test_a_full_quota_is_said_the_leader_stays_valid_and_goes_on_once_there_is_room(small_etcd: Server) -> None:
    coordination = await open_coordination(f"etcd://127.0.0.1:{small_etcd.port}/c", leader_ttl_ms=2000)
    term = await soon(coordination.campaign("one:7070"))
    index = 0
    with pytest.raises(ReplyLost, match="quota"):
        for index in range(1, 60):
            await soon(term.append(index, bytes(1_000_000)))
    # etcd may have written what took it over its quota, and says no nevertheless: whoever asks again is told so.
    written = await coordination.last_index()
    assert written in (index - 1, index)
    if written == index:
        await soon(term.append(index, bytes(1_000_000)))
    at_full = term.valid_until

    async def renewed() -> bool:
        return term.valid_until > at_full + 1.0

    await until(renewed, "reads may go on: the leadership needs no writes to be renewed")
    await coordination.trim(written)

    async def goes_on() -> bool:
        await make_room(small_etcd)
        try:
            await term.append(written + 1, b"there is room again")
        except (CoordinationLost, ReplyLost):
            return False
        return True

    await until(goes_on, "an append, once the operator has made room")
    await coordination.close()


async def test_what_took_etcd_over_its_quota_is_not_said_to_be_unwritten(small_etcd: Server) -> None:
    """Several at once pass etcd's first look at its quota; what exceeds it then is written and answered with no."""
    # A long leadership means patience with each call: all the values are listed in one answer.
    coordination = await open_coordination(f"etcd://127.0.0.1:{small_etcd.port}/c", leader_ttl_ms=30_000)
    said: dict[str, object] = {}
    while not any("quota" in str(answer) for answer in said.values()):
        assert len(said) < 400, "etcd took more than its quota"
        names = [f"value/{number}" for number in range(len(said), len(said) + 8)]
        writing = (coordination.publish(name, bytes(1_000_000), None) for name in names)
        said |= zip(names, await asyncio.gather(*writing, return_exceptions=True), strict=True)
    assert all(answer is None or isinstance(answer, ReplyLost) for answer in said.values())
    assert {name for name, answer in said.items() if answer is None} <= (await coordination.list("value/")).keys()
    await coordination.close()


async def test_a_revoked_lease_ends_the_term_and_the_next_waits_out_its_promise(etcd_server: Server) -> None:
    """I12: the old leader may not have heard of it, so its whole time must pass."""
    url = f"etcd://127.0.0.1:{etcd_server.port}/revoked"
    one, two = [await open_coordination(url, leader_ttl_ms=3000) for _ in range(2)]
    old = await soon(one.campaign("one:7070"))
    promised = old.valid_until
    waiting = asyncio.create_task(two.campaign("two:7070"))
    async with grpc.aio.insecure_channel(f"127.0.0.1:{etcd_server.port}") as channel:
        kvs = (await rpc.stub(channel, "KV").Range(rpc.RangeRequest(key=b"/holdfast/revoked/leader"), timeout=10)).kvs
        await append_all(old, 1, [b"a"])
        await rpc.stub(channel, "Lease").LeaseRevoke(rpc.LeaseRevokeRequest(ID=kvs[0].lease), timeout=10)
    assert await soon(old.ended())
    assert await has_passed(old)
    new = await soon(waiting)
    assert new.proof in ("silence", "expired")
    assert now_seconds() > promised
    await append_all(new, 2, [b"b"])
    await one.close()
    await two.close()


async def test_a_list_of_members_may_hold_dead_ones(etcd_server: Server) -> None:
    dead = free_ports(2)
    hosts = f"127.0.0.1:{dead[0]},127.0.0.1:{etcd_server.port},127.0.0.1:{dead[1]}"
    coordination = await open_coordination(f"etcd://{hosts}/dead-members")
    term = await soon(coordination.campaign("one:7070"))
    await append_all(term, 1, [b"a"])
    found = await asyncio.to_thread(find_leader, f"etcd://{hosts}/dead-members", 5.0)
    assert found is not None
    assert found.address == "one:7070"
    await coordination.close()
