"""Messages from the compiled protos, by what protobuf's own generated modules call. Those refuse a protobuf that is
older than their compiler; descriptors work with every one since 3.21."""

from __future__ import annotations

import pathlib
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.internal import builder

_COMPILED = pathlib.Path(__file__).parent / "protos.binpb"


def fill(namespace: dict[str, Any], proto: str) -> None:
    """Puts the messages and enums of a proto into a module."""
    if not _COMPILED.is_file():
        raise ImportError(f"{_COMPILED} is missing; it is made by `pip install ./client/python`")
    files = descriptor_pb2.FileDescriptorSet.FromString(_COMPILED.read_bytes())
    file = next(file for file in files.file if file.name == proto)
    descriptor = descriptor_pool.Default().AddSerializedFile(file.SerializeToString())
    namespace["DESCRIPTOR"] = descriptor
    builder.BuildMessageAndEnumDescriptors(descriptor, namespace)
    builder.BuildTopDescriptorsAndMessages(descriptor, namespace["__name__"], namespace)
