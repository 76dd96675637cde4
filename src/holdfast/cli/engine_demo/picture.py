"""The engine demo as a picture: bars of the time to the first token, in SVG that follows light and dark.

Not drawn by matplotlib: here text stays text, small and sharp, and the file has a background of its own, so that it can
be read wherever it is shown.
"""

from __future__ import annotations

from html import escape
from typing import Any

BARS = {
    "computed": ("computed", "without holdfast"),
    "read": ("from holdfast", "the same engine asks again"),
    "killed": ("from holdfast", "new engine, kill -9 of the primary at that moment"),
    "restarted": ("from holdfast", "new engine, under the next primary"),
}
WIDTH, LEFT, RIGHT, TOP, ROW, BAR = 760, 310, 130, 58, 40, 22
STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #1f2328 }
  .title { font-weight: 600; font-size: 15px } .small { font-size: 11px; fill: #59636e }
  .ground { fill: #ffffff; stroke: #d1d9e0 } .computed { fill: #8c959f } .held { fill: #1a7f37 }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc } .small { fill: #9198a1 }
    .ground { fill: #0d1117; stroke: #3d444d } .computed { fill: #9198a1 } .held { fill: #3fb950 }
  }
"""


def drawing_of(facts: dict[str, Any]) -> str:
    """SVG, from what `holdfast demo --engine --json` prints."""
    requests = {one["name"]: one for one in facts["requests"]}
    longest_ms = max(requests[name]["first_token_ms"] for name in BARS)
    height = TOP + len(BARS) * ROW + 28
    title = f"Time to first token, prompt of {facts['prompt_tokens']:,} tokens"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{title}">',
        f"<style>{STYLE}</style>",
        f'<rect class="ground" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="6"/>',
        _text(16, 26, title, "title"),
        _text(16, 44, _subtitle(facts), "small"),
    ]
    for number, name in enumerate(BARS):
        parts += _bar(TOP + number * ROW, requests[name], longest_ms)
    parts += [_text(16, height - 12, "drawn by: holdfast demo --engine --picture FILE", "small"), "</svg>"]
    return "\n".join(parts) + "\n"


def _subtitle(facts: dict[str, Any]) -> str:
    model = facts["model"]
    equal = all(request["tokens_equal"] for request in facts["requests"])
    return (
        f"{model['parameters'] / 1e6:.0f} million parameters, float32, {model['threads']} CPU threads; "
        f"{facts['kv_bytes'] / (1 << 20):.0f} MiB of KV; "
        f"{'the tokens are the same in all runs' if equal else 'THE TOKENS DIFFER'}"
    )


def _bar(top: int, request: dict[str, Any], longest_ms: float) -> list[str]:
    heading, detail = BARS[request["name"]]
    took_ms = request["first_token_ms"]
    # Even the shortest bar is seen.
    width = max(2.0, (WIDTH - LEFT - RIGHT) * took_ms / longest_ms)
    shown = f"{took_ms / 1000:.2f} s" if took_ms >= 1000 else f"{took_ms:.0f} ms"
    ratio = request["times_as_fast"]
    compared = f", {ratio:.0f} times as fast" if ratio >= 2 else ""
    kind = "computed" if request["name"] == "computed" else "held"
    return [
        _text(16, top + 13, heading),
        _text(16, top + 27, detail, "small"),
        f'<rect class="{kind}" x="{LEFT}" y="{top + 4}" width="{width:.1f}" height="{BAR}" rx="2"/>',
        _text(LEFT + width + 6, top + 20, shown + compared),
    ]


def _text(x: float, y: float, text: str, kind: str = "") -> str:
    marked = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y}"{marked}>{escape(text)}</text>'
