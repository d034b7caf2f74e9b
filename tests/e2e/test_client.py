# SPDX-License-Identifier: Apache-2.0
"""Client and AsyncClient against the real server."""

from __future__ import annotations

import asyncio
import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import grpc
import ml_dtypes
import numpy as np
import pytest
from tensorflow_serving.apis import get_model_metadata_pb2, predict_pb2, prediction_service_pb2_grpc

import headrace
from headrace.client import AsyncClient, Client
from tests.e2e.served import LIMIT_S, Served
from tests.models import DTYPES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

HALF = "half_plus_two"


@pytest.fixture(scope="module", name="address")
def addressing(saved_models: Path, transport: str) -> Iterator[Callable[[str], str]]:
    """address(model): where a server of that model is."""
    servers: dict[str, Served] = {}

    def address(model: str) -> str:
        if model not in servers:
            servers[model] = Served(saved_models / model, "--port=0", f"--grpc_transport={transport}")
        return servers[model].address

    yield address
    for server in servers.values():
        assert server.stop() == 0


@pytest.fixture(params=["Client", "AsyncClient"])
def predict(request: pytest.FixtureRequest, address: Callable[[str], str]) -> Callable[..., Any]:
    """predict(model, ...): what a client of either kind gets from a server of that model."""

    def by_thread(model: str, *args: Any, **options: Any) -> Any:
        with Client(address(model)) as client:
            return client.predict(model, *args, **options)

    async def by_task(model: str, *args: Any, **options: Any) -> Any:
        async with AsyncClient(address(model)) as client:
            return await client.predict(model, *args, **options)

    return by_thread if request.param == "Client" else lambda *args, **options: asyncio.run(by_task(*args, **options))


def test_lists_arrays_and_numbers_are_answered(predict: Callable[..., Any]) -> None:
    for value in ([1, 2], [1.0, 2.0], (1, 2), np.asarray([1, 2], np.float32)):
        y = predict(HALF, {"x": value})["y"]
        assert y.dtype == np.float32
        assert y.tolist() == [2.5, 3.0]
    assert predict(HALF, {"x": 2})["y"].tolist() == 3.0
    assert predict(HALF, {"x": []})["y"].shape == (0,)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_goes_and_comes_as_array_and_as_list(predict: Callable[..., Any], dtype: str) -> None:
    made: Any = {"string": np.object_, "bfloat16": ml_dtypes.bfloat16}.get(dtype) or np.dtype(dtype)
    values: Any = [["a", "é", b"\0"]] if dtype == "string" else np.asarray([[1, 0, 1]]).astype(made)
    expected = [[b"a", "é".encode(), b"\0"]] if dtype == "string" else values.tolist()
    for sent in (np.asarray(values, made), values if dtype == "string" else values.tolist()):
        y = predict("dtypes", {"x": sent}, signature_name=dtype)["y"]
        assert y.dtype == made
        assert y.tolist() == [expected * 2]
        assert y.flags.c_contiguous
        assert y.flags.writeable


def test_versions_filters_and_several_inputs_are_served(predict: Callable[..., Any]) -> None:
    inputs = {"x": [1.5, 2], "n": [1, 2]}
    outputs = predict("several", inputs, version=1)
    assert {name: array.tolist() for name, array in outputs.items()} == {"n": [2, 3], "sum": [2.5, 4.0]}
    assert outputs["n"].dtype == np.int64
    assert list(predict("several", inputs, output_filter=["n"], metadata={"trace": "1"})) == ["n"]
    joined = predict("several", {"a": ["x"], "b": np.asarray(["y"])}, signature_name="texts")["joined"]
    assert joined.tolist() == [b"x-y"]


@pytest.mark.parametrize(
    ("model", "inputs", "options", "error", "text"),
    [
        ("foo", {"x": [1]}, {}, headrace.NotFound, "Servable not found for request: Latest(foo)"),
        ("foo", {"x": np.ones(1)}, {}, headrace.NotFound, "Servable not found for request: Latest(foo)"),
        (HALF, {"x": [1]}, {"version": 9}, headrace.NotFound, f"Servable not found for request: Specific({HALF}, 9)"),
        (
            HALF,
            {"x": [1]},
            {"signature_name": "S"},
            headrace.FailedPrecondition,
            'Serving signature key "S" not found.',
        ),
        (
            HALF,
            {"x": np.ones(1)},
            {},
            headrace.InvalidArgument,
            "Expects arg[0] to be float but double is provided",
        ),
        (HALF, {"x": [1j]}, {}, headrace.InvalidArgument, 'input "x": got complex128, the signature wants float32'),
        (
            HALF,
            {"x": [1]},
            {"output_filter": ["z"]},
            headrace.InvalidArgument,
            "output tensor alias not found in signature: z Outputs expected to be in the set {y}.",
        ),
    ],
)
def test_errors_have_the_server_s_code_and_text(
    address: Callable[[str], str], model: str, inputs: Any, options: Any, error: type[headrace.HeadraceError], text: str
) -> None:
    with Client(address(HALF)) as client, pytest.raises(error) as caught:
        client.predict(model, inputs, **options)
    assert caught.value.message == text


def test_requests_of_many_threads_share_batches(saved_models: Path, transport: str) -> None:
    arguments = ("--port=0", f"--grpc_transport={transport}", "--log_batches", "--batch_timeout_micros=60000000")
    with (
        Served(saved_models / HALF, *arguments, "--batch_size=8") as server,
        Client(server.address) as client,
        ThreadPoolExecutor(8) as threads,
    ):
        outputs = threads.map(lambda i: client.predict(HALF, {"x": [i]}, timeout=LIMIT_S)["y"].tolist(), range(8))
        assert list(outputs) == [[i / 2 + 2] for i in range(8)]
        [batch] = server.batches(requests=8)
        assert batch.rows == 8


def test_the_deadline_of_a_waiting_request_is_kept(saved_models: Path, transport: str) -> None:
    arguments = ("--port=0", f"--grpc_transport={transport}", "--batch_timeout_micros=60000000")
    with (
        Served(saved_models / HALF, *arguments) as server,
        Client(server.address) as client,
        pytest.raises(headrace.DeadlineExceeded),
    ):
        client.predict(HALF, {"x": [1]}, timeout=0.3)


def test_what_is_unavailable_is_answered_so_that_clients_can_retry_it(address: Callable[[str], str]) -> None:
    # gRPC retries no answer that begins with headers.  The pauses tell whether it did.
    policy = {
        "maxAttempts": 2,
        "initialBackoff": "1s",
        "maxBackoff": "1s",
        "backoffMultiplier": 1,
        "retryableStatusCodes": ["UNAVAILABLE"],
    }
    config = json.dumps({"methodConfig": [{"name": [{}], "retryPolicy": policy}]})
    for method, request in (
        ("Predict", predict_pb2.PredictRequest()),
        ("GetModelMetadata", get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])),
    ):
        request.model_spec.name = HALF
        request.model_spec.version_label = "canary"
        with grpc.insecure_channel(address(HALF), [("grpc.service_config", config)]) as channel:
            stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
            begin = time.monotonic()
            with pytest.raises(grpc.RpcError) as raised:
                getattr(stub, method)(request, timeout=LIMIT_S)
            assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
            assert time.monotonic() - begin > 0.5
