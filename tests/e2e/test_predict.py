# SPDX-License-Identifier: Apache-2.0
"""What a stock TensorFlow Serving client sees of Predict, over every transport and executor."""

from __future__ import annotations

import random
import threading
from typing import TYPE_CHECKING, Any

import grpc
import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import text_format
from grpc import StatusCode
from tensorflow.core.framework.tensor_pb2 import TensorProto
from tensorflow_serving.apis import classification_pb2, predict_pb2

from tests.e2e.served import LIMIT_S, arrays, floats, longs
from tests.models import DTYPES

if TYPE_CHECKING:
    from tests.e2e.conftest import Ask

HALF = "half_plus_two"
LONG_NAME = "long" * 1000


def tensor(text: str) -> TensorProto:
    """A TensorProto from its text form."""
    return text_format.Parse(text, TensorProto())


def test_one_row_is_answered_as_tensorflow_serving_does_it(ask: Ask) -> None:
    response = ask(HALF).stub.Predict(ask(HALF).request({"x": [2.0]}), timeout=LIMIT_S)
    assert list(response.outputs) == ["y"]
    assert response.outputs["y"].dtype == tf.float32.as_datatype_enum
    assert [dim.size for dim in response.outputs["y"].tensor_shape.dim] == [1]
    assert list(response.outputs["y"].float_val) == [3.0]
    assert not response.outputs["y"].tensor_content
    spec = response.model_spec
    assert (spec.name, spec.version.value, spec.signature_name) == (HALF, 1, "serving_default")


@pytest.mark.parametrize("rows", [1, 2, 7, 64])
def test_all_rows_of_a_request_are_answered_in_order(ask: Ask, rows: int) -> None:
    x = np.arange(rows, dtype=np.float32)
    np.testing.assert_array_equal(ask(HALF).predict({"x": x})["y"], x / 2 + 2)


def test_no_rows_are_answered_with_no_rows(ask: Ask) -> None:
    y = ask(HALF).predict({"x": np.zeros([0], np.float32)})["y"]
    assert y.shape == (0,)
    assert y.dtype == np.float32


def test_a_scalar_is_answered_with_a_scalar(ask: Ask) -> None:
    y = ask(HALF).predict({"x": np.float32(2)})["y"]
    assert (y.shape, float(y)) == ((), 3.0)


@pytest.mark.parametrize(
    "text",
    [
        "dtype: DT_FLOAT tensor_shape { dim { size: 3 } } float_val: 1",
        "dtype: DT_FLOAT tensor_shape { dim { size: 3 } } float_val: [1, 1]",
        r'dtype: DT_FLOAT tensor_shape { dim { size: 3 } } tensor_content: "\000\000\200?\000\000\200?\000\000\200?"',
    ],
)
def test_a_tensor_has_several_encodings(ask: Ask, text: str) -> None:
    assert ask(HALF).predict({"x": tensor(text)})["y"].tolist() == [2.5, 2.5, 2.5]


def sample(dtype: str, rows: int) -> Any:
    """Rows of three values, each different from the others."""
    if dtype == "string":
        return np.array([[b"", b"\0 \xff", f"row {row}".encode()] for row in range(rows)], object).reshape(rows, 3)
    if dtype == "bool":
        return np.arange(rows * 3).reshape(rows, 3) % 2 == 0
    values = np.arange(rows * 3).reshape(rows, 3)
    return (values * (1 - 2j) if "complex" in dtype else values).astype(tf.as_dtype(dtype).as_numpy_dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [0, 1, 2, 5])
def test_every_dtype_comes_back_as_it_went(ask: Ask, dtype: str, rows: int) -> None:
    x = sample(dtype, rows)
    for proto in (tf.make_tensor_proto(x, tf.as_dtype(dtype), x.shape), typed(x, dtype)):
        response = ask("dtypes").stub.Predict(ask("dtypes").request({"x": proto}, dtype), timeout=LIMIT_S)
        y = arrays(response)["y"]
        assert response.outputs["y"].dtype == tf.as_dtype(dtype).as_datatype_enum
        assert y.shape == (rows, 2, 3)
        assert np.array_equal(y, np.stack([x, x], axis=1))


