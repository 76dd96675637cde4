"""Tenants before a primary without processes: puts, quotas, and what each of them holds."""

from __future__ import annotations

import struct

from holdfast.errors import HoldfastError, NoRoom
from holdfast.ids import GrantId, extent_of, namespace_of, tenant_of
from holdfast.messages import of_tenants as t
from holdfast.messages import requests as q
from holdfast.wire.codec import raised
from tests.core.world import World

KIB = 1024


class TenantsWorld(World):
    """A world whose clients belong to tenants: client 100 + n to tenant n, which is named "tn"; 0 is the default."""

    def define(self, number: int, **quotas: float) -> t.TenantInfo:
        name = f"t{number}" if number else "default"
        [info] = self.ask(t.TenantList, t.ChangeTenant(name, dict(quotas))).tenants
        assert info.number == number
        if number:
            self.primary.namespaces[100 + number] = namespace_of(number)
        return info

    def store(self, number: int, *names: str, size: int = KIB, **more: object) -> HoldfastError | None:
        """None: they are stored; otherwise the error, which is NoRoom if the put would have to wait. Then it is given
        up at once: as soon as there is room, it would evict what others stored meanwhile."""
        client = 100 + number
        self.serial += 1
        grant = GrantId(client, self.serial)
        reply = self.send(q.GrantRanges(grant, struct.pack("<Q", extent_of(size) * len(names))), client, timeout_ms=1)
        if reply is None:
            self.engine.connection_lost(1)
            return NoRoom("it waits for room")
        if isinstance(reply, q.Failed):
            return raised(reply)
        try:
            rows = [(namespace_of(number) + name, i * extent_of(size), size) for i, name in enumerate(names)]
            self.commit(grant, rows, **more)
        except HoldfastError as error:
            return error
        finally:
            self.ask(q.Done, q.ReturnGrants([grant]), client)
        return None

    def read(self, number: int, *names: str) -> q.Located:
        return self.ask(q.Located, q.Locate([namespace_of(number) + name for name in names]), 100 + number)

    def used(self, number: int) -> int:
        assert self.state.catalogue.holdings is not None
        return self.state.catalogue.holdings.of(number).used_bytes

    def names_of(self, number: int) -> set[str]:
        """What the tenant's clients can read."""
        keys = [key for key in self.state.catalogue.keys if key is not None and self.state.mask.slot_of(key) < 0]
        return {key[len(namespace_of(number)) :] for key in keys if tenant_of(key) == number}
