# SPDX-License-Identifier: Apache-2.0
"""The warm-up file: records, requests and the arrays in them."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

from headrace import _core, proto, recorded
from headrace.errors import FailedPrecondition
from headrace.recorded import WARMUP_FILE, inputs_of, read_requests

FLOAT = 1

# Two records that TensorFlow's TFRecordWriter wrote: "" and "ab".
WRITTEN = bytes.fromhex("0000000000000000 29039807 d8ea82a20200000000000000 78270b34 6162 1cb0f0f4")


def tensor(dtype: int, shape: list[int], content: bytes = b"", **values: Any) -> Any:
    made = proto.message_class("tensorflow.TensorProto")(dtype=dtype, tensor_content=content, **values)
    for size in shape:
        made.tensor_shape.dim.add(size=size)
    return made


def predict_log(values: list[float], signature: str = "", name: str = "x") -> Any:
    log = proto.message_class("tensorflow.serving.PredictionLog")()
    log.predict_log.request.model_spec.signature_name = signature
    log.predict_log.request.inputs[name].CopyFrom(tensor(FLOAT, [len(values)], float_val=values))
    return log


def write(directory: Path, *logs: Any) -> Path:
    """Writes a warm-up file; what it holds is not covered by checksums."""
    path = directory / WARMUP_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    content = b""
    for log in logs:
        record = log.SerializeToString()
        length = struct.pack("<Q", len(record))
        content += length + struct.pack("<I", recorded._masked(recorded._crc32c(length))) + record + bytes(4)
    path.write_bytes(content)
    return path


SIGNATURE = _core.Signature(
    "serving_default", [_core.TensorSpec("x", FLOAT, [-1], "x:0")], [_core.TensorSpec("y", FLOAT, [-1], "y:0")]
)


def test_requests_are_read_in_order_and_given_to_their_signature(tmp_path: Path) -> None:
    write(tmp_path, predict_log([1, 2]), predict_log([3], "other"), predict_log([4], "serving_default"))
    requests = read_requests(tmp_path)
    assert len(requests) == 3
    assert [rows["x"].tolist() for rows in inputs_of(requests, SIGNATURE)] == [[1, 2], [4]]


def test_requests_that_do_not_fit_the_signature_are_left_out(tmp_path: Path) -> None:
    wrong_type = predict_log([1])
    wrong_type.predict_log.request.inputs["x"].CopyFrom(tensor(3, [1], int_val=[1]))
    contradictory = predict_log([1])
    contradictory.predict_log.request.inputs["x"].CopyFrom(tensor(FLOAT, [2], bytes(4)))
    write(tmp_path, predict_log([1], name="z"), wrong_type, contradictory, predict_log([5]))
    assert [rows["x"].tolist() for rows in inputs_of(read_requests(tmp_path), SIGNATURE)] == [[5]]


def test_logs_of_other_calls_are_skipped(tmp_path: Path) -> None:
    write(tmp_path, proto.message_class("tensorflow.serving.PredictionLog")(), predict_log([1]))
    assert len(read_requests(tmp_path)) == 1


def test_a_model_without_the_file_has_no_requests(tmp_path: Path) -> None:
    assert read_requests(tmp_path) == []


def test_what_tensorflow_wrote_is_read(tmp_path: Path) -> None:
    path = write(tmp_path)
    path.write_bytes(WRITTEN[:16])
    assert read_requests(tmp_path) == []  # one record, which is no PredictLog
    path.write_bytes(WRITTEN)
    with pytest.raises(FailedPrecondition, match="record 1 is no PredictionLog"):
        read_requests(tmp_path)


@pytest.mark.parametrize("content", [b"text", b"a" * 100, WRITTEN[:-1], WRITTEN[:20], b"\0" * 16])
def test_a_file_of_another_format_is_named(tmp_path: Path, content: bytes) -> None:
    path = write(tmp_path)
    path.write_bytes(content)
    with pytest.raises(FailedPrecondition) as caught:
        read_requests(tmp_path)
    assert caught.value.message == f"{path}: broken. Please verify your warmup data is in TFRecord format."


def test_too_many_records_are_refused(tmp_path: Path) -> None:
    write(tmp_path, *[predict_log([1])] * 1001)
    with pytest.raises(FailedPrecondition, match="more than 1000 records"):
        read_requests(tmp_path)