def typed(x: Any, dtype: str) -> Any:
    """x in *_val fields, whatever make_tensor_proto prefers."""
    kind = tf.as_dtype(dtype)
    proto = TensorProto(dtype=kind.as_datatype_enum)
    for size in x.shape:
        proto.tensor_shape.dim.add(size=size)
    flat = x.ravel()
    if kind in (tf.complex64, tf.complex128):
        field = proto.scomplex_val if kind == tf.complex64 else proto.dcomplex_val
        field.extend(part for value in flat.tolist() for part in (value.real, value.imag))
    elif kind in (tf.half, tf.bfloat16):
        proto.half_val.extend(flat.view(np.uint16).tolist())
    else:
        names = {
            tf.float32: "float_val",
            tf.float64: "double_val",
            tf.int64: "int64_val",
            tf.uint32: "uint32_val",
            tf.uint64: "uint64_val",
            tf.bool: "bool_val",
            tf.string: "string_val",
        }
        getattr(proto, names.get(kind, "int_val")).extend(flat.tolist())
    return proto


def test_several_inputs_and_outputs_keep_their_names(ask: Ask) -> None:
    answer = ask("several").predict({"x": floats([1, 2]), "n": longs([10, 20])})
    assert {name: value.tolist() for name, value in answer.items()} == {"sum": [11.0, 22.0], "n": [11, 21]}


def test_the_output_filter_chooses_outputs(ask: Ask) -> None:
    client = ask("several")
    request = client.request({"x": floats([1]), "n": longs([10])})
    request.output_filter.append("n")
    assert list(arrays(client.stub.Predict(request, timeout=LIMIT_S))) == ["n"]


def test_requests_that_want_other_outputs_are_answered_beside_each_other(ask: Ask) -> None:
    client = ask("several")
    calls = []
    for i in range(30):
        request = client.request({"x": floats([i]), "n": longs([10])})
        request.output_filter.extend([[], ["n"], ["sum"]][i % 3])
        calls.append(client.stub.Predict.future(request, timeout=LIMIT_S))
    for i, call in enumerate(calls):
        answer = arrays(call.result())
        assert sorted(answer) == [["n", "sum"], ["n"], ["sum"]][i % 3]
        assert "sum" not in answer or answer["sum"].tolist() == [10.0 + i]


def test_strings_of_any_bytes_and_lengths_go_in_and_out(ask: Ask) -> None:
    a = np.array([b"a", b"", b"\xff\0", b"x" * 100_000], object)
    b = np.array([b"b", b"", b"c", b"d"], object)
    answer = ask("several").predict({"a": a, "b": b}, "texts")
    assert answer["joined"].tolist() == [one + b"-" + other for one, other in zip(a, b, strict=True)]
    assert answer["same"].tolist() == answer["joined"].tolist()
    assert answer["bytes"].tolist() == [3, 1, 4, 100_002]


def test_a_table_is_initialised(ask: Ask) -> None:
    assert ask("several").predict({"word": ["dog", "cow", "cat"]}, "lookup")["id"].tolist() == [2, -1, 1]


def test_a_tensorflow_1_export_is_served(ask: Ask) -> None:
    answer = ask("tf1").predict({"x": floats([[1, 1], [2, 3]])})
    assert answer["y"].tolist() == answer["again"].tolist() == [[2, 3], [4, 9]]
    assert answer["same"].tolist() == [[1, 1], [2, 3]]


def test_a_signature_without_inputs_is_served(ask: Ask) -> None:
    assert ask("unbatchable").predict({}, "nothing")["y"].tolist() == [1.0, 2.0]


def test_a_scalar_input_may_stand_beside_rows(ask: Ask) -> None:
    answer = ask("unbatchable").predict({"x": np.ones([3, 4], np.float32), "k": np.float32(2)}, "scalar")
    assert answer["y"].tolist() == [[2.0] * 4] * 3


