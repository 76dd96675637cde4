"""The story of `holdfast demo --engine`, and its verdict.

1. An engine without holdfast computes a prompt: its tokens are what all others must say.
2. An engine with holdfast computes and stores the prompt's blocks, and is asked again: now they are read.
3. That engine is killed, and another is started. The primary is killed, and in the same moment the engine is asked.
4. One more engine is started under the next primary, and asked; then again with a salt under which nothing is stored.

It fails if any tokens differ, or if a block that was stored is missing.
"""

from __future__ import annotations

import os
import random
import signal
from dataclasses import dataclass, field
from threading import Event
from typing import Any

from holdfast.cli.cluster.masters import await_primary, primary_of, survey
from holdfast.cli.demo.screen import Screen
from holdfast.cli.engine_demo.engine import Answer, Order, Request
from holdfast.cli.engine_demo.process import EngineProcess
from holdfast.cli.engine_demo.shape import Shape
from holdfast.cli.processes.fleet import Fleet
from holdfast.cli.processes.local_cluster import ClusterWanted, LocalCluster
from holdfast.errors import TryAgain
from holdfast.instant import now_seconds
from holdfast.messages.requests import Status
from holdfast.settings import DemoSettings

QUESTION_TOKENS = 16
"""Tokens after the prefix, which every request computes."""
NEXT_PRIMARY_WITHIN_S = 60.0
HEAD_WIDTH = 64


@dataclass(frozen=True, slots=True)
class DemoRequest:
    """One request, and its answer."""

    name: str
    engine: str
    answer: Answer
    expected_cached: int


@dataclass(slots=True)
class EngineStory:
    began: float = field(default_factory=now_seconds)
    events: list[tuple[float, str]] = field(default_factory=list)
    asked: list[DemoRequest] = field(default_factory=list)
    killed: str = ""
    new_primary: str = ""
    threads: int = 0


