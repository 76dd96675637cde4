"""SGLang's own test of its Mooncake backend, from its wheel, with holdfast's `mooncake.store`.

The cluster is named by MOONCAKE_MASTER, as SGLang reads it.
"""

from __future__ import annotations

import importlib.util
import runpy
from pathlib import Path

import torch

from holdfast.compat.mooncake.import_hook import install

operators = torch.library.Library("torchvision", "DEF")
for name in ("nms", "qnms"):
    operators.define(name + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

if __name__ == "__main__":
    install()
    import mooncake.store

    from holdfast.compat.mooncake import store

    assert mooncake.store.MooncakeDistributedStore is store.MooncakeDistributedStore, "the drop-in is not in place"
    found = importlib.util.find_spec("sglang.srt.mem_cache.storage.mooncake_store")
    assert found is not None
    assert found.submodule_search_locations
    runpy.run_path(str(Path(found.submodule_search_locations[0]) / "test_mooncake_store.py"), run_name="__main__")
