"""`demo --engine`: the parts that need no torch anywhere, and the whole of it with a tiny model where torch is."""

from __future__ import annotations

import importlib.util
import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from threading import Event
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from holdfast.cli.demo.screen import Screen
from holdfast.cli.engine_demo import command
from holdfast.cli.engine_demo.engine import Answer, DemoEngine, Request
from holdfast.cli.engine_demo.performance import DemoRequest, EnginePerformance, prompt_of
from holdfast.cli.engine_demo.picture import BARS, drawing_of
from holdfast.cli.engine_demo.prefix import block_keys
from holdfast.cli.engine_demo.report import LABELS, verdict_of
from holdfast.cli.engine_demo.shape import Shape
from holdfast.cli.processes.local_cluster import ClusterWanted
from holdfast.errors import HoldfastError, NodeLost, Unreachable
from holdfast.settings import DemoSettings
from tests.cli.conftest import Run
from tests.cli.demo.test_command import interrupted
from tests.cli.processes.test_up import PYTHON, environment

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed here")
TINY = ["--layers", "2", "--width", "64", "--prefix-tokens", "48", "--block-tokens", "16", "--new-tokens", "6"]
SETTINGS = DemoSettings(engine=True, layers=2, width=64, prefix_tokens=48, block_tokens=16, new_tokens=6)
SHAPE = Shape(layers=2, width=64, heads=1)


# Keys


def test_prompts_share_the_keys_of_the_blocks_that_they_begin_with() -> None:
    prompt = list(range(100))
    other = [*prompt[:50], 7, *prompt[51:]]
    keys, others = block_keys("m", prompt, 16), block_keys("m", other, 16)
    assert len(keys) == len(set(keys)) == 6
    assert [mine == theirs for mine, theirs in zip(keys, others, strict=True)] == [True] * 3 + [False] * 3


def test_the_last_token_is_in_no_block() -> None:
    """Somebody must compute it: nothing else says what comes next."""
    assert len(block_keys("m", list(range(64)), 16)) == 3
    assert len(block_keys("m", list(range(65)), 16)) == 4
    assert block_keys("m", list(range(16)), 16) == []


def test_other_models_blocks_and_salts_share_nothing() -> None:
    prompt = list(range(100))
    kinds = [block_keys("m", prompt, 16), block_keys("n", prompt, 16), block_keys("m", prompt, 16, "salt")]
    kinds.append(block_keys("m", prompt, 8))
    assert len({key for keys in kinds for key in keys}) == sum(len(keys) for keys in kinds)


# Verdict


def performance_with(*asked: DemoRequest) -> EnginePerformance:
    wanted = ClusterWanted(data_dir=Path(), run_dir=Path(), size_bytes=0)
    performance = EnginePerformance(SETTINGS, wanted, Event(), Screen(as_json=True))
    performance.story.asked = list(asked)
    return performance


def answers(**different: Answer) -> list[DemoRequest]:
    """A run in which all went well, but for what differs."""
    cached = {"read": 48, "killed": 48, "restarted": 48}
    found = []
    for name in LABELS:
        ms = 1000.0 if name not in cached else 10.0
        right = Answer(tokens=[1, 2, 3], first_token_ms=ms, cached_tokens=cached.get(name, 0))
        found.append(DemoRequest(name, "engine-1", different.get(name, right), cached.get(name, 0)))
    return found


def test_all_is_well_when_tokens_are_equal_and_nothing_is_lost() -> None:
    facts = performance_with(*answers()).facts()
    assert facts["ok"]
    assert verdict_of(facts) == "0 cached tokens lost, 0 of 6 answers different"
    assert [one["name"] for one in facts["requests"]] == list(LABELS)
    assert [one["times_as_fast"] for one in facts["requests"]] == [1.0, 1.0, 100.0, 100.0, 100.0, 1.0]
    assert (facts["prompt_tokens"], facts["prefix_tokens"]) == (64, 48)


