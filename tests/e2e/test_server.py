# SPDX-License-Identifier: Apache-2.0
"""headrace.Server, as TensorFlow Serving's own clients see it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc
import nbclient
import nbformat
import numpy as np
import pytest
import tensorflow as tf
from grpc import StatusCode
from tensorflow_serving.apis import get_model_metadata_pb2

from headrace.batched_function import batched
from headrace.config import BatchingOptions
from headrace.model import LoadedModel, load
from headrace.server.server import Server
from tests.e2e.served import LIMIT_S, Client, arrays, floats

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

Serve = Callable[..., Server]


@pytest.fixture(scope="module")
def half(saved_models: Path) -> LoadedModel:
    return load(saved_models / "half_plus_two")


@pytest.fixture
def serve(transport: str) -> Serve:
    """Makes servers on free ports."""
    return partial(Server, port=0, grpc_transport=transport)


@pytest.fixture
def clients() -> Iterator[Any]:
    """Makes clients; closes their channels at the end."""
    made: list[Client] = []

    def client(server: Server, model: str) -> Client:
        made.append(Client(server.grpc_address, model))
        return made[-1]

    yield client
    for each in made:
        each.channel.close()


# --- models -----------------------------------------------------------------------------------------------------------


def test_a_model_is_served_under_its_name_in_the_mapping(serve: Serve, half: LoadedModel, clients: Any) -> None:
    with serve({"a": half}) as server:
        client = clients(server, "a")
        response = client.stub.Predict(client.request({"x": floats([1.0, 2.0])}), timeout=LIMIT_S)
        assert arrays(response)["y"].tolist() == [2.5, 3.0]
        assert (response.model_spec.name, response.model_spec.version.value) == ("a", 1)
        assert response.model_spec.signature_name == "serving_default"


@pytest.mark.parametrize("executor", ["native", "python"])
def test_both_executors_serve_all_signatures(serve: Serve, saved_models: Path, clients: Any, executor: str) -> None:
    with serve({"several": load(saved_models / "several")}, executor=executor) as server:
        client = clients(server, "several")
        assert client.predict({"i": np.array([2, 0], np.int32)}, "gather")["y"].tolist() == [30.0, 10.0]
        assert client.predict({"word": np.array([b"dog"], object)}, "lookup")["id"].tolist() == [2]


def test_the_options_hold_for_the_models(serve: Serve, half: LoadedModel, clients: Any) -> None:
    with serve({"half": half}, options=BatchingOptions(max_batch_size=2)) as server:
        client = clients(server, "half")
        code, text = client.refusal(client.request({"x": floats([1.0, 2.0, 3.0])}))
        assert code is StatusCode.INVALID_ARGUMENT
        assert "2" in text


def test_metadata_of_a_model_is_the_model_s_own(serve: Serve, half: LoadedModel, clients: Any) -> None:
    with serve({"a": half}) as server:
        signature = signatures(clients(server, "a"))["serving_default"]
        assert signature.inputs["x"].dtype == tf.float32.as_datatype_enum
        assert signature.inputs["x"].name == "serving_default_x:0"
        assert list(signature.outputs) == ["y"]


def signatures(client: Client) -> Any:
    """What GetModelMetadata tells: name -> SignatureDef."""
    request = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
    request.model_spec.name = client.model
    response = client.stub.GetModelMetadata(request, timeout=LIMIT_S)
    assert (response.model_spec.name, response.model_spec.version.value) == (client.model, 1)
    found = get_model_metadata_pb2.SignatureDefMap()
    assert response.metadata["signature_def"].Unpack(found)
    return found.signature_def


# --- functions --------------------------------------------------------------------------------------------------------


def scale(x: NDArray[Any], factor: NDArray[Any]) -> Any:
    return x * factor


def moments(x: NDArray[Any]) -> dict[str, NDArray[Any]]:
    return {"mean": x.mean(axis=1), "highest": x.max(axis=1)}


def split(x: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    return x[:, 0], x[:, 1:]


def shout(text: NDArray[Any]) -> NDArray[Any]:
    return np.array([word.upper() for word in text], object)


def test_a_function_s_inputs_are_its_parameters_and_its_output_is_called_output(serve: Serve, clients: Any) -> None:
    with serve({"scale": scale}) as server:
        client = clients(server, "scale")
        response = client.stub.Predict(client.request({"x": floats([[1, 2]]), "factor": floats([3])}), timeout=LIMIT_S)
        assert {name: value.tolist() for name, value in arrays(response).items()} == {"output": [[3.0, 6.0]]}
        assert (response.model_spec.name, response.model_spec.version.value) == ("scale", 1)
        assert response.model_spec.signature_name == "serving_default"


def test_the_keys_of_a_dict_are_outputs(serve: Serve, clients: Any) -> None:
    with serve({"moments": moments}) as server:
        answer = clients(server, "moments").predict({"x": floats([[1, 2, 3], [4, 4, 7]])})
        assert {name: value.tolist() for name, value in answer.items()} == {"mean": [2, 5], "highest": [3, 7]}


def test_the_parts_of_a_tuple_are_numbered_outputs(serve: Serve, clients: Any) -> None:
    with serve({"split": split}) as server:
        answer = clients(server, "split").predict({"x": floats([[1, 2, 3]])})
        assert {name: value.tolist() for name, value in answer.items()} == {"output_0": [1], "output_1": [[2, 3]]}


def test_a_function_takes_strings_and_whatever_dtypes_come(serve: Serve, clients: Any) -> None:
    with serve({"shout": shout, "double": lambda x: x + x}) as server:
        words = clients(server, "shout").predict({"text": np.array([b"a", b"bc"], object)})
        assert words["output"].tolist() == [b"A", b"BC"]
        client = clients(server, "double")
        for dtype in (np.int64, np.float16, np.complex128):
            answer = client.predict({"x": np.ones([2, 3], dtype)})["output"]
            assert (answer.dtype, answer.tolist()) == (dtype, [[2] * 3] * 2)


def test_an_output_filter_holds_for_functions(serve: Serve, clients: Any) -> None:
    with serve({"moments": moments}) as server:
        client = clients(server, "moments")
        request = client.request({"x": floats([[1, 2, 3]])})
        request.output_filter.append("mean")
        assert list(arrays(client.stub.Predict(request, timeout=LIMIT_S))) == ["mean"]


def fail(x: NDArray[Any]) -> NDArray[Any]:
    raise KeyError(x.tolist())


def test_what_is_wrong_with_a_call_of_a_function_is_said(serve: Serve, clients: Any) -> None:
    with serve({"fail": fail, "lose": lambda x: x[1:], "scale": scale}) as server:
        client = clients(server, "fail")
        assert client.refusal(client.request({"x": floats([1])})) == (StatusCode.UNKNOWN, "KeyError: [1.0]")
        client = clients(server, "lose")
        code, text = client.refusal(client.request({"x": floats([1, 2])}))
        assert code is StatusCode.INVALID_ARGUMENT
        assert "1 rows" in text
        assert "2 rows" in text
        client = clients(server, "scale")
        code, text = client.refusal(client.request({"x": floats([1])}))
        assert code is StatusCode.INVALID_ARGUMENT
        assert "factor" in text
        code, _ = client.refusal(client.request({"x": floats([1]), "factor": floats([1])}, version=2))
        assert code is StatusCode.NOT_FOUND


def test_metadata_of_a_function_names_its_parameters(serve: Serve, clients: Any) -> None:
    with serve({"scale": scale}) as server:
        signature = signatures(clients(server, "scale"))["serving_default"]
        assert sorted(signature.inputs) == ["factor", "x"]
        assert all(spec.tensor_shape.unknown_rank for spec in signature.inputs.values())


def test_callers_here_and_over_the_network_share_batches_and_the_executor(serve: Serve, clients: Any) -> None:
    """The first batch blocks the only executor; what comes meanwhile, from both sides, is the second."""
    entered, leave = threading.Event(), threading.Event()
    batches: list[list[float]] = []
    inside = threading.Semaphore(1)

    @batched(max_batch_size=8)
    def record(x: NDArray[Any]) -> NDArray[Any]:
        assert inside.acquire(blocking=False), "two batches at a time"
        batches.append(sorted(x.tolist()))
        entered.set()
        assert leave.wait(LIMIT_S)
        inside.release()
        return x

    with serve({"record": record}) as server, ThreadPoolExecutor(1) as pool:
        client = clients(server, "record")
        first = pool.submit(client.predict, {"x": floats([0])})
        assert entered.wait(LIMIT_S)
        local = [record.submit(floats([i])) for i in (1, 2)]
        remote = [client.stub.Predict.future(client.request({"x": floats([i])}), timeout=LIMIT_S) for i in (3, 4)]
        client.wait_received()
        leave.set()
        assert first.result(LIMIT_S)["output"].tolist() == [0]
        assert [reply.result(LIMIT_S).tolist() for reply in local] == [[1], [2]]
        assert [arrays(call.result())["output"].tolist() for call in remote] == [[3], [4]]
    assert batches == [[0], [1, 2, 3, 4]]
    assert record(floats([5])).tolist() == [5]  # it is its owner's to close
    record.close()


def test_a_function_that_is_late_is_given_up_when_the_server_stops_and_serves_on_here(
    serve: Serve, clients: Any
) -> None:
    entered, leave = threading.Event(), threading.Event()

    @batched
    def block(x: NDArray[Any]) -> NDArray[Any]:
        entered.set()
        assert leave.wait(LIMIT_S)
        return x

    with serve({"block": block}) as server:
        client = clients(server, "block")
        call = client.stub.Predict.future(client.request({"x": floats([1])}), timeout=LIMIT_S)
        assert entered.wait(LIMIT_S)
        local = block.submit(floats([2]))
        assert not server.stop(0.1)
        error = call.exception()
        assert isinstance(error, grpc.RpcError)
        assert (error.code(), error.details()) == (
            StatusCode.UNAVAILABLE,
            "the server stopped before there was an answer",
        )
    leave.set()
    assert local.result(LIMIT_S).tolist() == [2]
    block.close()


def test_a_function_of_the_server_s_own_that_is_late_is_given_up_and_left_behind(serve: Serve, clients: Any) -> None:
    entered, leave = threading.Event(), threading.Event()

    def block(x: NDArray[Any]) -> NDArray[Any]:
        entered.set()
        assert leave.wait(LIMIT_S)
        return x

    with serve({"block": block}) as server:
        client = clients(server, "block")
        call = client.stub.Predict.future(client.request({"x": floats([1])}), timeout=LIMIT_S)
        assert entered.wait(LIMIT_S)
        assert not server.stop(0.1)
        assert call.exception().code() is StatusCode.UNAVAILABLE
    leave.set()


def status_within(client: Client, request: Any, timeout: float) -> StatusCode:
    """How a request ends that no executor is free for."""
    with pytest.raises(grpc.RpcError) as raised:
        client.stub.Predict(request, timeout=timeout)
    code: StatusCode = raised.value.code()
    return code


def test_requests_of_a_function_are_answered_when_the_server_stops(serve: Serve, clients: Any) -> None:
    entered, leave = threading.Event(), threading.Event()

    @batched(max_batch_size=1)
    def block(x: NDArray[Any]) -> NDArray[Any]:
        entered.set()
        assert leave.wait(LIMIT_S)
        return x

    with serve({"block": block}) as server:
        client = clients(server, "block")
        calls = [client.stub.Predict.future(client.request({"x": floats([i])}), timeout=LIMIT_S) for i in range(3)]
        assert entered.wait(LIMIT_S)
        client.wait_received()
        stopping = threading.Thread(target=server.stop)
        stopping.start()
        while (code := status_within(client, client.request({"x": floats([9])}), 0.1)) is StatusCode.DEADLINE_EXCEEDED:
            assert stopping.is_alive()
        assert code is StatusCode.UNAVAILABLE
        leave.set()
        assert [arrays(call.result())["output"].tolist() for call in calls] == [[0], [1], [2]]
        stopping.join(LIMIT_S)
    block.close()


def test_a_function_may_be_in_two_servers_and_beside_a_model(serve: Serve, half: LoadedModel, clients: Any) -> None:
    double = batched(lambda x: x * 2)
    with serve({"double": double, "half": half}) as one, serve({"twice": double}) as other:
        assert clients(one, "half").predict({"x": floats([1])})["y"].tolist() == [2.5]
        assert clients(one, "double").predict({"x": floats([1])})["output"].tolist() == [2]
        assert clients(other, "twice").predict({"x": floats([1])})["output"].tolist() == [2]
    double.close()


def test_a_function_may_stop_its_own_server(serve: Serve, clients: Any) -> None:
    servers: list[Server] = []

    def stop(x: NDArray[Any]) -> NDArray[Any]:
        servers[0].stop()
        return x

    with serve({"stop": stop}) as server:
        servers.append(server)
        assert clients(server, "stop").predict({"x": floats([1])})["output"].tolist() == [1]
        assert server.wait(LIMIT_S)


# --- a notebook -------------------------------------------------------------------------------------------------------

CELLS = [
    """
