# SPDX-License-Identifier: Apache-2.0
"""TensorFlow's and TensorFlow Serving's messages, in a descriptor pool of our own.

The .proto files here are compiled by the build to one descriptor set, headrace.pb.  Generated modules would be bound
to a version of protobuf, and would clash with those of tensorflow and tensorflow-serving-api in the same process.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

DESCRIPTOR_SET = Path(__file__).with_name("headrace.pb")


@cache
def pool() -> DescriptorPool:
    """The pool with every message and service of the files here."""
    made = DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(DESCRIPTOR_SET.read_bytes()).file:
        made.AddSerializedFile(file.SerializeToString())
    return made


@cache
def message_class(name: str) -> Any:
    """The class of a message by its full name, such as "tensorflow.ConfigProto".  Raises KeyError."""
    return GetMessageClass(pool().FindMessageTypeByName(name))
