# SPDX-License-Identifier: Apache-2.0
"""The Predict codec against protobuf's own encoding of the same messages, and against TensorFlow's own decoder.

The codec has no hook of its own in Python: messages go through a model that returns what it gets.
"""

from __future__ import annotations

import pickle
import random
import select
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from headrace import _core, proto

ANSWER_WITHIN_S = 30
OK, INVALID_ARGUMENT, NOT_FOUND, FAILED_PRECONDITION = 0, 3, 5, 9

# dtype: its number, its field, and what the field's values are made of (None: the elements themselves).
NUMERIC: dict[str, tuple[int, str, Any]] = {
    "float32": (1, "float_val", None),
    "float64": (2, "double_val", None),
    "int32": (3, "int_val", None),
    "uint8": (4, "int_val", None),
    "int16": (5, "int_val", None),
    "int8": (6, "int_val", None),
    "complex64": (8, "scomplex_val", np.float32),
    "int64": (9, "int64_val", None),
    "bool": (10, "bool_val", None),
    "bfloat16": (14, "half_val", np.uint16),
    "uint16": (17, "int_val", None),
    "complex128": (18, "dcomplex_val", np.float64),
    "float16": (19, "half_val", np.uint16),
    "uint32": (22, "uint32_val", None),
    "uint64": (23, "uint64_val", None),
}
STRING = 7
DTYPES = {**{name: number for name, (number, _, _) in NUMERIC.items()}, "string": STRING}

Array = NDArray[Any]


def numpy_dtype(name: str) -> np.dtype[Any]:
    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)


@cache
def unpacked_pool() -> DescriptorPool:
    """The messages with every list unpacked, so that protobuf itself writes the other encoding."""
    pool = DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(proto.DESCRIPTOR_SET.read_bytes()).file:
        for message in file.message_type:
            for field in message.field:
                if field.options.HasField("packed"):
                    field.options.packed = False
        pool.AddSerializedFile(file.SerializeToString())
    return pool


def message_of(name: str, packed: bool = True) -> Any:
    return proto.message_class(name)() if packed else GetMessageClass(unpacked_pool().FindMessageTypeByName(name))()


def bytes_field(number: int, payload: bytes) -> bytes:
    length, size = b"", len(payload)
    while size >= 0x80:
        length += bytes([size & 0x7F | 0x80])
        size >>= 7
    return bytes([number << 3 | 2]) + length + bytes([size]) + payload


def values_of(dtype: str, elements: Array) -> list[Any]:
    """What the list of the dtype's field holds."""
    if dtype == "string":
        return list(elements)
    part = NUMERIC[dtype][2]
    values: list[Any] = (elements if part is None else elements.view(part)).tolist()
    return values


def tensor_proto(dtype: str, shape: tuple[int, ...], elements: Array, packed: bool = True) -> Any:
    """A TensorProto with typed values."""
    tensor = message_of("tensorflow.TensorProto", packed)
    tensor.dtype = DTYPES[dtype]
    tensor.tensor_shape.SetInParent()
    for dim in shape:
        tensor.tensor_shape.dim.add(size=dim)
    field = "string_val" if dtype == "string" else NUMERIC[dtype][1]
    getattr(tensor, field).extend(values_of(dtype, elements))
    return tensor


def content_of(dtype: str, elements: Array) -> bytes:
    if dtype != "string":
        return elements.tobytes()
    lengths = b"".join(bytes_field(0, value)[1 : len(bytes_field(0, value)) - len(value)] for value in elements)
    return lengths + b"".join(elements)


def unfolded(dtype: str, given: Array, count: int) -> Array:
    """The first `count` elements, the last one repeated if need be."""
    if len(given) >= count:
        return given[:count]
    if dtype == "string":
        last = given[-1] if len(given) else b""
        return object_array([*given, *[last] * (count - len(given))])
    last = given[-1:] if len(given) else np.zeros(1, given.dtype)
    return np.concatenate([given, np.repeat(last, count - len(given))])


def object_array(values: list[bytes]) -> Array:
    array = np.empty(len(values), object)
    array[:] = values
    return array


