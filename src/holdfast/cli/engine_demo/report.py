"""The engine demo's results, for people: a table and the verdict."""

from __future__ import annotations

from typing import Any

from holdfast.cli.output import Output, human_bytes

LABELS = {
    "computed": "computed, without holdfast",
    "stored": "nothing cached: computed and stored",
    "read": "from holdfast",
    "killed": "from holdfast, new engine, primary killed at that moment",
    "restarted": "from holdfast, new engine, under the next primary",
    "cold": "nothing cached, under the next primary",
}
HEADINGS = ("REQUEST", "ENGINE", "PROMPT", "CACHED", "FIRST TOKEN", "TIMES AS FAST", "TOKENS")


def row_of(request: dict[str, Any]) -> tuple[object, ...]:
    return (
        LABELS[request["name"]],
        request["engine"],
        f"{request['prompt_tokens']:,}",
        f"{request['cached_tokens']:,}",
        f"{request['first_token_ms']:,.0f} ms",
        f"{request['times_as_fast']:,.1f}",
        "equal" if request["tokens_equal"] else "DIFFERENT",
    )


def report(out: Output, facts: dict[str, Any]) -> None:
    if out.as_json:
        out.data(facts)
        return
    model, requests = facts["model"], facts["requests"]
    out.line("")
    out.table(HEADINGS, [row_of(request) for request in requests], HEADINGS[2:6])
    out.line("")
    out.facts(
        [
            ("model", f"{model['parameters']:,} parameters, random from seed {facts['seed']}, float32"),
            ("threads", model["threads"]),
            ("KV", f"{human_bytes(facts['kv_bytes'])} in blocks of {human_bytes(facts['block_bytes'])}"),
            ("killed", f"{facts['killed']}; {facts['new_primary']} took over"),
        ]
    )
    for failure in sorted({failure for request in requests for failure in request["failures"]}):
        out.note(failure)
    out.line(verdict_of(facts))


def verdict_of(facts: dict[str, Any]) -> str:
    different = sum(not request["tokens_equal"] for request in facts["requests"])
    lost = sum(request["lost_tokens"] for request in facts["requests"])
    return f"{lost:,} cached tokens lost, {different} of {len(facts['requests'])} answers different"