def test_a_signature_whose_rows_are_not_independent_runs_each_request_alone(ask: Ask) -> None:
    client = ask("unbatchable")
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    calls = [client.stub.Predict.future(client.request({"x": x}, "mean"), timeout=LIMIT_S) for _ in range(20)]
    for call in calls:
        np.testing.assert_array_equal(arrays(call.result())["y"], x - x.mean(axis=0))
    assert float(client.predict({"x": x}, "total")["y"]) == 28.0


def test_outputs_that_are_their_inputs_stay_each_caller_s_own(ask: Ask) -> None:
    client = ask("aliases")
    rows = [np.full([1 + i % 3, 4], i, np.float32) for i in range(60)]
    calls = [client.stub.Predict.future(client.request({"x": x}), timeout=LIMIT_S) for x in rows]
    for call, x in zip(calls, rows, strict=True):
        np.testing.assert_array_equal(arrays(call.result())["y"], x)


@pytest.mark.parametrize(
    ("model", "spec", "code", "text"),
    [
        (HALF, {"name": ""}, StatusCode.INVALID_ARGUMENT, "ModelSpec has no name specified."),
        (HALF, {"name": "foo"}, StatusCode.NOT_FOUND, "Servable not found for request: Latest(foo)"),
        (HALF, {"name": "modèle"}, StatusCode.NOT_FOUND, "Servable not found for request: Latest(modèle)"),
        (HALF, {"version": 99}, StatusCode.NOT_FOUND, f"Servable not found for request: Specific({HALF}, 99)"),
        (HALF, {"name": "foo", "version": 1}, StatusCode.NOT_FOUND, "Servable not found for request: Specific(foo, 1)"),
        (HALF, {"version_label": "canary"}, StatusCode.UNAVAILABLE, "Model labels does not init yet.canary"),
        (HALF, {"signature_name": "S"}, StatusCode.FAILED_PRECONDITION, 'Serving signature key "S" not found.'),
        (
            HALF,
            {"name": LONG_NAME},
            StatusCode.NOT_FOUND,
            f"Servable not found for request: Latest({LONG_NAME}"[:1024] + "...TRUNCATED",
        ),
    ],
)
def test_a_wrong_model_spec_has_tensorflow_serving_s_error(
    ask: Ask, model: str, spec: dict[str, Any], code: StatusCode, text: str
) -> None:
    assert ask(model).refusal(ask(model).request({"x": [1.0]}, **spec)) == (code, text)


def test_the_served_version_may_be_named(ask: Ask) -> None:
    assert ask(HALF).predict({"x": [2.0]}, version=1)["y"].tolist() == [3.0]


def test_a_request_without_model_spec_is_refused(ask: Ask) -> None:
    assert ask(HALF).refusal(predict_pb2.PredictRequest()) == (StatusCode.INVALID_ARGUMENT, "Missing ModelSpec")


@pytest.mark.parametrize(
    ("model", "inputs", "text"),
    [
        (HALF, {}, "input size does not match signature"),
        (HALF, {"k1": [1.0], "k2": [1.0]}, "Sent extra: {k1,k2}. Missing but required: {x}."),
        (HALF, {"z": [1.0]}, "Signature input alias: x(feed name: "),
        (HALF, {"x": [True]}, "to be float but bool is provided"),
        (HALF, {"x": ["text"]}, "to be float but string is provided"),
        (HALF, {"x": np.zeros([65], np.float32)}, "Task size 65 is larger than maximum input batch size 64"),
        (
            "several",
            {"x": floats([1, 2]), "n": longs([1])},
            "Batching Run() input tensors must have equal 0th-dimension size",
        ),
        ("dense", {"x": np.zeros([1, 63], np.float32)}, "63"),
    ],
)
def test_wrong_inputs_have_tensorflow_serving_s_error(ask: Ask, model: str, inputs: dict[str, Any], text: str) -> None:
    code, details = ask(model).refusal(ask(model).request(inputs))
    assert code is StatusCode.INVALID_ARGUMENT
    assert text in details


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["z"], "output tensor alias not found in signature: z Outputs expected to be in the set {y}."),
        (["y", "y"], "duplicate output tensor alias: y"),
    ],
)
def test_a_wrong_output_filter_has_tensorflow_serving_s_error(ask: Ask, names: list[str], text: str) -> None:
    request = ask(HALF).request({"x": [1.0]})
    request.output_filter.extend(names)
    assert ask(HALF).refusal(request) == (StatusCode.INVALID_ARGUMENT, text)


