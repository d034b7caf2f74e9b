# SPDX-License-Identifier: Apache-2.0
"""GetModelMetadata, message in and message out."""

from __future__ import annotations

from typing import Any

import pytest

from headrace import _core, proto
from headrace.errors import Code, HeadraceError
from headrace.server.metadata import Metadata, signature_defs

FLOAT, STRING = 1, 7


def request(fields: list[str], **spec: Any) -> bytes:
    """A request; without `spec` it has no model_spec."""
    made = proto.message_class("tensorflow.serving.GetModelMetadataRequest")(metadata_field=fields)
    for field, value in spec.items():
        if field == "version":
            made.model_spec.version.value = value
        else:
            setattr(made.model_spec, field, value)
    return bytes(made.SerializeToString())


def answered(catalogue: dict[str, dict[int, bytes]], **spec: Any) -> Any:
    answer = Metadata(catalogue).get(request(["signature_def"], **spec))
    return proto.message_class("tensorflow.serving.GetModelMetadataResponse").FromString(answer)


def described(signatures: dict[str, _core.Signature]) -> Any:
    return proto.message_class("tensorflow.serving.SignatureDefMap").FromString(signature_defs(signatures))


def test_the_latest_version_is_described_unless_another_is_named() -> None:
    catalogue = {"m": {9: b"nine", 10: b"ten", 2: b"two"}}
    for spec, version, definitions in (({}, 10, b"ten"), ({"version": 9}, 9, b"nine"), ({"version": 2}, 2, b"two")):
        response = answered(catalogue, name="m", signature_name="whichever", **spec)
        assert response.model_spec.name == "m"
        assert response.model_spec.version.value == version
        assert response.model_spec.signature_name == ""
        assert list(response.metadata) == ["signature_def"]
        packed = response.metadata["signature_def"]
        assert packed.type_url == "type.googleapis.com/tensorflow.serving.SignatureDefMap"
        assert packed.value == definitions


def test_a_field_that_is_asked_for_twice_is_answered_once() -> None:
    answer = Metadata({"m": {1: b""}}).get(request(["signature_def", "signature_def"], name="m"))
    assert list(proto.message_class("tensorflow.serving.GetModelMetadataResponse").FromString(answer).metadata) == [
        "signature_def"
    ]


def test_the_catalogue_may_change() -> None:
    catalogue: dict[str, dict[int, bytes]] = {}
    metadata = Metadata(catalogue)
    message = request(["signature_def"], name="m")
    with pytest.raises(HeadraceError):
        metadata.get(message)
    catalogue["m"] = {1: b""}
    assert metadata.get(message)


NOT_FOUND = Code.NOT_FOUND
INVALID = Code.INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("message", "code", "text"),
    [
        (request(["signature_def"]), INVALID, "Missing ModelSpec"),
        (request([]), INVALID, "Missing ModelSpec"),
        (request([], name="m"), INVALID, "GetModelMetadataRequest must specify at least one metadata_field"),
        (request([], name="foo"), INVALID, "GetModelMetadataRequest must specify at least one metadata_field"),
        (request(["signature_def", "é"], name="m"), INVALID, "Metadata field é is not supported"),
        (request(["signature_def"], signature_name="f"), INVALID, "ModelSpec has no name specified."),
        (request(["signature_def"], name="foo"), NOT_FOUND, "Servable not found for request: Latest(foo)"),
        (request(["signature_def"], name="gone"), NOT_FOUND, "Servable not found for request: Latest(gone)"),
        (
            request(["signature_def"], name="foo", version=3),
            NOT_FOUND,
            "Servable not found for request: Specific(foo, 3)",
        ),
        (
            request(["signature_def"], name="m", version=99),
            NOT_FOUND,
            "Servable not found for request: Specific(m, 99)",
        ),
        (
            request(["signature_def"], name="m", version_label="canary"),
            Code.UNAVAILABLE,
            "Model labels does not init yet.canary",
        ),
    ],
)
def test_a_wrong_request_has_tensorflow_serving_s_error(message: bytes, code: Code, text: str) -> None:
    with pytest.raises(HeadraceError) as caught:
        Metadata({"m": {1: b""}, "gone": {}}).get(message)
    assert (caught.value.code, caught.value.message) == (code, text)


def test_a_signature_is_described_with_all_that_is_known() -> None:
    signature = _core.Signature(
        "f",
        [
            _core.TensorSpec("x", FLOAT, [-1, 28, 28], "serving_default_x:0"),
            _core.TensorSpec("k", STRING, [], "k:0"),
        ],
        [_core.TensorSpec("y", FLOAT, None, "StatefulPartitionedCall:0")],
    )
    definition = described({"f": signature}).signature_def["f"]
    assert definition.method_name == "tensorflow/serving/predict"
    x, k = definition.inputs["x"], definition.inputs["k"]
    assert (x.name, x.dtype) == ("serving_default_x:0", FLOAT)
    assert [dim.size for dim in x.tensor_shape.dim] == [-1, 28, 28]
    assert not x.tensor_shape.unknown_rank
    assert (k.name, k.dtype) == ("k:0", STRING)
    assert k.HasField("tensor_shape")
    assert not k.tensor_shape.dim
    y = definition.outputs["y"]
    assert (y.name, y.dtype, y.tensor_shape.unknown_rank) == ("StatefulPartitionedCall:0", FLOAT, True)


def test_what_a_callable_leaves_open_is_left_open() -> None:
    signature = _core.Signature("serving_default", [_core.TensorSpec("text", 0, None)], [])
    definitions = described({"serving_default": signature, "other": signature}).signature_def
    assert sorted(definitions) == ["other", "serving_default"]
    text = definitions["serving_default"].inputs["text"]
    assert text.WhichOneof("encoding") is None
    assert (text.dtype, text.tensor_shape.unknown_rank) == (0, True)
    assert not definitions["serving_default"].outputs


def test_the_description_of_a_signature_is_always_the_same_bytes() -> None:
    def described_again(names: list[str]) -> bytes:
        specs = [_core.TensorSpec(name, FLOAT, [-1]) for name in names]
        return signature_defs({name: _core.Signature(name, specs, specs) for name in names})

    assert described_again(["a", "b", "c"]) == described_again(["c", "b", "a"])