def decoded(dtype: str, tensor: Any) -> tuple[tuple[int, ...], Array]:
    """The shape and elements of a TensorProto with all its values in their list."""
    assert tensor.dtype == DTYPES[dtype]
    shape = tuple(dim.size for dim in tensor.tensor_shape.dim)
    if dtype == "string":
        return shape, object_array(list(tensor.string_val))
    _, field, part = NUMERIC[dtype]
    values = getattr(tensor, field)
    if part is None:
        return shape, np.array(values, numpy_dtype(dtype))
    return shape, np.array(values, part).view(numpy_dtype(dtype))


def assert_equal(dtype: str, got: Array, expected: Array) -> None:
    if dtype == "string":
        assert list(got) == list(expected)
    else:
        assert got.tobytes() == expected.tobytes()


class Echo:
    """A model that returns its inputs: one signature for each dtype, x to y, and "pair", which has two of each."""

    def __init__(self) -> None:
        self._timer = _core.Timer()
        self._model = _core.Model("echo", 7, self._timer)
        self._outputs: dict[str, list[str]] = {}
        for dtype, number in DTYPES.items():
            self._add(dtype, [("x", number)], [("y", number)])
        self._add("pair", [("x", 1), ("s", STRING)], [("y", 1), ("t", STRING)])
        router = _core.Router()
        router.add(self._model)
        self._queue = _core.PredictQueue(router)
        self._token = 0
        self._executor = threading.Thread(target=self._run, name="echo", daemon=True)
        self._executor.start()

    def _add(self, name: str, inputs: list[tuple[str, int]], outputs: list[tuple[str, int]]) -> None:
        def specs(pairs: list[tuple[str, int]]) -> list[_core.TensorSpec]:
            return [_core.TensorSpec(alias, number, None, f"{alias}:0") for alias, number in pairs]

        options = _core.LaneOptions(
            max_batch_size=1 << 20,
            batch_timeout_micros=0,
            max_enqueued_batches=1,
            policy="adaptive",
            batched=False,
            slab_bytes_max=1 << 28,
            waiting_bytes_max=1 << 28,
        )
        self._model.add_lane(_core.Signature(name, specs(inputs), specs(outputs)), options)
        self._outputs[name] = [alias for alias, _ in inputs]

    def _run(self) -> None:
        while (batch := self._model.next()) is not None:
            inputs = batch.inputs
            batch.finish([inputs[alias] for alias in self._outputs[batch.lane.signature.name]])

    def predict(self, message: bytes) -> tuple[int, str, bytes]:
        """The code, text and response that a message gets."""
        self._token += 1
        self._queue.submit(self._token, message)
        readable, _, _ = select.select([self._queue], [], [], ANSWER_WITHIN_S)
        assert readable, "no answer"
        [(token, code, text, response)] = self._queue.take()
        assert token == self._token
        return code, text, response

    def close(self) -> None:
        self._queue.close()
        assert self._model.close(ANSWER_WITHIN_S)
        self._executor.join(ANSWER_WITHIN_S)
        assert not self._executor.is_alive()
        self._timer.close()


@pytest.fixture(scope="module")
def echo() -> Iterator[Echo]:
    made = Echo()
    yield made
    made.close()


def request_head(signature: str) -> bytes:
    request = message_of("tensorflow.serving.PredictRequest")
    request.model_spec.name = "echo"
    request.model_spec.signature_name = signature
    head: bytes = request.SerializeToString()
    return head


def input_entry(name: str, *tensor_parts: bytes) -> bytes:
    return bytes_field(2, bytes_field(1, name.encode()) + b"".join(bytes_field(2, part) for part in tensor_parts))


def echoed(echo: Echo, dtype: str, *tensor_parts: bytes) -> tuple[tuple[int, ...], Array]:
    """The shape and elements of the answer to a tensor that is given in parts."""
    code, text, response = echo.predict(request_head(dtype) + input_entry("x", *tensor_parts))
    assert code == OK, text
    reply = message_of("tensorflow.serving.PredictResponse")
    reply.ParseFromString(response)
    assert reply.SerializeToString(deterministic=True) == response, "other bytes than protobuf's own"
    assert reply.model_spec.name == "echo"
    assert reply.model_spec.version.value == 7
    assert reply.model_spec.signature_name == dtype
    assert list(reply.outputs) == ["y"]
    assert reply.outputs["y"].HasField("tensor_shape")
    return decoded(dtype, reply.outputs["y"])


