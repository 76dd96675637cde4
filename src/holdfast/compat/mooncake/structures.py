"""The small types of `mooncake.store`: how to store, where replicas lie, what a buffer is."""

from __future__ import annotations

import enum
from array import array
from typing import TYPE_CHECKING, Any, Self

MAX_UNSIGNED = (1 << 64) - 1


class _Listed(enum.IntEnum):
    """Prints as the real ones do: `ReplicaStatus.COMPLETE`."""

    def __str__(self) -> str:
        return f"{type(self).__name__}.{self.name}"


class ReplicaStatus(_Listed):
    UNDEFINED = 0
    INITIALIZED = 1
    PROCESSING = 2
    COMPLETE = 3
    REMOVED = 4
    FAILED = 5


class TaskStatus(_Listed):
    PENDING = 0
    PROCESSING = 1
    SUCCESS = 2
    FAILED = 3


class TaskType(_Listed):
    REPLICA_COPY = 0
    REPLICA_MOVE = 1


class SoftPinAction(_Listed):
    PRESERVE = 0
    ENABLE = 1
    DISABLE = 2


class ObjectDataType(_Listed):
    UNKNOWN = 0
    KVCACHE = 1
    TENSOR = 2
    WEIGHT = 3
    SAMPLE = 4
    ACTIVATION = 5
    GRADIENT = 6
    OPTIMIZER_STATE = 7
    METADATA = 8
    GENERAL = 9


def _unsigned(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_UNSIGNED:
        raise TypeError(f"{name} is an unsigned integer of 64 bits, not {value!r}")
    return value


class ReplicateConfig:
    """How objects are to be stored."""

    __slots__ = (
        "_soft_pin_ttl_ms",
        "data_type",
        "dfs_replica_num",
        "group_ids",
        "nof_replica_num",
        "prefer_alloc_in_same_node",
        "preferred_nof_segments",
        "preferred_segment",
        "preferred_segments",
        "replica_num",
        "soft_pin_action",
        "with_hard_pin",
    )

    def __init__(self) -> None:
        self.replica_num = 1
        self.nof_replica_num = 0
        self.dfs_replica_num = 0
        self.soft_pin_action = SoftPinAction.PRESERVE
        self._soft_pin_ttl_ms: int | None = None
        self.with_hard_pin = False
        self.preferred_segments: list[str] = []
        self.preferred_segment = ""
        self.preferred_nof_segments: list[str] = []
        self.prefer_alloc_in_same_node = False
        self.data_type = ObjectDataType.UNKNOWN
        self.group_ids: list[str] | None = None

    @property
    def soft_pin_ttl_ms(self) -> int | None:
        return self._soft_pin_ttl_ms

    @soft_pin_ttl_ms.setter
    def soft_pin_ttl_ms(self, value: int | None) -> None:
        self._soft_pin_ttl_ms = None if value is None else _unsigned("soft_pin_ttl_ms", value)

    @property
    def with_soft_pin(self) -> bool:
        """The switch of releases before 0.3.13, which programs still set."""
        return self.soft_pin_action is SoftPinAction.ENABLE

    @with_soft_pin.setter
    def with_soft_pin(self, value: bool) -> None:
        self.soft_pin_action = SoftPinAction.ENABLE if value else SoftPinAction.PRESERVE

    def __str__(self) -> str:
        fields: dict[str, Any] = {
            "replica_num": self.replica_num,
            "soft_pin_action": SoftPinAction(self.soft_pin_action).name,
            "soft_pin_ttl_ms": "default" if self.soft_pin_ttl_ms is None else self.soft_pin_ttl_ms,
            "with_hard_pin": int(self.with_hard_pin),
            "preferred_segments": self.preferred_segments,
            "data_type": ObjectDataType(self.data_type).name,
        }
        return f"ReplicateConfig: {{ {', '.join(f'{name}: {value}' for name, value in fields.items())} }}"


class Descriptor:
    """Where a replica in memory lies. The endpoint is the node's name, the address an offset in its segment."""

    def __init__(self, size: int = 0, buffer_address: int = 0, transport_endpoint: str = "") -> None:
        self.size = size
        self.buffer_address = buffer_address
        self.transport_endpoint = transport_endpoint

    def __repr__(self) -> str:
        return (
            f"<Descriptor size={self.size} buffer_address={self.buffer_address} "
            f"transport_endpoint={self.transport_endpoint}>"
        )


class MemoryDescriptor:
    def __init__(self, buffer_descriptor: Descriptor | None = None) -> None:
        self.buffer_descriptor = buffer_descriptor if buffer_descriptor is not None else Descriptor()


class DiskDescriptor:
    def __init__(self, file_path: str = "", object_size: int = 0) -> None:
        self.file_path = file_path
        self.object_size = object_size


class ReplicaDescriptor:
    """One replica of an object."""

    def __init__(self, described: MemoryDescriptor | DiskDescriptor) -> None:
        self.status = ReplicaStatus.COMPLETE
        self._described = described

    def is_memory_replica(self) -> bool:
        return isinstance(self._described, MemoryDescriptor)

    def is_disk_replica(self) -> bool:
        return False

    def is_local_disk_replica(self) -> bool:
        return isinstance(self._described, DiskDescriptor)

    def get_memory_descriptor(self) -> MemoryDescriptor:
        if not isinstance(self._described, MemoryDescriptor):
            raise RuntimeError("this replica is not in memory")
        return self._described

    def get_disk_descriptor(self) -> DiskDescriptor:
        if not isinstance(self._described, DiskDescriptor):
            raise RuntimeError("this replica is not on a disk")
        return self._described


class QueryTaskResponse:
    """A copy or move that was asked for. None is ever made here: masters copy by themselves."""

    id: tuple[int, int] = (0, 0)
    type = TaskType.REPLICA_COPY
    status = TaskStatus.FAILED
    created_at_ms_epoch = 0
    last_updated_at_ms_epoch = 0
    assigned_client: tuple[int, int] = (0, 0)
    message = ""


if TYPE_CHECKING:
    Bytes = array[int]
else:
    Bytes = array  # Before Python 3.12 it takes no parameter.


class BufferHandle(Bytes):
    """An object's bytes in memory of this process, writable. An array, since before Python 3.12 no class written in
    Python can offer a buffer by itself."""

    def __new__(cls, size: int = 0) -> Self:
        made: Self = super().__new__(cls, "b", bytes(size))  # type: ignore[assignment]
        return made

    def size(self) -> int:
        return len(self)

    def ptr(self) -> int:
        return self.buffer_info()[0]
