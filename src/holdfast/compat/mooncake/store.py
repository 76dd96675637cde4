"""The module that stands in for `mooncake.store`: its classes, on a holdfast cluster."""

from __future__ import annotations

from holdfast.compat.mooncake.catalogue import StoreListing
from holdfast.compat.mooncake.memory.buffers import (
    BufferLease,
    BufferLeaseView,
    BufferPool,
    MooncakeHostMemAllocator,
    bind_to_numa_node,
    get_alloc_func_addr,
    get_free_func_addr,
)
from holdfast.compat.mooncake.sessions import Sessions
from holdfast.compat.mooncake.structures import (
    BufferHandle,
    Descriptor,
    DiskDescriptor,
    MemoryDescriptor,
    ObjectDataType,
    QueryTaskResponse,
    ReplicaDescriptor,
    ReplicaStatus,
    ReplicateConfig,
    SoftPinAction,
    TaskStatus,
    TaskType,
)
from holdfast.compat.mooncake.tensors.format import deserialize_tensor as _deserialize_tensor
from holdfast.compat.mooncake.tensors.format import serialize_tensor as _serialize_tensor
from holdfast.compat.mooncake.tensors.format import tensor_metadata_size as _tensor_metadata_size
from holdfast.compat.mooncake.tensors.parallel import ParallelAxis, ParallelTensors, ReadTarget, TensorParallelism

RegisteredBufferPool = BufferPool
RegisteredBufferLease = BufferLease
RegisteredBufferLeaseView = BufferLeaseView
UNDEFINED, INITIALIZED, COMPLETE, REMOVED = (
    ReplicaStatus.UNDEFINED,
    ReplicaStatus.INITIALIZED,
    ReplicaStatus.COMPLETE,
    ReplicaStatus.REMOVED,
)
PENDING, PROCESSING, SUCCESS, FAILED = TaskStatus
REPLICA_COPY, REPLICA_MOVE = TaskType
UNKNOWN, KVCACHE, TENSOR, WEIGHT, SAMPLE, ACTIVATION, GRADIENT, OPTIMIZER_STATE, METADATA, GENERAL = ObjectDataType


class MooncakeDistributedStore(ParallelTensors, Sessions, StoreListing):
    """A client of the cluster with Mooncake's methods, answers and error codes. Any number of threads may share it."""

    def __init__(self) -> None:
        super().__init__()
        self._pool = MooncakeHostMemAllocator()

    def alloc_from_mem_pool(self, size: int) -> int:
        """The address of host memory; 0 before `setup`, or where there is none."""
        return self._pool.alloc(size) if self._link is not None else 0


__all__ = [
    "ACTIVATION",
    "COMPLETE",
    "FAILED",
    "GENERAL",
    "GRADIENT",
    "INITIALIZED",
    "KVCACHE",
    "METADATA",
    "OPTIMIZER_STATE",
    "PENDING",
    "PROCESSING",
    "REMOVED",
    "REPLICA_COPY",
    "REPLICA_MOVE",
    "SAMPLE",
    "SUCCESS",
    "TENSOR",
    "UNDEFINED",
    "UNKNOWN",
    "WEIGHT",
    "BufferHandle",
    "BufferLease",
    "BufferLeaseView",
    "BufferPool",
    "Descriptor",
    "DiskDescriptor",
    "MemoryDescriptor",
    "MooncakeDistributedStore",
    "MooncakeHostMemAllocator",
    "ObjectDataType",
    "ParallelAxis",
    "QueryTaskResponse",
    "ReadTarget",
    "RegisteredBufferLease",
    "RegisteredBufferLeaseView",
    "RegisteredBufferPool",
    "ReplicaDescriptor",
    "ReplicaStatus",
    "ReplicateConfig",
    "SoftPinAction",
    "TaskStatus",
    "TaskType",
    "TensorParallelism",
    "_deserialize_tensor",
    "_serialize_tensor",
    "_tensor_metadata_size",
    "bind_to_numa_node",
    "get_alloc_func_addr",
    "get_free_func_addr",
]