@pytest.mark.parametrize(
    "text",
    [
        r'dtype: DT_FLOAT tensor_shape { dim { size: 3 } } tensor_content: "abc"',
        "dtype: DT_FLOAT tensor_shape { dim { size: -3 } } float_val: 1",
        "dtype: DT_RESOURCE tensor_shape { dim { size: 1 } }",
        "dtype: DT_INVALID",
    ],
)
def test_a_tensor_that_contradicts_itself_is_refused(ask: Ask, text: str) -> None:
    code, details = ask(HALF).refusal(ask(HALF).request({"x": tensor(text)}))
    assert code is StatusCode.INVALID_ARGUMENT
    assert details.startswith("tensor parsing error: x")


@pytest.mark.parametrize("message", [b"\xff", b"\x0a\xff\xff\xff\xff\x0f", b"\x12\x02\x0a\x7f"])
def test_bytes_that_are_no_request_are_refused(ask: Ask, message: bytes) -> None:
    predict: Any = ask(HALF).channel.unary_unary("/tensorflow.serving.PredictionService/Predict")
    with pytest.raises(grpc.RpcError) as raised:
        predict(message, timeout=LIMIT_S)
    assert raised.value.code() is StatusCode.INVALID_ARGUMENT


def test_a_model_that_fails_answers_with_its_error_and_goes_on(ask: Ask) -> None:
    client = ask("several")
    code, details = client.refusal(client.request({"i": np.array([7], np.int32)}, "gather"))
    assert code is StatusCode.INVALID_ARGUMENT
    assert "indices[0] = 7 is not in [0, 3)" in details
    assert client.predict({"i": np.array([1], np.int32)}, "gather")["y"].tolist() == [20.0]


def test_large_messages_go_both_ways(ask: Ask) -> None:
    x = np.arange(2_000_000, dtype=np.float32).reshape(-1, 4)
    assert ask("unbatchable").predict({"x": x}, "flat")["y"].shape == (2_000_000,)
    text = b"x" * 20_000_000
    answer = ask("several").predict({"a": [text], "b": [b"y"]}, "texts")
    assert answer["joined"][0] == text + b"-y"


def test_compressed_requests_are_understood(ask: Ask) -> None:
    request = ask(HALF).request({"x": np.zeros([64], np.float32)})
    response = ask(HALF).stub.Predict(request, timeout=LIMIT_S, compression=grpc.Compression.Gzip)
    assert arrays(response)["y"].tolist() == [2.0] * 64


def test_other_methods_are_unimplemented(ask: Ask) -> None:
    with pytest.raises(grpc.RpcError) as raised:
        ask(HALF).stub.Classify(classification_pb2.ClassificationRequest(), timeout=LIMIT_S)
    assert raised.value.code() is StatusCode.UNIMPLEMENTED


def test_every_one_of_many_clients_gets_its_own_answers(ask: Ask) -> None:
    wrong: list[str] = []

    def client(seed: int) -> None:
        draw = random.Random(seed)
        for _ in range(50):
            x = floats([draw.uniform(-1e3, 1e3) for _ in range(draw.randint(0, 9))])
            y = ask(HALF).predict({"x": x})["y"]
            if not np.array_equal(y, x * np.float32(0.5) + np.float32(2)):
                wrong.append(f"{x}: {y}")

    ask(HALF)
    threads = [threading.Thread(target=client, args=(seed,)) for seed in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    assert wrong == []
