"""A script written as a test: literals that a reader can follow and change, and the claim that it holds."""

from __future__ import annotations

import re

import msgspec

from holdfast.simulation.runs.run import Run

_HEAD = '''\
"""{title}

Found by seed {seed}, made short: {what}.
"""

from __future__ import annotations

from holdfast.simulation.runs.run import run
from holdfast.simulation.scripts.script import Fault, Operation, Script, ScriptShape


def test_{name}() -> None:
    """{promise}"""
    script = Script(
        seed={delays},
        shape={shape},
        operations=(
{operations}
        ),
        faults=(
{faults}
        ),
    )
    found = run(script)
    assert found.violation is None, found.violation
'''


def test_file(shortest: Run, seed: int) -> str:
    """The text of a test that fails while the bug exists."""
    violation = shortest.violation
    assert violation is not None, "a test is written of a run that breaks a promise"
    script = shortest.script
    return _HEAD.format(
        title=f"{violation.promise} must hold here.",
        seed=seed,
        what=violation.what.rstrip("."),
        name=f"seed_{seed}_keeps_{re.sub('[^a-z0-9]+', '_', violation.promise.lower())}",
        promise=violation.promise,
        delays=script.seed,
        shape=literal(script.shape),
        operations="\n".join(f"            {literal(one)}," for one in script.operations),
        faults="\n".join(f"            {literal(one)}," for one in script.faults),
    )


def literal(struct: msgspec.Struct) -> str:
    """The struct as source text, without fields that have their default."""
    said = [
        f"{field.name}={getattr(struct, field.name)!r}"
        for field in msgspec.structs.fields(struct)
        if field.required or getattr(struct, field.name) != field.default
    ]
    return f"{type(struct).__name__}({', '.join(said)})"