def shape_of(settings: DemoSettings) -> Shape:
    return Shape(settings.layers, settings.width, settings.width // HEAD_WIDTH)


def prompt_of(settings: DemoSettings, shape: Shape) -> list[int]:
    chance = random.Random(settings.seed)
    return [chance.randrange(shape.vocabulary) for _ in range(settings.prefix_tokens + QUESTION_TOKENS)]


class EnginePerformance:
    """The demo from the start of the cluster to the verdict. The caller of `run` must call `end`."""

    def __init__(self, settings: DemoSettings, wanted: ClusterWanted, stop: Event, screen: Screen) -> None:
        self.settings = settings
        self.shape = shape_of(settings)
        self.prompt = prompt_of(settings, self.shape)
        self.cluster = LocalCluster(Fleet(stop, self.tell), wanted)
        self.story = EngineStory()
        self._stop = stop
        self._screen = screen
        self._engine: EngineProcess | None = None
        self._engines = 0

    @property
    def prefix_tokens(self) -> int:
        """The number of tokens that can be stored: whole blocks."""
        return (len(self.prompt) - 1) // self.settings.block_tokens * self.settings.block_tokens

    def tell(self, text: str) -> None:
        self.story.events.append((now_seconds() - self.story.began, text))
        self._screen.tell(*self.story.events[-1])

    def run(self) -> dict[str, Any]:
        self.start_engine(with_holdfast=False)
        self.ask("computed")
        self.cluster.start(self._stop)
        self.tell("two masters and a node run")
        self.start_engine()
        self.ask("stored")
        self.ask("read", expected_cached=self.prefix_tokens)
        self.start_engine()
        epoch = self.kill_primary()
        self.ask("killed", expected_cached=self.prefix_tokens)
        self.await_next_primary(epoch)
        self.start_engine()
        self.ask("restarted", expected_cached=self.prefix_tokens)
        self.ask("cold", salt="nothing is stored under this")
        return self.facts()

    def end(self) -> None:
        if self._engine is not None:
            self._engine.kill()
        self.cluster.fleet.end()

    def start_engine(self, with_holdfast: bool = True) -> None:
        """Kill the engine that there is, and start another, which knows nothing."""
        if self._engine is not None:
            self._engine.kill()
            self.tell(f"{self._engine.name} was killed with SIGKILL (process {self._engine.pid})")
        self._engines += 1
        address = self.cluster.address if with_holdfast else ""
        order = Order(self.shape, self.settings.seed, self.settings.block_tokens, address)
        self._engine = EngineProcess(f"engine-{self._engines}", order, self.cluster.wanted.environment, self.look_after)
        self.story.threads = self._engine.await_ready().threads
        self.tell(f"{self._engine.name} runs, {'with' if with_holdfast else 'without'} holdfast")

    def ask(self, name: str, expected_cached: int = 0, salt: str = "") -> None:
        assert self._engine is not None
        answer = self._engine.ask(Request(self.prompt, self.settings.new_tokens, salt))
        self.story.asked.append(DemoRequest(name, self._engine.name, answer, expected_cached))
        self.tell(
            f"{self._engine.name} answered: the first token after {answer.first_token_ms:,.0f} ms, "
            f"{answer.cached_tokens:,} of {len(self.prompt):,} tokens from holdfast"
        )

    def look_after(self) -> None:
        """Restart processes that die, as a supervisor would."""
        if self._stop.is_set():
            raise KeyboardInterrupt
        for child, _ in [*self.cluster.masters, *self.cluster.nodes]:
            self.cluster.fleet.look_after(child, now_seconds())

    def kill_primary(self) -> int:
        """The epoch of the one that was killed."""
        primary = primary_of(survey(self.cluster.addresses, ""))
        if primary is None:
            raise TryAgain("no master is primary, so none was killed. Is the machine overloaded?")
        child = self.cluster.master_named(primary.name)
        self.story.killed = primary.name
        os.kill(child.pid, signal.SIGKILL)
        self.tell(f"{primary.name}, the primary, was killed with SIGKILL (process {child.pid})")
        return primary.epoch

    def await_next_primary(self, epoch: int) -> Status:
        def is_next(status: Status) -> bool:
            return status.epoch > epoch

        until = now_seconds() + NEXT_PRIMARY_WITHIN_S
        primary = await_primary(lambda: survey(self.cluster.addresses, "", seconds=1.0), is_next, until, self._stop)
        if primary is None:
            raise TryAgain(f"no master became primary within {NEXT_PRIMARY_WITHIN_S:g} s. Is the machine overloaded?")
        self.story.new_primary = primary.name
        self.tell(f"{primary.name} is the primary now, in epoch {primary.epoch}")
        return primary

    def facts(self) -> dict[str, Any]:
        reference = self.story.asked[0].answer
        requests = [
            {
                "name": one.name,
                "engine": one.engine,
                "prompt_tokens": len(self.prompt),
                "cached_tokens": one.answer.cached_tokens,
                "lost_tokens": max(0, one.expected_cached - one.answer.cached_tokens),
                "first_token_ms": one.answer.first_token_ms,
                "load_ms": one.answer.load_ms,
                "times_as_fast": round(reference.first_token_ms / max(one.answer.first_token_ms, 0.1), 1),
                "stored_blocks": one.answer.stored_blocks,
                "tokens_equal": one.answer.tokens == reference.tokens,
                "failures": one.answer.failures,
            }
            for one in self.story.asked
        ]
        return {
            "ok": all(one["tokens_equal"] and not one["lost_tokens"] for one in requests),
            "model": {"name": self.shape.name, "parameters": self.shape.parameters, "threads": self.story.threads},
            "seed": self.settings.seed,
            "block_tokens": self.settings.block_tokens,
            "block_bytes": self.shape.kv_bytes(self.settings.block_tokens),
            "prompt_tokens": len(self.prompt),
            "prefix_tokens": self.prefix_tokens,
            "kv_bytes": self.shape.kv_bytes(self.prefix_tokens),
            "tokens": reference.tokens,
            "requests": requests,
            "killed": self.story.killed,
            "new_primary": self.story.new_primary,
            "address": self.cluster.address,
            "events": [{"at_ms": round(at * 1000), "text": text} for at, text in self.story.events],
        }
