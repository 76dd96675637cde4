"""The generated messages of etcd are those of messages.proto."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.coordination.etcd import messages_pb2, rpc

SOURCE = Path("holdfast") / "coordination" / "etcd" / "messages.proto"
SOURCES = Path(__file__).parents[2] / "src"


def test_the_generated_messages_are_current(tmp_path: Path) -> None:
    """Any version of the compiler gives the same description; only the code around it differs."""
    protoc = pytest.importorskip("grpc_tools.protoc")
    from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

    made = tmp_path / "descriptions"
    assert protoc.main(["protoc", f"-I{SOURCES}", f"--descriptor_set_out={made}", str(SOURCE)]) == 0
    (wanted,) = FileDescriptorSet.FromString(made.read_bytes()).file
    wanted.ClearField("source_code_info")
    for message in wanted.message_type:
        for field in message.field:
            field.ClearField("json_name")
    found = FileDescriptorProto.FromString(messages_pb2.DESCRIPTOR.serialized_pb)
    assert found == wanted, "messages.proto has changed: run `make protos`"


def test_every_method_has_a_request_and_a_response_of_its_own() -> None:
    used = [message for pair in rpc.METHODS.values() for message in pair]
    assert len(set(used)) == len(used)
    assert set(rpc.METHODS) >= rpc.STREAMS


def test_no_name_of_etcds_own_packages_is_registered() -> None:
    """A process that also uses another client of etcd can import both."""
    assert messages_pb2.DESCRIPTOR.package == "holdfast.etcd"
    assert messages_pb2.DESCRIPTOR.name == SOURCE.as_posix()
