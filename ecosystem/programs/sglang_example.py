"""examples/sglang_pages.py as a user runs it, in SGLang's environment. HOLDFAST_ADDRESS names the cluster."""

from __future__ import annotations

import runpy
from pathlib import Path

import torch

# The operators of the packaged torchvision do not load beside a torch for CPUs; SGLang only wants them to be declared.
operators = torch.library.Library("torchvision", "DEF")
for name in ("nms", "qnms"):
    operators.define(name + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

if __name__ == "__main__":
    runpy.run_path(str(Path(__file__).parents[2] / "examples" / "sglang_pages.py"), run_name="__main__")