def test_other_tokens_are_a_failure() -> None:
    wrong = Answer(tokens=[1, 2, 4], first_token_ms=10.0, cached_tokens=48)
    facts = performance_with(*answers(restarted=wrong)).facts()
    assert not facts["ok"]
    assert verdict_of(facts) == "0 cached tokens lost, 1 of 6 answers different"


def test_a_block_that_is_gone_is_a_failure() -> None:
    colder = Answer(tokens=[1, 2, 3], first_token_ms=10.0, cached_tokens=32)
    facts = performance_with(*answers(killed=colder)).facts()
    assert not facts["ok"]
    assert verdict_of(facts) == "16 cached tokens lost, 0 of 6 answers different"


@pytest.mark.parametrize(("killed", "code"), [([1, 2, 3], 0), ([1, 2, 4], 1)])
def test_the_exit_code_is_the_verdict(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, killed: list[int], code: int
) -> None:
    answer = Answer(tokens=killed, first_token_ms=10.0, cached_tokens=48, failures=["read: gone"])
    facts = performance_with(*answers(killed=answer)).facts()
    monkeypatch.setattr(EnginePerformance, "run", lambda self: facts)
    monkeypatch.setattr(command, "check", lambda settings: None)
    picture = tmp_path / "picture.svg"
    result = run("demo", "--engine", *TINY, "--picture", str(picture))
    assert result.code == code
    rows = [line for line in result.text.splitlines() if any(line.startswith(label) for label in LABELS.values())]
    assert len(rows) == len(LABELS)
    assert ("DIFFERENT" in result.text) == bool(code)
    assert "read: gone" in result.err
    assert picture.exists()
    assert run("demo", "--engine", *TINY, "--json").data == facts


def test_the_picture_is_svg_with_a_bar_for_each_request() -> None:
    drawn = ET.fromstring(drawing_of(performance_with(*answers()).facts()))
    space = "{http://www.w3.org/2000/svg}"
    bars = [one for one in drawn.iter(f"{space}rect") if one.get("class") != "ground"]
    widths = [float(one.get("width", "")) for one in bars]
    assert len(bars) == len(BARS)
    assert widths[1:] == [pytest.approx(widths[0] / 100, abs=0.1)] * 3
    texts = [one.text or "" for one in drawn.iter(f"{space}text")]
    assert "1.00 s" in texts
    assert texts.count("10 ms, 100 times as fast") == 3
    assert "the tokens are the same" in " ".join(texts)


def test_the_picture_says_when_tokens_differ() -> None:
    wrong = Answer(tokens=[1, 2, 4], first_token_ms=10.0, cached_tokens=48)
    assert "THE TOKENS DIFFER" in drawing_of(performance_with(*answers(restarted=wrong)).facts())


# What is refused


