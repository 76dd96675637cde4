"""holdfast behind LMCache: three faces, named in LMCache's configuration by `module_path` and `class_name`.

`HoldfastL2Adapter`: L2 adapter of type `plugin`, the one to use; its locks are leases of the cluster.
`HoldfastNativeConnector`: connector of an L2 adapter of type `native_plugin`.
`HoldfastConnectorAdapter`: remote storage plugin of the in-process mode (`holdfast://`, `plugin://holdfast`).

All three promise the engine the same: a failure of the cluster is a miss, within a timeout, and never wrong bytes.
Each face is imported when it is asked for, because LMCache's own modules behind it need different packages.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.integrations.lmcache.l2_adapter import HoldfastL2Adapter, HoldfastL2AdapterConfig
    from holdfast.integrations.lmcache.native_connector import HoldfastNativeConnector
    from holdfast.integrations.lmcache.remote_connector import HoldfastConnectorAdapter, HoldfastRemoteConnector

_MODULES = {
    "HoldfastL2Adapter": "l2_adapter",
    "HoldfastL2AdapterConfig": "l2_adapter",
    "HoldfastNativeConnector": "native_connector",
    "HoldfastConnectorAdapter": "remote_connector",
    "HoldfastRemoteConnector": "remote_connector",
}

__all__ = [
    "HoldfastConnectorAdapter",
    "HoldfastL2Adapter",
    "HoldfastL2AdapterConfig",
    "HoldfastNativeConnector",
    "HoldfastRemoteConnector",
]


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(sorted(_MODULES))}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
