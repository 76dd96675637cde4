"""Settings that may be changed while the cluster runs: they are in the log, and so outlive the primary that took them.

A change takes effect when its record is durable, so that no lease is given for longer than the log says. When the
lease time is shortened, leases of the longer time still live: `longest_lease_ms` in the state is what a promotion must
allow for (I2, I8), and a record shortens it once they have ended by this primary's own clock. Settings that concern
nodes are sent to them as a command.
"""

from __future__ import annotations

from holdfast.core.nodes.node_operations import command
from holdfast.core.primary.decision import Command, Decision
from holdfast.core.primary.primary import Primary
from holdfast.core.rules import CHANGEABLE, Rules, in_force
from holdfast.errors import BadValue
from holdfast.instant import Instant
from holdfast.messages.commands import UpdateConfig
from holdfast.messages.records import SettingsChanged
from holdfast.messages.requests import ChangeCopying, ChangeSettings, Done, SettingsInForce
from holdfast.messages.shapes import Record, SettingValue


def change_settings(primary: Primary, request: ChangeSettings, client: int, now: Instant) -> Decision:
    changed = dict(primary.state.changed)
    for name, value in request.changes.items():
        if name not in CHANGEABLE:
            raise BadValue(
                f"{name!r} cannot be changed while the cluster runs; nothing was changed. These can: "
                + ", ".join(CHANGEABLE)
            )
        if value is None:
            changed.pop(name, None)
        else:
            changed[name] = _checked(name, value)
    rules = in_force(primary.own_rules, changed)
    values: dict[str, SettingValue] = {name: getattr(rules, name) for name in CHANGEABLE}
    reply = SettingsInForce(values, sorted(changed.keys() & CHANGEABLE.keys()))
    if changed == primary.state.changed:
        return Decision(reply)
    longest = max(primary.state.longest_lease_ms, rules.lease_ttl_ms)
    record = settings_changed(rules, changed, longest)
    return Decision(reply, [record], commands=_commands_to_nodes(primary, rules))


def change_copying(primary: Primary, request: ChangeCopying, client: int, now: Instant) -> Decision:
    """Change one of the settings, by a verb of its own."""
    change = ChangeSettings({"copy_bytes_per_second": request.bytes_per_second})
    decision = change_settings(primary, change, client, now)
    return Decision(Done(1), decision.records, commands=decision.commands)


def _commands_to_nodes(primary: Primary, rules: Rules) -> list[Command]:
    """Send the settings that concern nodes, if they are about to change, once the change is durable. Nodes that
    register later get them then; the speed of copies comes with every copy."""
    before = in_force(primary.own_rules, primary.state.changed)
    update = UpdateConfig(rules.copy_bytes_per_second, rules.report_interval_ms)
    if update == UpdateConfig(before.copy_bytes_per_second, before.report_interval_ms):
        return []
    return [command(node, "config_update", update) for node in primary.members]


def _checked(name: str, value: SettingValue) -> SettingValue:
    kind, least, most = CHANGEABLE[name]
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind or not least <= value <= most:
        wanted = "true or false" if kind is bool else f"a number from {least:g} to {most:g}"
        raise BadValue(f"{name} is {wanted}, not {value!r}; nothing was changed")
    return value


def settings_changed(rules: Rules, changed: dict[str, SettingValue], longest_lease_ms: int) -> SettingsChanged:
    return SettingsChanged(
        rules.lease_ttl_ms,
        rules.soft_pin_ttl_ms,
        rules.grant_timeout_ms,
        rules.session_lease_ms,
        rules.session_jeopardy_ms,
        longest_lease_ms,
        changed,
    )


def leases_shortened(primary: Primary, now: Instant) -> list[Record]:
    """The record that the last lease of an earlier, longer time has ended: a promotion need not allow for it."""
    state = primary.state
    if state.longest_lease_ms <= state.lease_ttl_ms:
        return []
    if not primary.longest_until:
        primary.longest_until = now + state.longest_lease_ms
    if now < primary.longest_until:
        return []
    rules = in_force(primary.own_rules, state.changed)
    return [settings_changed(rules, state.changed, state.lease_ttl_ms)]
