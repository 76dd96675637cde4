"""An operator's requests to a running cluster: drain a node, change a setting, and undo both; change quotas.

The operator repeats a request to the current leader until it is in the log, because the world must be able to heal.
Clients read and masters die meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec

from holdfast import instant
from holdfast.core.rules import CHANGEABLE
from holdfast.core.state.state import MODES
from holdfast.core.state.tenants import Tenant
from holdfast.master.engine.engine import Engine
from holdfast.messages.of_tenants import ChangeTenant
from holdfast.messages.requests import ChangeMode, ChangeSettings
from holdfast.messages.shapes import Message, SettingValue
from holdfast.simulation.kernel.process import ProcessLoop
from holdfast.simulation.kernel.scheduler import MS, Scheduler
from holdfast.simulation.scripts.script import Fault

AGAIN_NS = 300 * MS
QUOTA_TRIES = 10
"""A guarantee may be more than there is memory for; then the operator gives up."""
OPERATOR = 1
"""The operator's number as a client of the masters."""
Leading = Callable[[], tuple[Engine, ProcessLoop] | None]


class Operators:
    def __init__(self, scheduler: Scheduler, leading: Leading) -> None:
        self._scheduler = scheduler
        self._leading = leading

    def drain(self, fault: Fault) -> Callable[[], None]:
        def is_so(engine: Engine, mode: str) -> bool:
            # An unknown node cannot be set aside.
            known = fault.one in engine.primary.members or fault.one in engine.state.modes
            return not known or MODES[engine.state.modes.get(fault.one, 0)] == mode

        self._ask(ChangeMode(fault.one, "draining", evict=True), lambda engine: is_so(engine, "draining"), tries=1)
        return partial(self._ask, ChangeMode(fault.one, "open"), lambda engine: is_so(engine, "open"))

    def change(self, fault: Fault) -> Callable[[], None]:
        name = fault.one
        kind, _, _ = CHANGEABLE[name]
        value: SettingValue = kind(float(fault.other))
        changed = ChangeSettings({name: value})
        self._ask(changed, lambda engine: engine.state.changed.get(name) == value, tries=1)
        return partial(self._ask, ChangeSettings({name: None}), lambda engine: name not in engine.state.changed)

    def change_quotas(self, fault: Fault) -> Callable[[], None] | None:
        """Change quotas of a tenant. If the fault lasts, they are reset at its end."""
        quotas: dict[str, int | float | None] = msgspec.json.decode(fault.other)

        def is_so(engine: Engine, wanted: dict[str, int | float | None]) -> bool:
            number = engine.state.tenants.number_of(fault.one)
            if number is None:
                return False
            tenant, default = engine.state.tenants.of(number), Tenant(0, "")
            values = {name: getattr(default, name) if value is None else value for name, value in wanted.items()}
            return all(getattr(tenant, name) == value for name, value in values.items())

        reset = dict.fromkeys(quotas)
        undone: list[bool] = []

        def undo() -> None:
            undone.append(True)
            self._ask(ChangeTenant(fault.one, reset), partial(is_so, wanted=reset))

        self._ask(
            ChangeTenant(fault.one, quotas), partial(is_so, wanted=quotas), QUOTA_TRIES, is_wanted=lambda: not undone
        )
        return undo if fault.lasts_ms else None

    def _ask(
        self,
        request: Message,
        is_so: Callable[[Engine], bool],
        tries: int = 1_000,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        """Repeat the request until it has taken effect and is durable, for as long as it is wanted. A master that was
        stopped may come to it late."""
        if not is_wanted():
            return
        leading = self._leading()
        if leading is not None:
            engine, process = leading
            if is_so(engine) and not engine.waits_for_log:
                return
            self._scheduler.after(0, partial(_handle, engine, request, is_wanted), process)
        if tries > 1:
            self._scheduler.after(AGAIN_NS, partial(self._ask, request, is_so, tries - 1, is_wanted))


def _handle(engine: Engine, request: Message, is_wanted: Callable[[], bool]) -> None:
    if is_wanted():
        engine.handle(request, OPERATOR, 0, instant.now_ms())
