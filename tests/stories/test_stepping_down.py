"""What a master shows after it has led: nothing of its own that may be in no log. Found by simulation."""

from __future__ import annotations

from holdfast.simulation.kernel.scheduler import MS
from holdfast.simulation.runs.run import within
from holdfast.simulation.scripts.script import Operation, Script, ScriptShape
from holdfast.simulation.world.store import STORE
from holdfast.simulation.world.world import World

PUTS = (
    Operation(1_000, 0, "put", 1, ("key/1",), size_bytes=100),
    Operation(2_200, 0, "put", 2, ("key/2",), size_bytes=101),
)


def cut_off_and_deposed(world: World) -> tuple[int, tuple[int, int], bool]:
    """How much the old primary decided and could not log; (what it has read, what it shows); is it promotable?"""
    world.play(2_100)
    (leader,) = [m for m in world.masters.values() if m.alive is not None and m.alive.server.engine is not None]
    master = leader.alive
    assert master is not None
    world.network.cut(leader.name, STORE)
    world.network.cut(STORE, leader.name)
    undurable = 0

    def has_stepped_down() -> bool:
        nonlocal undurable
        engine = master.server.engine
        if engine is not None and engine.log is not None:
            undurable = max(undurable, engine.log.index - engine.log.durable)
        return engine is None

    world.scheduler.run_until(8_000 * MS, has_stepped_down)
    world.network.heal(leader.name, STORE)
    world.network.heal(STORE, leader.name)
    world.scheduler.run_until(20_000 * MS, has_stepped_down)
    return undurable, (master.standby.position.index, master.standby.state.index), master.promotable()[0]


def test_a_deposed_master_shows_nothing_that_it_applied_alone() -> None:
    """I5: it decided a put that could not be logged; its catalogue must not be compared with the log's any more."""
    script = Script(7, ScriptShape(masters=2, nodes=1, clients=1), PUTS, ())
    undurable, (read, shown), promotable = within(script, cut_off_and_deposed)
    assert undurable, "it has decided something that the log does not hold"
    assert shown == read, "what it shows is what it has read from the log"
    assert not promotable