def test_without_torch_it_says_what_to_install(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch" else find_spec(name))
    result = run("demo", "--engine", "--json")
    assert result.code == 1
    assert "pip install torch" in result.data["error"]["text"]


@pytest.mark.parametrize(
    ("arguments", "text"), [(["--width", "100"], "multiple of 64"), (["--prefix-tokens", "10"], "at least one block")]
)
def test_a_model_that_cannot_be_is_refused(run: Run, arguments: list[str], text: str) -> None:
    result = run("demo", "--engine", *arguments)
    assert result.code == 2
    assert text in result.err


# With torch


class DictCache:
    """Blocks in a dict, with errors where a test wants them."""

    def __init__(self) -> None:
        self.stored: dict[str, list[Any]] = {}
        self.errors: dict[str, HoldfastError] = {}
        self.away = False

    def put(self, key: str, pieces: list[Any]) -> bool:
        if self.away:
            raise Unreachable("nobody answers")
        return self.stored.setdefault(key, copies := [piece.clone() for piece in pieces]) is copies

    def get_many_into(self, keys: Sequence[str], targets: list[list[Any]]) -> list[int | HoldfastError]:
        if self.away:
            raise Unreachable("nobody answers")
        outcomes: list[int | HoldfastError] = []
        for key, target in zip(keys, targets, strict=True):
            for place, piece in zip(target, self.stored.get(key, []), strict=False):
                place.copy_(piece)
            outcomes.append(self.errors.get(key, int(key in self.stored)))
        return outcomes


def engine_with(cache: DictCache | None) -> DemoEngine:
    from holdfast.cli.engine_demo.model import Model

    as_client: Any = cache
    return DemoEngine(Model(SHAPE, seed=3), SETTINGS.block_tokens, as_client)


REQUEST = Request(prompt=prompt_of(SETTINGS, SHAPE), new_tokens=6)


@needs_torch
def test_tokens_are_the_same_with_and_without_cached_blocks() -> None:
    computed = engine_with(None).answer(REQUEST)
    assert len(set(computed.tokens)) > 2
    cache = DictCache()
    first, second = engine_with(cache).answer(REQUEST), engine_with(cache).answer(REQUEST)
    assert (first.cached_tokens, first.stored_blocks) == (0, 3)
    assert (second.cached_tokens, second.stored_blocks) == (48, 0)
    assert computed.tokens == first.tokens == second.tokens


@needs_torch
def test_wrong_blocks_give_other_tokens() -> None:
    """Else that tokens are equal would prove nothing."""
    cache = DictCache()
    right = engine_with(cache).answer(REQUEST)
    for pieces in cache.stored.values():
        for piece in pieces:
            piece.mul_(-1)
    wrong = engine_with(cache).answer(REQUEST)
    assert wrong.cached_tokens == 48
    assert wrong.tokens != right.tokens


@needs_torch
def test_a_block_that_cannot_be_read_is_computed_and_so_is_what_follows() -> None:
    cache = DictCache()
    right = engine_with(cache).answer(REQUEST)
    cache.errors[list(cache.stored)[1]] = NodeLost("the node is gone")
    answer = engine_with(cache).answer(REQUEST)
    assert (answer.tokens, answer.cached_tokens) == (right.tokens, 16)
    assert answer.failures == ["read: the node is gone"]


@needs_torch
def test_an_engine_goes_on_when_nobody_answers() -> None:
    cache = DictCache()
    cache.away = True
    answer = engine_with(cache).answer(REQUEST)
    assert answer.tokens == engine_with(None).answer(REQUEST).tokens
    assert (answer.cached_tokens, answer.stored_blocks, len(answer.failures)) == (0, 0, 4)


@needs_torch
@pytest.mark.timeout(400)  # Four engines import torch, which a busy machine takes half a minute for.
def test_the_engines_blocks_outlive_it_and_the_primary(folder: Path) -> None:
    """Real processes: I1 as an engine sees it."""
    # Settings of a cluster of the user's own must not reach that of the demo.
    variables = environment(TMPDIR=str(folder), HOLDFAST_TOKEN="hush")
    ran = subprocess.run(
        [*PYTHON, "demo", "--engine", *TINY, "--json"], capture_output=True, text=True, timeout=360, env=variables
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    facts = json.loads(ran.stdout)
    assert facts["ok"]
    cached = {one["name"]: one["cached_tokens"] for one in facts["requests"]}
    assert cached == {"computed": 0, "stored": 0, "read": 48, "killed": 48, "restarted": 48, "cold": 0}
    stored = {one["name"]: one["stored_blocks"] for one in facts["requests"] if one["stored_blocks"]}
    assert stored == {"stored": 3, "cold": 3}
    assert len({one["engine"] for one in facts["requests"]}) == 4
    assert {facts["killed"], facts["new_primary"]} == {"master-1", "master-2"}
    assert not any(one["failures"] for one in facts["requests"])
    assert not list(folder.iterdir())


@needs_torch
@pytest.mark.timeout(400)
def test_an_engine_demo_that_is_interrupted_ends_all_that_it_started(folder: Path) -> None:
    arguments = [*PYTHON, "demo", "--engine", "--prefix-tokens", "20000"]
    assert interrupted(arguments, folder, "engine-1 runs")
