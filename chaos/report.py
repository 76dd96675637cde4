"""A verdict as text."""

from __future__ import annotations

from chaos.verdict import MOST_TOLD, Verdict


def text_of(verdict: Verdict) -> str:
    lines = [f"{'fault':<34} {'times':>5} {'longest gap':>12} {'down':>9}"]
    for name, row in sorted(verdict.by_fault.items(), key=lambda item: -item[1]["longest_gap_s"]):
        lines.append(f"{name:<34} {row['times']:>5.0f} {row['longest_gap_s']:>10.1f} s {row['down_s']:>7.1f} s")
    lines.append("")
    for title, found in (
        ("lost", verdict.lost),
        ("wrong", verdict.wrong),
        ("impossible", verdict.impossible),
        ("defect", verdict.defects),
    ):
        lines += [f"{title}: {one}" for one in found[:MOST_TOLD]]
        if len(found) > MOST_TOLD:
            lines.append(f"{title}: and {len(found) - MOST_TOLD} more")
    gone = ", ".join(f"{count:,} {why.lower()}" for why, count in sorted(verdict.left_by.items()))
    errors = ", ".join(f"{count:,} {code}" for code, count in sorted(verdict.errors.items()))
    lines.append(f"objects that left: {gone or 'none'}; calls that failed: {errors or 'none'}")
    lines.append(
        f"{verdict.calls:,} calls in {verdict.seconds:.0f} s; availability {verdict.availability:.1%}, "
        f"longest gap {verdict.longest_gap_s:.1f} s; {len(verdict.lost)} lost, {len(verdict.wrong)} wrong, "
        f"{len(verdict.impossible)} impossible ({verdict.undecided} undecided), {len(verdict.defects)} defects"
    )
    return "\n".join(lines)
