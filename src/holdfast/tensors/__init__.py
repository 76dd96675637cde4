"""Tensors in the cache: dtype and shape are kept beside the bytes.

    from holdfast import tensors
    tensors.put_tensor(cache, "layer/0", array)        # NumPy or torch (CPU), any dtype, bfloat16 and fp8 too
    tensors.get_tensor(cache, "layer/0")               # the same; framework="numpy" or "torch" chooses
    tensors.get_tensor_into(cache, "layer/0", array)   # into memory that is there already
    tensors.put_safetensors(cache, "model.safetensors", prefix="model/")
    tensors.get_safetensors(cache, "copy.safetensors", prefix="model/")

NumPy and torch are used if they are installed, and imported only when needed; safetensors files need neither.
"""

from __future__ import annotations

from holdfast.tensors.safetensors import get_safetensors, put_safetensors
from holdfast.tensors.verbs import get_tensor, get_tensor_into, get_tensors, put_tensor, put_tensors

__all__ = [
    "get_safetensors",
    "get_tensor",
    "get_tensor_into",
    "get_tensors",
    "put_safetensors",
    "put_tensor",
    "put_tensors",
]
