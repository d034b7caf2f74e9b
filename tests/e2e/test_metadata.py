# SPDX-License-Identifier: Apache-2.0
"""GetModelMetadata, asked by TensorFlow Serving's own stubs and answered as TensorFlow itself reads the model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc
import pytest
from grpc import StatusCode
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel
from tensorflow_serving.apis import get_model_metadata_pb2

from tests.e2e.served import LIMIT_S, Client

if TYPE_CHECKING:
    from pathlib import Path

    from tests.e2e.conftest import Ask

HALF = "half_plus_two"


def request(client: Client, *fields: str, **spec: Any) -> get_model_metadata_pb2.GetModelMetadataRequest:
    return get_model_metadata_pb2.GetModelMetadataRequest(
        model_spec=client.request({}, **spec).model_spec, metadata_field=fields
    )


def refusal(client: Client, asked: get_model_metadata_pb2.GetModelMetadataRequest) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as raised:
        client.stub.GetModelMetadata(asked, timeout=LIMIT_S)
    return raised.value.code(), raised.value.details() or ""


@pytest.mark.parametrize("model", [HALF, "several", "tf1", "dtypes", "unbatchable"])
def test_the_signatures_are_those_of_the_saved_model(ask: Ask, saved_models: Path, model: str) -> None:
    client = ask(model)
    response = client.stub.GetModelMetadata(request(client, "signature_def"), timeout=LIMIT_S)
    assert (response.model_spec.name, response.model_spec.version.value) == (model, 1)
    assert response.model_spec.signature_name == ""
    assert list(response.metadata) == ["signature_def"]
    told = get_model_metadata_pb2.SignatureDefMap()
    assert response.metadata["signature_def"].Unpack(told)
    [meta_graph] = SavedModel.FromString((saved_models / model / "1" / "saved_model.pb").read_bytes()).meta_graphs
    assert dict(told.signature_def) == dict(meta_graph.signature_def)
    assert told.signature_def["serving_default" if model != "dtypes" else "float32"].inputs["x"].tensor_shape.dim


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ((), "GetModelMetadataRequest must specify at least one metadata_field"),
        (("graph",), "Metadata field graph is not supported"),
        (("signature_def", "graph"), "Metadata field graph is not supported"),
    ],
)
def test_a_wrong_field_has_tensorflow_serving_s_error(ask: Ask, fields: tuple[str, ...], text: str) -> None:
    client = ask(HALF)
    assert refusal(client, request(client, *fields)) == (StatusCode.INVALID_ARGUMENT, text)


def test_a_request_without_model_spec_is_refused(ask: Ask) -> None:
    asked = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
    assert refusal(ask(HALF), asked) == (StatusCode.INVALID_ARGUMENT, "Missing ModelSpec")


@pytest.mark.parametrize(
    "spec",
    [
        {"name": ""},
        {"name": "foo"},
        {"version": 99},
        {"version": -1},
        {"name": "modèle", "version": 1},
        {"version_label": "canary"},
    ],
)
def test_a_wrong_model_spec_has_the_error_that_predict_has(ask: Ask, spec: dict[str, Any]) -> None:
    client = ask(HALF)
    predicted = client.refusal(client.request({"x": [1.0]}, **spec))
    assert refusal(client, request(client, "signature_def", **spec)) == predicted


def test_the_version_may_be_named_and_the_signature_does_not_matter(ask: Ask) -> None:
    client = ask(HALF)
    asked = request(client, "signature_def", version=1, signature="no_such")
    assert client.stub.GetModelMetadata(asked, timeout=LIMIT_S).model_spec.version.value == 1
