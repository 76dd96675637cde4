"""An inference engine in a process of its own: it computes a prompt block by block, or reads the blocks from holdfast.

Its life: 1. it reads one line of JSON on stdin, the `Order`, 2. makes its model and connects, 3. computes something
once, so that no request pays for the first use of torch, 4. says that it is ready, 5. answers a line of JSON with a
line of JSON until stdin ends. It keeps nothing between requests: KV that it does not compute comes from holdfast.

A block that cannot be read is computed, whatever the reason. The reason is reported with the answer.
"""

from __future__ import annotations

import random
import sys
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.cli.engine_demo.prefix import block_keys
from holdfast.cli.engine_demo.shape import Shape
from holdfast.errors import HoldfastError
from holdfast.instant import now_seconds

if TYPE_CHECKING:
    from holdfast.cli.engine_demo.model import Model
    from holdfast.client.cache import Cache

TIMEOUT_S = 30.0
"""Patient, because the demo judges whether something was lost. Real engines rather compute after some seconds."""


class Order(msgspec.Struct, frozen=True):
    """The configuration that an engine is started with."""

    shape: Shape
    seed: int
    block_tokens: int
    address: str = ""
    """Of a cluster; empty: the engine computes everything."""


class Request(msgspec.Struct, frozen=True):
    prompt: list[int]
    new_tokens: int
    salt: str = ""


class Answer(msgspec.Struct, frozen=True):
    """Tokens, and where the KV of the prompt came from."""

    tokens: list[int]
    first_token_ms: float
    cached_tokens: int = 0
    load_ms: float = 0.0
    stored_blocks: int = 0
    failures: list[str] = []


class Ready(msgspec.Struct, frozen=True):
    threads: int


class DemoEngine:
    def __init__(self, model: Model, block_tokens: int, cache: Cache | None) -> None:
        self._model = model
        self._block_tokens = block_tokens
        self._cache = cache

    def answer(self, request: Request) -> Answer:
        began = now_seconds()
        prompt, failures = request.prompt, list[str]()
        memory = self._model.new_memory(len(prompt) + request.new_tokens)
        keys = []
        if self._cache is not None:
            keys = block_keys(self._model.shape.name, prompt, self._block_tokens, request.salt)
        cached_blocks = self._load(keys, memory, failures)
        loaded = now_seconds()
        cached_tokens = cached_blocks * self._block_tokens
        stored, token = 0, 0
        for start in range(cached_tokens, len(prompt), self._block_tokens):
            token = self._model.next_token(prompt[start : start + self._block_tokens], memory, start)
            block = start // self._block_tokens
            if block < len(keys):
                stored += self._store(keys[block], self._pieces(memory, block), failures)
        first_token = now_seconds()
        tokens = [token]
        while len(tokens) < request.new_tokens:
            tokens.append(self._model.next_token(tokens[-1:], memory, len(prompt) + len(tokens) - 1))
        return Answer(
            tokens=tokens,
            first_token_ms=round((first_token - began) * 1000, 1),
            cached_tokens=cached_tokens,
            load_ms=round((loaded - began) * 1000, 1),
            stored_blocks=stored,
            failures=failures,
        )

    def _pieces(self, memory: Any, block: int) -> list[Any]:
        """The KV of a block where it lies: one contiguous piece for each layer and kind."""
        start = block * self._block_tokens
        return [kind[start : start + self._block_tokens] for layer in memory for kind in layer]

    def _load(self, keys: list[str], memory: Any, failures: list[str]) -> int:
        """Read blocks into the engine's memory, all at once; how many from the first on are there."""
        if self._cache is None or not keys:
            return 0
        try:
            outcomes = self._cache.get_many_into(keys, [self._pieces(memory, block) for block in range(len(keys))])
        except HoldfastError as error:
            failures.append(f"read: {error}")
            return 0
        failures += [f"read: {outcome}" for outcome in outcomes if isinstance(outcome, HoldfastError)]
        usable = 0
        while usable < len(outcomes) and not isinstance(outcomes[usable], HoldfastError) and outcomes[usable] != 0:
            usable += 1
        return usable

    def _store(self, key: str, pieces: list[Any], failures: list[str]) -> bool:
        assert self._cache is not None
        try:
            return self._cache.put(key, pieces)
        except HoldfastError as error:
            failures.append(f"store: {error}")
            return False


def main() -> None:
    import holdfast
    from holdfast.cli.engine_demo.model import Model, threads
    from holdfast.cli.processes.run import die_with_parent

    die_with_parent()
    order = msgspec.json.decode(sys.stdin.buffer.readline(), type=Order)
    model = Model(order.shape, order.seed)
    cache = holdfast.connect(order.address, timeout=TIMEOUT_S) if order.address else None
    chance = random.Random(order.seed)
    tokens = [chance.randrange(order.shape.vocabulary) for _ in range(order.block_tokens)]
    DemoEngine(model, order.block_tokens, None).answer(Request(prompt=tokens, new_tokens=2))
    engine = DemoEngine(model, order.block_tokens, cache)
    _say(Ready(threads=threads()))
    for line in sys.stdin.buffer:
        _say(engine.answer(msgspec.json.decode(line, type=Request)))


def _say(message: msgspec.Struct) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(message) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
