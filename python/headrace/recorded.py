# SPDX-License-Identifier: Apache-2.0
"""Requests that a model brings along: the PredictRequests in TensorFlow Serving's warm-up file."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from headrace import _core, proto
from headrace.errors import FailedPrecondition
from headrace.probe import Rows
from headrace.tensor_proto import array_of

WARMUP_FILE = "assets.extra/tf_serving_warmup_requests"
RECORDS_MAX = 1000  # as TensorFlow Serving


def read_requests(directory: Path) -> list[Any]:
    """The PredictRequests in the warm-up file of a version directory; [] without such a file.

    Raises FailedPrecondition for a file that is not one, or that has too many records.
    """
    path = directory / WARMUP_FILE
    if not path.exists():
        return []
    log_class = proto.message_class("tensorflow.serving.PredictionLog")
    requests = []
    for number, record in enumerate(_records(path)):
        if number == RECORDS_MAX:
            raise FailedPrecondition(f"{path}: more than {RECORDS_MAX} records")
        try:
            log = log_class.FromString(record)
        except DecodeError:
            raise FailedPrecondition(f"{path}: record {number} is no PredictionLog") from None
        if log.WhichOneof("log_type") == "predict_log":
            requests.append(log.predict_log.request)
    return requests


def inputs_of(requests: list[Any], signature: _core.Signature) -> list[Rows]:
    """The inputs of those requests that are for `signature` and fit it."""
    return [
        {spec.name: array_of(request.inputs[spec.name]) for spec in signature.inputs}
        for request in requests
        if (request.model_spec.signature_name or "serving_default") == signature.name and _fits(request, signature)
    ]


def _fits(request: Any, signature: _core.Signature) -> bool:
    if set(request.inputs) != {spec.name for spec in signature.inputs}:
        return False
    for spec in signature.inputs:
        tensor = request.inputs[spec.name]
        if tensor.dtype != spec.dtype:
            return False
        try:
            array_of(tensor)
        except ValueError:
            return False
    return True


def _records(path: Path) -> Iterator[bytes]:
    """The records of a TFRecord file: length, checksum of the length, content, checksum of the content."""
    content = path.read_bytes()
    offset = 0
    while offset < len(content):
        header = content[offset : offset + 12]
        if len(header) == 12:
            length, checksum = struct.unpack("<QI", header)
            end = offset + 12 + length
            if checksum == _masked(_crc32c(header[:8])) and end + 4 <= len(content):
                yield content[offset + 12 : end]
                offset = end + 4
                continue
        raise FailedPrecondition(f"{path}: broken. Please verify your warmup data is in TFRecord format.")


def _masked(crc: int) -> int:
    """As the format stores it, since a checksum of what holds checksums is a weak one."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _crc32c_table()[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


@cache
def _crc32c_table() -> list[int]:
    table = []
    for value in range(256):
        crc = value
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
        table.append(crc)
    return table