import headrace
import numpy as np

model = headrace.load({model!r})
server = headrace.Server({{"half": model, "double": lambda x: x * 2}}, port=0)
server.start()
""",
    """
with headrace.Client(server.grpc_address) as client:
    print(client.predict("half", {{"x": np.array([1.0], np.float32)}})["y"])
""",
    """
async with headrace.AsyncClient(server.grpc_address) as client:
    print((await client.predict("double", {{"x": np.array([1.0])}}))["output"])
""",
    """
print(server.stop(), server.wait())
""",
    """
with server:
    with headrace.Client(server.grpc_address) as client:
        print(client.predict("half", {{"x": np.array([3.0], np.float32)}})["y"])
""",
]


def test_a_notebook_runs_it(saved_models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))  # where Jupyter leaves its traces
    model = str(saved_models / "half_plus_two")
    make: Any = nbformat.v4  # which is not typed
    notebook = make.new_notebook(cells=[make.new_code_cell(cell.strip().format(model=model)) for cell in CELLS])
    nbclient.NotebookClient(notebook, timeout=int(LIMIT_S), kernel_name="python3").execute()
    printed = [
        "".join(output["text"] for output in cell.outputs if output.get("name") == "stdout") for cell in notebook.cells
    ]
    assert printed == ["", "[2.5]\n", "[2.]\n", "True True\n", "[3.5]\n"]