@st.composite
def elements(draw: st.DrawFn, dtype: str, count: int) -> Array:
    """Elements with any bits, but for signalling NaNs: Python's floats cannot carry them."""
    if dtype == "string":
        return object_array(draw(st.lists(st.binary(max_size=200), min_size=count, max_size=count)))
    size = numpy_dtype(dtype).itemsize
    # Small values, too: a varint's length depends on them.
    value = st.one_of(st.binary(min_size=size, max_size=size), st.integers(-3, 130).map(lambda n: little(n, size)))
    drawn = b"".join(draw(st.lists(value, min_size=count, max_size=count)))
    if dtype == "bool":
        drawn = bytes(byte & 1 for byte in drawn)
    array = np.frombuffer(drawn, numpy_dtype(dtype)).copy()
    floats = {"float32": np.float32, "float64": np.float64, "complex64": np.float32, "complex128": np.float64}
    if dtype in floats:
        view: Array = array.view(floats[dtype])
        view[np.isnan(view)] = np.nan
    drawn_array: Array = array
    return drawn_array


def little(value: int, size: int) -> bytes:
    return (value % (1 << 8 * size)).to_bytes(size, "little")


shapes = st.lists(st.integers(0, 4), max_size=4).map(tuple)
dtypes = st.sampled_from(sorted(DTYPES))


def thorough(test: Any) -> Any:
    return settings(max_examples=300, deadline=None)(test)


@thorough
@given(data=st.data(), dtype=dtypes, shape=shapes)
@pytest.mark.parametrize("packed", [True, False], ids=["packed", "unpacked"])
def test_typed_values_come_back(
    echo: Echo, data: st.DataObject, dtype: str, shape: tuple[int, ...], packed: bool
) -> None:
    array = data.draw(elements(dtype, int(np.prod(shape, dtype=int))))
    got_shape, got = echoed(echo, dtype, tensor_proto(dtype, shape, array, packed).SerializeToString())
    assert got_shape == shape
    assert_equal(dtype, got, array)


@thorough
@given(data=st.data(), dtype=dtypes, shape=shapes)
def test_tensor_content_comes_back(echo: Echo, data: st.DataObject, dtype: str, shape: tuple[int, ...]) -> None:
    array = data.draw(elements(dtype, int(np.prod(shape, dtype=int))))
    tensor = tensor_proto(dtype, shape, array[:0])
    tensor.tensor_content = content_of(dtype, array)
    # TensorFlow looks at the content first.
    getattr(tensor, "string_val" if dtype == "string" else NUMERIC[dtype][1]).extend(values_of(dtype, array[:1]))
    got_shape, got = echoed(echo, dtype, tensor.SerializeToString())
    assert got_shape == shape
    assert_equal(dtype, got, array)


@thorough
@given(data=st.data(), dtype=dtypes, shape=shapes, given_count=st.integers(0, 20))
def test_lists_that_are_too_short_or_too_long_are_unfolded_and_cut(
    echo: Echo, data: st.DataObject, dtype: str, shape: tuple[int, ...], given_count: int
) -> None:
    array = data.draw(elements(dtype, given_count))
    got_shape, got = echoed(echo, dtype, tensor_proto(dtype, shape, array).SerializeToString())
    assert got_shape == shape
    assert_equal(dtype, got, unfolded(dtype, array, int(np.prod(shape, dtype=int))))


