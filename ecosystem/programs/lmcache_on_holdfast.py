"""A plugin for pytest: LMCache's own tests run on holdfast, in place of the mocks that they bring.

`MockNativeConnector` and `MockL2Adapter` of a test module become ours, each on keys of its own, which is an empty
store. HOLDFAST_ADDRESS says where the cluster is.
"""

from __future__ import annotations

import itertools
import os
from typing import Any

from holdfast.integrations import lmcache as faces

_numbers = itertools.count()


def _own_keys() -> dict[str, object]:
    return {"key_prefix": f"lmcache-tests-{os.getpid()}-{next(_numbers)}", "timeout_s": 30}


def native_connector() -> Any:
    return faces.HoldfastNativeConnector(**_own_keys())


def l2_adapter(config: Any) -> Any:
    """`config` is the mock's: its capacity is what LMCache is to count with."""
    given = {**_own_keys(), "max_capacity_gb": config.max_size_gb}
    return faces.HoldfastL2Adapter(faces.HoldfastL2AdapterConfig.from_dict(given))


IN_PLACE_OF = {"MockNativeConnector": native_connector, "MockL2Adapter": l2_adapter}


def pytest_collection_modifyitems(items: list[Any]) -> None:
    for module in {item.module for item in items}:
        for name, ours in IN_PLACE_OF.items():
            if hasattr(module, name):
                setattr(module, name, ours)
