"""The base of all methods of the store: the link while it is set up, and failures that become codes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from holdfast.compat.mooncake.codes import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    OK,
    code_of,
)
from holdfast.compat.mooncake.configuration import BadSetup, setup_of
from holdfast.compat.mooncake.link import MooncakeLink, open_link, say_once
from holdfast.errors import HoldfastError, ObjectNotFound
from holdfast.integrations.link import NO_MASTER

T = TypeVar("T")
log = logging.getLogger("holdfast.mooncake")

NOT_SET_UP, UNREACHABLE = 1, 2
"""The results of `health_check` other than 0."""
_REQUIRED = (
    *("local_hostname", "metadata_server", "global_segment_size", "local_buffer_size"),
    *("protocol", "rdma_devices", "master_server_addr"),
)


class Linked:
    """A store's life: 1. made, 2. set up, 3. used from any thread, 4. closed, and perhaps set up again."""

    def __init__(self) -> None:
        self._link: MooncakeLink | None = None
        self._changing = threading.RLock()

    def setup(
        self,
        local_hostname: str | dict[str, Any] | None = None,
        metadata_server: str | None = None,
        global_segment_size: int | str | None = None,
        local_buffer_size: int | str | None = None,
        protocol: str | None = None,
        rdma_devices: str | None = None,
        master_server_addr: str | None = None,
        engine: object = None,
        enable_ssd_offload: bool = False,
        ssd_offload_path: str = "",
        tenant_id: str = "default",
        enable_client_http_server: bool = False,
        client_http_port: int = 9300,
        *,
        config: dict[str, Any] | None = None,
        device_name: str | None = None,
        master_server_address: str | None = None,
    ) -> int:
        """0 when the store can be used; otherwise a code within seconds, and the reason in the log."""
        said = {
            "local_hostname": local_hostname,
            "metadata_server": metadata_server,
            "global_segment_size": global_segment_size,
            "local_buffer_size": local_buffer_size,
            "protocol": protocol,
            "rdma_devices": rdma_devices if rdma_devices is not None else device_name,
            "master_server_addr": master_server_addr if master_server_addr is not None else master_server_address,
            "enable_ssd_offload": enable_ssd_offload,
            "tenant_id": tenant_id,
            "enable_client_http_server": enable_client_http_server,
        }
        if config is None and isinstance(local_hostname, dict):
            config = local_hostname
        if config is None:
            missing = [name for name in _REQUIRED if said[name] is None]
            if missing:
                raise TypeError(f"setup(): incompatible function arguments: {', '.join(missing)} missing")
        return self._set_up(said if config is None else config)

    def setup_dummy(self, mem_pool_size: int, local_buffer_size: int, server_address: str) -> int:
        """Mooncake's client of a store service on this machine. Here every client is as light as that: it connects to
        the cluster at `server_address`, or at HOLDFAST_AS_MOONCAKE's, and lends nothing."""
        return self._set_up(
            {
                "local_hostname": "localhost",
                "local_buffer_size": local_buffer_size,
                "master_server_addr": server_address,
            }
        )

    def init_all(self, protocol: str, device_name: str, mount_segment_size: int = 1024 << 20) -> int:
        """By the MOONCAKE_* variables, as old programs do."""
        from holdfast.compat.mooncake.configuration import MooncakeConfig

        try:
            found = MooncakeConfig.load_from_env()
        except (ValueError, OSError) as error:
            log.error("init_all: %s", error)
            return INVALID_PARAMS
        said = {**vars(found), "protocol": protocol, "global_segment_size": mount_segment_size}
        return self._set_up(said)

    def _set_up(self, said: dict[str, Any]) -> int:
        try:
            setup = setup_of(said)
        except ValueError as error:
            log.error("setup: %s", error)
            return INVALID_PARAMS
        if said.get("enable_ssd_offload"):
            say_once("enable_ssd_offload is ignored: give nodes a disk instead (holdfast node --disk)")
        if said.get("enable_client_http_server"):
            say_once("enable_client_http_server is ignored: masters have /metrics (holdfast master --mooncake-http)")
        with self._changing:
            self.close()
            try:
                self._link = open_link(setup)
            except BadSetup as error:
                log.error("setup: %s", error)
                return INTERNAL_ERROR
            except (HoldfastError, OSError) as error:
                log.error("setup: the cluster at %r cannot be used: %s", setup.address, error)
                return INTERNAL_ERROR
        return OK

    def close(self) -> int:
        with self._changing:
            link, self._link = self._link, None
            if link is not None:
                link.close()
        return OK

    def __del__(self) -> None:
        # A node that this store started ends with it, not with the process.
        if getattr(self, "_link", None) is not None:
            self.close()

    def health_check(self) -> int:
        link = self._link
        if link is None:
            return NOT_SET_UP
        return self._ask(lambda link: (link.cache.status(), OK)[1], lambda code: UNREACHABLE)

    def get_hostname(self) -> str:
        link = self._link
        return link.hostname if link is not None else ""

    def _ask(self, ask: Callable[[MooncakeLink], T], failed: Callable[[int], T], masterless: bool = False) -> T:
        """The result, or what `failed` makes of the error code. While no master answers, a call fails at once unless it
        is `masterless`: it asks none, or only reads what the link has within reach."""
        link = self._link
        if link is None:
            return failed(INVALID_PARAMS)
        try:
            return link.shared.run(lambda _: ask(link), even_if_down=masterless)
        except HoldfastError as error:
            # The link logs when masters go and come back.
            if not isinstance(error, (*NO_MASTER, ObjectNotFound)):
                log.warning("%s", error)
            return failed(code_of(error))
        except Exception:  # An engine must not end because its cache has a defect.
            log.exception("a call failed in a way that was not foreseen; it counts as a miss")
            return failed(INTERNAL_ERROR)


def same_length(*lists: Sequence[Any]) -> bool:
    return len({len(each) for each in lists}) <= 1