@thorough
@given(data=st.data(), dtype=dtypes, runs=st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=6))
def test_a_tensor_in_parts_is_merged_as_protobuf_merges(
    echo: Echo, data: st.DataObject, dtype: str, runs: list[tuple[int, bool]]
) -> None:
    array = data.draw(elements(dtype, sum(count for count, _ in runs)))
    parts, begin = [tensor_proto(dtype, (), array[:0]).SerializeToString()], 0
    for count, packed in runs:
        parts.append(tensor_proto(dtype, (), array[begin : begin + count], packed).SerializeToString())
        begin += count
    parts.append(tensor_proto(dtype, (len(array),), array[:0]).SerializeToString())
    merged = message_of("tensorflow.TensorProto")
    merged.ParseFromString(b"".join(parts))
    shape, expected = decoded(dtype, merged)
    for way in (parts, [b"".join(parts)]):  # as several values of one map entry, and as one
        got_shape, got = echoed(echo, dtype, *way)
        assert got_shape == shape == (len(array),)
        assert_equal(dtype, got, expected)


@thorough
@given(
    floats=st.lists(st.floats(width=32, allow_nan=False), max_size=5),
    texts=st.lists(st.binary(max_size=300), max_size=5),
    wanted=st.permutations(["y", "t"]).flatmap(lambda names: st.sampled_from([names, names[:1], []])),
    strings_first=st.booleans(),
)
def test_inputs_in_any_order_and_any_choice_of_outputs(
    echo: Echo, floats: list[float], texts: list[bytes], wanted: list[str], strings_first: bool
) -> None:
    x = input_entry("x", tensor_proto("float32", (len(floats),), np.array(floats, np.float32)).SerializeToString())
    s = input_entry("s", tensor_proto("string", (1, len(texts)), object_array(texts)).SerializeToString())
    request = message_of("tensorflow.serving.PredictRequest")
    request.output_filter.extend(wanted)
    inputs = s + x if strings_first else x + s
    code, text, response = echo.predict(inputs + request.SerializeToString() + request_head("pair"))
    assert code == OK, text
    reply = message_of("tensorflow.serving.PredictResponse")
    reply.ParseFromString(response)
    assert set(reply.outputs) == set(wanted or ["y", "t"])
    if "y" in reply.outputs:
        assert list(reply.outputs["y"].float_val) == floats
    if "t" in reply.outputs:
        assert list(reply.outputs["t"].string_val) == texts
        assert [dim.size for dim in reply.outputs["t"].tensor_shape.dim] == [1, len(texts)]


damage = st.lists(
    st.tuples(
        st.sampled_from(["set", "cut", "drop", "insert", "copy"]), st.integers(0, 1 << 16), st.binary(max_size=6)
    ),
    min_size=1,
    max_size=4,
)


