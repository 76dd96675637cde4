"""Tenants: names with a number and quotas. Their keys are kept apart by a prefix (`ids.namespace_of`, ADR 50)."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.messages.shapes import TenantQuotas

DEFAULT_NAME = "default"
"""The tenant of identities that name none."""


class Tenant(TenantQuotas, frozen=True, gc=False):  # type: ignore[misc] # msgspec allows it.
    @property
    def limits_puts(self) -> bool:
        """Has it a limit that a put could exceed?"""
        return self.limit_bytes > 0 or self.max_objects > 0 or self.hard_pin_share < 1


_DEFAULT = Tenant(0, DEFAULT_NAME)


class Tenants:
    """All tenants that were defined, by number. False while there are none: then only the default tenant exists."""

    __slots__ = ("_numbers", "any_limits", "by_number", "next_number")

    def __init__(self, tenants: Iterable[Tenant] = (), next_number: int = 1) -> None:
        self.by_number: dict[int, Tenant] = {}
        self.any_limits = False
        """Has one of them a limit that a put could exceed?"""
        self._numbers: dict[str, int] = {}
        self.next_number = next_number
        """Numbers below it were given out, and are not again: old keys and old clients may remember them."""
        for tenant in tenants:
            self.put(tenant)

    def __len__(self) -> int:
        return len(self.by_number)

    @property
    def were_there(self) -> bool:
        """Has there ever been one?"""
        return self.next_number > 1

    def put(self, tenant: Tenant) -> None:
        self.by_number[tenant.number] = tenant
        self._numbers[tenant.name] = tenant.number
        self._note_limits()
        self.next_number = max(self.next_number, tenant.number + 1)

    def remove(self, number: int) -> None:
        del self._numbers[self.by_number.pop(number).name]
        self._note_limits()

    def _note_limits(self) -> None:
        self.any_limits = any(tenant.limits_puts for tenant in self.by_number.values())

    def of(self, number: int) -> Tenant:
        """The default tenant has no quotas, unless it was given some."""
        tenant = self.by_number.get(number)
        return tenant if tenant is not None else _DEFAULT

    def number_of(self, name: str) -> int | None:
        """None if no tenant of this name was defined; 0 for the default tenant, which always exists."""
        return 0 if name in ("", DEFAULT_NAME) else self._numbers.get(name)
