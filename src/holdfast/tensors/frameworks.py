"""The parts of NumPy and torch that tensors need: the dtype's name, memory to read into, and a tensor over it.

Neither is imported before a caller asks for it or passes one of its tensors.
"""

from __future__ import annotations

import sys
from typing import Any, Literal, Protocol, TypeAlias

from holdfast.client.buffers import memory_at
from holdfast.errors import BadValue
from holdfast.tensors.header import Header

Framework: TypeAlias = Literal["numpy", "torch"]

NUMPY_NAMES = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "uint16": "U16",
    "int16": "I16",
    "float16": "F16",
    "uint32": "U32",
    "int32": "I32",
    "float32": "F32",
    "uint64": "U64",
    "int64": "I64",
    "float64": "F64",
    "complex64": "C64",
    "complex128": "C128",
    # From the package ml_dtypes, which registers them with NumPy.
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e8m0fnu": "F8_E8M0",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
}
"""torch uses the same names for its dtypes as NumPy."""
_NAMED = {ours: theirs for theirs, ours in NUMPY_NAMES.items()}


class Flat(Protocol):
    """Bytes that a framework owns, as the client reads into them, and the tensor that they become."""

    target: Any
    content: memoryview

    def shaped(self, header: Header, start: int) -> Any: ...


def header_for(tensor: Any) -> Header:
    """The header of a caller's tensor; BadValue if it cannot be stored as it lies in memory."""
    if framework_of(tensor) == "torch":
        if tensor.device.type != "cpu":
            raise BadValue(
                f"the tensor is on {tensor.device}; move it to the CPU first (tensor.cpu()). Nothing was done"
            )
        dtype = str(tensor.dtype).removeprefix("torch.")
        contiguous = tensor.is_contiguous()
    else:
        if not tensor.dtype.isnative:
            raise BadValue("the array's byte order is not this machine's; convert it first. Nothing was done")
        dtype = tensor.dtype.name
        contiguous = tensor.flags.c_contiguous
    if not contiguous:
        raise BadValue("the tensor is not contiguous in memory; call .contiguous() or copy it first. Nothing was done")
    if dtype not in NUMPY_NAMES:
        raise BadValue(f"tensors of dtype {dtype} cannot be stored; nothing was done")
    return Header(NUMPY_NAMES[dtype], tuple(tensor.shape))


def framework_of(tensor: Any) -> Framework:
    """The framework of a tensor, by its type, without importing anything."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(tensor, torch.Tensor):
        return "torch"
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(tensor, numpy.ndarray):
        return "numpy"
    raise TypeError(f"a tensor is a NumPy array or a torch tensor, not {type(tensor).__name__}; nothing was done")


def elements_of(tensor: Any) -> list[Any]:
    """The tensor as a list of one buffer of bytes over the same memory; empty if it has no elements."""
    if framework_of(tensor) == "numpy":
        return [tensor.reshape(-1).view("u1")] if tensor.size else []
    import torch

    return [tensor.detach().reshape(-1).view(torch.uint8)] if tensor.numel() else []


def flat(size_bytes: int, framework: Framework | None) -> Flat:
    """Memory for a stored tensor with its header. Without `framework`: torch if the program uses it, else NumPy."""
    chosen = framework or ("torch" if "torch" in sys.modules else "numpy")
    if chosen == "torch":
        return TorchBytes(size_bytes)
    if chosen == "numpy":
        return NumpyBytes(size_bytes)
    raise BadValue(f"framework is 'numpy' or 'torch', not {framework!r}; nothing was read")


class NumpyBytes:
    def __init__(self, size_bytes: int) -> None:
        import numpy as np

        self.target: Any = np.empty(size_bytes, "u1")
        self.content: memoryview = self.target.data

    def shaped(self, header: Header, start: int) -> Any:
        name = _NAMED[header.dtype]
        return self.target[start:].view(self._dtype(name)).reshape(header.shape)

    def _dtype(self, name: str) -> Any:
        import numpy as np

        try:
            return np.dtype(name)
        except TypeError:
            pass
        try:
            import ml_dtypes  # type: ignore[import-not-found, unused-ignore]

            return np.dtype(getattr(ml_dtypes, name))
        except ImportError:
            raise BadValue(f"NumPy has no {name}; install ml_dtypes, or read with framework='torch'") from None


class TorchBytes:
    def __init__(self, size_bytes: int) -> None:
        import torch

        self.target: Any = torch.empty(size_bytes, dtype=torch.uint8)
        self.content = memory_at(self.target.data_ptr(), size_bytes)

    def shaped(self, header: Header, start: int) -> Any:
        import torch

        return self.target[start:].view(getattr(torch, _NAMED[header.dtype])).reshape(header.shape)