def damaged(message: bytes, done: list[tuple[str, int, bytes]]) -> bytes:
    for what, where, new in done:
        at = where % (len(message) + 1)
        if what == "set":
            message = message[:at] + new + message[at + len(new) :]
        elif what == "cut":
            message = message[:at]
        elif what == "drop":
            message = message[:at] + message[at + len(new) :]
        elif what == "insert":
            message = message[:at] + new + message[at:]
        else:
            message = message[:at] + message[at // 2 : at // 2 + len(new)] + message[at:]
    return message


@settings(max_examples=2000, deadline=None)
@given(data=st.data(), dtype=dtypes, packed=st.booleans(), done=damage)
def test_a_damaged_message_is_answered_and_refused_as_malformed_only_if_it_is(
    echo: Echo, data: st.DataObject, dtype: str, packed: bool, done: list[tuple[str, int, bytes]]
) -> None:
    array = data.draw(elements(dtype, 4))
    tensor = tensor_proto(dtype, (2, 2), array, packed).SerializeToString()
    message = damaged(request_head(dtype) + input_entry("x", tensor), done)
    code, text, response = echo.predict(message)
    assert code in (OK, INVALID_ARGUMENT, NOT_FOUND, FAILED_PRECONDITION), text
    assert (code == OK) == (response != b"")
    try:
        message_of("tensorflow.serving.PredictRequest").ParseFromString(message)
    except DecodeError:
        return
    assert "malformed" not in text


def test_every_truncation_of_a_message_is_answered(echo: Echo) -> None:
    for dtype in DTYPES:
        array = object_array([b"a", b"bc"]) if dtype == "string" else np.arange(2).astype(numpy_dtype(dtype))
        for packed in (True, False):
            message = request_head(dtype) + input_entry(
                "x", tensor_proto(dtype, (2,), array, packed).SerializeToString()
            )
            codes = [echo.predict(message[:size])[0] for size in range(len(message) + 1)]
            assert codes[-1] == OK
            # Cut between model_spec and inputs it is a message that lacks its input; INVALID_ARGUMENT, too.
            assert set(codes[:-1]) == {INVALID_ARGUMENT}


# Reads pickled [(dtype number, TensorProto)] and answers what TensorFlow's Tensor::FromProto makes of each: None where
# it refuses the tensor, else (shape, bytes or list of strings).
TENSORFLOW = """
import os, pickle, sys
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tensorflow as tf
answers = []
for number, message in pickle.load(sys.stdin.buffer):
    try:
        array = tf.io.parse_tensor(message, tf.dtypes.as_dtype(number)).numpy()
    except tf.errors.InvalidArgumentError:
        answers.append(None)
        continue
    if number == 7:
        strings = [array] if isinstance(array, bytes) else list(array.ravel())
        answers.append((getattr(array, "shape", ()), strings))
    else:
        answers.append((array.shape, array.tobytes()))
pickle.dump(answers, sys.stdout.buffer)
"""


def odd_tensors(count: int, choose: random.Random) -> list[tuple[str, bytes, bool]]:
    """(dtype, TensorProto, whether it was damaged): lists and contents of every length beside shapes of every size."""
    tensors = []
    for i in range(count):
        dtype = choose.choice(sorted(DTYPES))
        shape = tuple(
            choose.choice([0, 1, 1, 2, 3, -1]) if choose.random() < 0.1 else choose.randrange(1, 4)
            for _ in range(choose.randrange(4))
        )
        given_count = choose.choice([0, 1, 2, abs(int(np.prod(shape, dtype=int))), 30])
        if dtype == "string":
            array = object_array([choose.randbytes(choose.randrange(5)) for _ in range(given_count)])
        elif dtype == "bool":
            array = np.array([choose.random() < 0.5 for _ in range(given_count)], bool)
        else:
            array = np.array([choose.randrange(100) for _ in range(given_count)]).astype(numpy_dtype(dtype))
        tensor = tensor_proto(dtype, shape, array if choose.random() < 0.8 else array[:0], choose.random() < 0.7)
        if choose.random() < 0.4:
            tensor.tensor_content = content_of(dtype, array)[: choose.choice([None, None, None, -1])]
        if choose.random() < 0.1:
            tensor.tensor_shape.unknown_rank = True
        if choose.random() < 0.1:
            tensor.version_number = 3
        message = tensor.SerializeToString()
        is_damaged = i % 2 == 1
        if is_damaged:
            at = choose.randrange(len(message))
            done = [(choose.choice(["set", "drop", "insert", "copy"]), at, choose.randbytes(choose.randrange(1, 4)))]
            message = damaged(message, done)
        tensors.append((dtype, message, is_damaged))
    return tensors


def test_tensors_decode_as_they_do_in_tensorflow(echo: Echo) -> None:
    tensors = odd_tensors(4000, random.Random(1))
    asked = [(DTYPES[dtype], message) for dtype, message, _ in tensors]
    done = subprocess.run(
        [sys.executable, "-c", TENSORFLOW], input=pickle.dumps(asked), capture_output=True, timeout=300, check=False
    )
    if b"No module named 'tensorflow" in done.stderr:
        pytest.skip("needs tensorflow")
    assert done.returncode == 0, done.stderr.decode()
    accepted = 0
    for (dtype, message, is_damaged), theirs in zip(tensors, pickle.loads(done.stdout), strict=True):
        code, text, response = echo.predict(request_head(dtype) + input_entry("x", message))
        if theirs is None:
            # Of damage in fields that are not the tensor's, the codec need not take notice.
            assert code == INVALID_ARGUMENT or is_damaged, message
            continue
        accepted += 1
        assert code == OK, (text, message)
        reply = message_of("tensorflow.serving.PredictResponse")
        reply.ParseFromString(response)
        shape, got = decoded(dtype, reply.outputs["y"])
        assert shape == theirs[0], message
        assert (list(got) if dtype == "string" else got.tobytes()) == theirs[1], message
    assert 1000 < accepted < 3500
