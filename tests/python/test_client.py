# SPDX-License-Identifier: Apache-2.0
"""Client and AsyncClient against gRPC servers that answer as each test wants; every test of both runs twice."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from headrace import _core, proto
from headrace.client import AsyncClient, Client
from headrace.errors import (
    CLASSES,
    Cancelled,
    Code,
    DeadlineExceeded,
    FailedPrecondition,
    HeadraceError,
    Internal,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    Unavailable,
)
from headrace.predictor import GET_MODEL_METADATA, PREDICT
from headrace.server.metadata import Metadata, signature_defs
from headrace.tensor_proto import SERVED_DTYPES, STRING, numpy_dtype

LIMIT_S = 60.0
SHORT_S = 0.2  # of deadlines that a test waits for

FLOAT, INT32 = 1, 3
STATUS_CODES = {code.value[0]: code for code in grpc.StatusCode}

Answer = Callable[[bytes, grpc.ServicerContext], bytes]
Predict = Callable[..., dict[str, NDArray[Any]]]


class Server:
    """A gRPC server whose methods a test may replace; it notes what came."""

    def __init__(self, port: int = 0) -> None:
        self.answers: dict[str, Answer] = {PREDICT: echo, GET_MODEL_METADATA: describe({"x": FLOAT})}
        self.calls: list[tuple[str, bytes, grpc.ServicerContext]] = []
        self._server = grpc.server(ThreadPoolExecutor(8), options=[("grpc.max_receive_message_length", -1)])
        self._server.add_generic_rpc_handlers((_Methods(self),))
        self.port = self._server.add_insecure_port(f"127.0.0.1:{port}")
        self.address = f"127.0.0.1:{self.port}"
        self._server.start()

    def stop(self) -> None:
        self._server.stop(None).wait(LIMIT_S)

    def asked(self, path: str) -> int:
        return sum(called == path for called, _, _ in self.calls)

    def requests(self) -> list[Any]:
        """The PredictRequests that came."""
        return [parsed(message) for path, message, _ in self.calls if path == PREDICT]

    def context(self) -> grpc.ServicerContext:
        """That of the last call."""
        return self.calls[-1][2]


class _Methods(grpc.GenericRpcHandler):
    def __init__(self, server: Server) -> None:
        self._server = server

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes]:
        path = handler_call_details.method

        def call(message: bytes, context: grpc.ServicerContext) -> bytes:
            self._server.calls.append((path, message, context))
            return self._server.answers[path](message, context)

        return grpc.unary_unary_rpc_method_handler(call)


def parsed(message: bytes) -> Any:
    return proto.message_class("tensorflow.serving.PredictRequest").FromString(message)


def echo(message: bytes, _context: grpc.ServicerContext) -> bytes:
    """Predict: the inputs are the outputs."""
    response = proto.message_class("tensorflow.serving.PredictResponse")()
    for name, tensor in parsed(message).inputs.items():
        response.outputs[name].CopyFrom(tensor)
    return bytes(response.SerializeToString())


def describe(dtypes: Mapping[str, int], signature: str = "serving_default") -> Answer:
    """GetModelMetadata of a model "m" whose inputs have these dtypes."""
    specs = [_core.TensorSpec(name, dtype, [-1]) for name, dtype in dtypes.items()]
    metadata = Metadata({"m": {1: signature_defs({signature: _core.Signature(signature, specs, [])})}})

    def answer(message: bytes, context: grpc.ServicerContext) -> bytes:
        try:
            return metadata.get(message)
        except HeadraceError as error:
            context.abort(STATUS_CODES[error.code], error.message)

    return answer


def refuse(code: grpc.StatusCode, text: str = "no") -> Answer:
    def answer(_message: bytes, context: grpc.ServicerContext) -> bytes:
        context.abort(code, text)

    return answer


class Blocked:
    """An answer that waits until it is released."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._released = threading.Event()
        self.arrived = threading.Event()
        self.gone = threading.Event()  # the client has given up

    def __call__(self, message: bytes, context: grpc.ServicerContext) -> bytes:
        context.add_callback(self.gone.set)
        self.arrived.set()
        assert self._released.wait(LIMIT_S)
        return self._answer(message, context)

    def release(self) -> None:
        self._released.set()


class Loop:
    """AsyncClient with the methods of Client, in an event loop of its own."""

    def __init__(self, address: str, **options: Any) -> None:
        self._client = AsyncClient(address, **options)
        self._loop = asyncio.new_event_loop()
        self._lock = threading.Lock()

    def predict(self, *args: Any, **options: Any) -> dict[str, NDArray[Any]]:
        with self._lock:
            return self._loop.run_until_complete(self._client.predict(*args, **options))

    def close(self) -> None:
        self._loop.run_until_complete(self._client.close())

    def end(self) -> None:
        self.close()
        self._loop.close()


Connect = Callable[..., "Client | Loop"]


@pytest.fixture(name="server")
def serving() -> Iterator[Server]:
    server = Server()
    yield server
    server.stop()


@pytest.fixture(name="connect", params=["Client", "AsyncClient"])
def connecting(request: pytest.FixtureRequest) -> Iterator[Connect]:
    """connect(address, **options): a client of each kind."""
    clients: list[Client | Loop] = []

    def connect(address: str, **options: Any) -> Client | Loop:
        client = Client(address, **options) if request.param == "Client" else Loop(address, **options)
        clients.append(client)
        return client

    yield connect
    for client in clients:
        if isinstance(client, Loop):
            client.end()
        else:
            client.close()


@pytest.fixture(name="predict")
def predicting(connect: Connect, server: Server) -> Predict:
    return connect(server.address).predict


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < until


# --- inputs and outputs


@pytest.mark.parametrize("dtype", SERVED_DTYPES)
def test_arrays_of_every_dtype_go_and_come_back_as_the_caller_s_own(predict: Predict, dtype: int) -> None:
    if dtype == STRING:
        sent = np.asarray([[b"a\0", b""], [b"\xff", b"c" * 300]], object)
    else:
        sent = np.asarray([[1, 0], [1, 1]]).astype(numpy_dtype(dtype))
    back = predict("m", {"x": sent})["x"]
    assert back.dtype == sent.dtype
    assert back.tolist() == sent.tolist()
    assert back.flags.c_contiguous
    assert back.flags.writeable
    assert back.flags.owndata


def test_outputs_in_typed_fields_are_read_too(server: Server, predict: Predict) -> None:
    def answer(_message: bytes, _context: grpc.ServicerContext) -> bytes:
        response = proto.message_class("tensorflow.serving.PredictResponse")()
        response.outputs["y"].dtype = FLOAT
        response.outputs["y"].tensor_shape.dim.add(size=3)
        response.outputs["y"].float_val.extend([1, 2])
        response.outputs["a"].dtype = 14
        response.outputs["a"].half_val.append(0x3F80)
        return bytes(response.SerializeToString())

    server.answers[PREDICT] = answer
    outputs = predict("m", {"x": np.zeros(1)})
    assert list(outputs) == ["a", "y"]
    assert outputs["y"].tolist() == [1, 2, 2]
    assert outputs["a"].dtype == ml_dtypes.bfloat16
    assert outputs["a"].shape == ()


@pytest.mark.parametrize(
    ("dtype", "value"),
    [(FLOAT, [1, 2]), (FLOAT, 3), (INT32, [[True], [False]]), (14, [1.5]), (STRING, ["é", b"a\0"]), (STRING, "a")],
)
def test_lists_and_numbers_take_the_signature_s_dtype(server: Server, predict: Predict, dtype: int, value: Any) -> None:
    server.answers[GET_MODEL_METADATA] = describe({"x": dtype})
    back = predict("m", {"x": value})["x"]
    assert back.dtype == numpy_dtype(dtype)
    encoded = [each.encode() if isinstance(each, str) else each for each in np.asarray(value, object).reshape(-1)]
    assert back.reshape(-1).tolist() == encoded
    assert back.shape == np.shape(np.asarray(value, object))


def test_numbers_that_the_dtype_cannot_hold_are_not_sent(server: Server, predict: Predict) -> None:
    server.answers[GET_MODEL_METADATA] = describe({"x": INT32})
    with pytest.raises(InvalidArgument) as caught:
        predict("m", {"x": [1.5]})
    assert caught.value.message == 'input "x": got float64, the signature wants int32'
    assert server.asked(PREDICT) == 0


def test_an_array_is_sent_as_it_is_and_asks_for_no_dtypes(server: Server, predict: Predict) -> None:
    assert predict("m", {"x": np.zeros(2)})["x"].dtype == np.float64
    assert server.asked(GET_MODEL_METADATA) == 0


def test_dtypes_are_asked_for_once_for_each_model_version_and_signature(server: Server, predict: Predict) -> None:
    for _ in range(3):
        for options in ({}, {"version": 1}):
            assert predict("m", {"x": [1]}, **options)["x"].dtype == np.float32
    assert server.asked(GET_MODEL_METADATA) == 2
    server.answers[GET_MODEL_METADATA] = describe({"x": INT32}, "f")
    for _ in range(3):
        assert predict("m", {"x": [1]}, signature_name="f")["x"].dtype == np.int32
    assert server.asked(GET_MODEL_METADATA) == 3


def test_a_server_without_metadata_gets_numpy_s_dtypes(server: Server, predict: Predict) -> None:
    server.answers[GET_MODEL_METADATA] = refuse(grpc.StatusCode.UNIMPLEMENTED)
    for _ in range(2):
        assert predict("m", {"x": [1.0]})["x"].dtype == np.float64
    assert server.asked(GET_MODEL_METADATA) == 1


def test_an_input_of_open_dtype_takes_numpy_s(server: Server, predict: Predict) -> None:
    server.answers[GET_MODEL_METADATA] = describe({"x": 0, "z": FLOAT})
    outputs = predict("m", {"x": [1, 2], "z": [1, 2], "unknown": ["a"]})
    assert {name: array.dtype for name, array in outputs.items()} == {
        "x": np.int64,
        "z": np.float32,
        "unknown": np.object_,
    }


def test_a_model_that_is_not_there_is_told_before_its_dtypes(predict: Predict) -> None:
    with pytest.raises(NotFound) as caught:
        predict("foo", {"x": [1]})
    assert caught.value.message == "Servable not found for request: Latest(foo)"


def test_a_model_that_was_replaced_is_asked_again_for_its_dtypes(server: Server, predict: Predict) -> None:
    predict("m", {"x": [1]})
    server.answers[GET_MODEL_METADATA] = describe({"x": INT32})
    server.answers[PREDICT] = refuse(grpc.StatusCode.INVALID_ARGUMENT)
    with pytest.raises(InvalidArgument):
        predict("m", {"x": [1]})
    server.answers[PREDICT] = echo
    assert predict("m", {"x": [1]})["x"].dtype == np.int32


def test_the_request_has_everything_that_was_asked_for(server: Server, predict: Predict) -> None:
    predict(
        "m",
        {"x": np.zeros(1), "z": np.zeros(1)},
        signature_name="f",
        version=7,
        output_filter=["y", "w"],
        metadata={"authorization": "secret", "trace-bin": b"\0\xff"},
    )
    predict("m", {}, metadata=[("tag", "a"), ("tag", "b")])
    first, second = server.requests()
    assert (first.model_spec.name, first.model_spec.version.value, first.model_spec.signature_name) == ("m", 7, "f")
    assert sorted(first.inputs) == ["x", "z"]
    assert list(first.output_filter) == ["y", "w"]
    assert first.inputs["x"].tensor_content == bytes(8)
    assert not second.model_spec.HasField("version")
    assert second.model_spec.signature_name == ""
    sent = [
        [(key, value) for key, value in context.invocation_metadata() if key in ("authorization", "trace-bin", "tag")]
        for _, _, context in server.calls
    ]
    assert sent == [[("authorization", "secret"), ("trace-bin", b"\0\xff")], [("tag", "a"), ("tag", "b")]]


def test_metadata_goes_with_the_question_for_dtypes_too(server: Server, predict: Predict) -> None:
    predict("m", {"x": [1]}, metadata={"authorization": "secret"})
    assert [path for path, _, _ in server.calls] == [GET_MODEL_METADATA, PREDICT]
    assert all(("authorization", "secret") in context.invocation_metadata() for _, _, context in server.calls)


@pytest.mark.parametrize(
    "metadata",
    [{"UPPER": "case"}, {"": "a"}, {"key": "é"}, {"key": "a\n"}, {"key": b"bytes"}, [("a", "b"), ("space here", "a")]],
)
def test_metadata_that_cannot_travel_is_refused(server: Server, predict: Predict, metadata: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"^metadata '"):
        predict("m", {"x": [1]}, metadata=metadata)
    assert server.calls == []


def test_messages_may_be_large(predict: Predict) -> None:
    sent = np.arange(5 << 20, dtype=np.float64)
    assert (predict("m", {"x": sent})["x"] == sent).all()


def test_a_request_beyond_what_a_message_can_be_is_refused(server: Server, predict: Predict) -> None:
    with pytest.raises(ResourceExhausted, match=r'^input "x": .*2147483647 bytes'):
        predict("m", {"x": np.broadcast_to(np.float32(0), 1 << 29)})
    assert server.calls == []


# --- deadlines


def test_the_timeout_becomes_the_deadline(server: Server, predict: Predict) -> None:
    remaining: list[float | None] = []

    def answer(message: bytes, context: grpc.ServicerContext) -> bytes:
        remaining.append(context.time_remaining())
        return echo(message, context)

    server.answers[PREDICT] = answer
    predict("m", {"x": np.zeros(1)}, timeout=LIMIT_S)
    assert remaining[0] is not None
    assert 0 < remaining[0] < LIMIT_S + 1


@pytest.mark.parametrize("path", [PREDICT, GET_MODEL_METADATA])
def test_the_deadline_ends_the_call_and_the_next_one_is_answered(server: Server, predict: Predict, path: str) -> None:
    blocked = server.answers[path] = Blocked(server.answers[path])
    with pytest.raises(DeadlineExceeded) as caught:
        predict("m", {"x": [1] if path == GET_MODEL_METADATA else np.zeros(1)}, timeout=SHORT_S)
    assert caught.value.code == Code.DEADLINE_EXCEEDED
    assert isinstance(caught.value, TimeoutError)
    assert blocked.arrived.wait(LIMIT_S)
    blocked.release()
    assert predict("m", {"x": [1]}, timeout=LIMIT_S)["x"].dtype == np.float32


# --- errors


@pytest.mark.parametrize("code", [code for code in Code if code != Code.OK], ids=lambda code: code.name)
def test_every_code_is_the_error_that_a_batcher_raises(server: Server, predict: Predict, code: Code) -> None:
    server.answers[PREDICT] = refuse(STATUS_CODES[code], "what was wrong: é")
    with pytest.raises(HeadraceError) as caught:
        predict("m", {"x": np.zeros(1)})
    assert type(caught.value) is CLASSES.get(code, HeadraceError)
    assert caught.value.code is code
    assert caught.value.message == str(caught.value) == "what was wrong: é"


@pytest.mark.parametrize("value", [[1], np.zeros(1)], ids=["list", "array"])
def test_where_nobody_listens_the_server_is_unavailable(connect: Connect, value: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    with pytest.raises(Unavailable, match=r"failed to connect to all addresses.*Connection refused"):
        connect(address).predict("m", {"x": value}, timeout=LIMIT_S)


def test_what_is_no_grpc_server_is_unavailable(connect: Connect) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            with listener.accept()[0] as connection:
                connection.recv(4096)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")

        answering = threading.Thread(target=answer)
        answering.start()
        with pytest.raises(Unavailable, match="http1"):
            connect(f"127.0.0.1:{listener.getsockname()[1]}").predict("m", {"x": np.zeros(1)}, timeout=LIMIT_S)
        answering.join(LIMIT_S)


def test_a_server_that_comes_back_is_found_again(connect: Connect) -> None:
    server = Server()
    client = connect(server.address)
    client.predict("m", {"x": np.zeros(1)})
    server.stop()
    with pytest.raises(Unavailable):
        client.predict("m", {"x": np.zeros(1)})
    server = Server(server.port)

    def answered() -> bool:
        try:
            return bool(client.predict("m", {"x": np.zeros(1)}))
        except Unavailable:
            return False

    wait_for(answered)
    server.stop()


@pytest.mark.parametrize(
    ("path", "answer", "text"),
    [
        (PREDICT, b"\xff", "the server's answer is no PredictResponse"),
        (GET_MODEL_METADATA, b"\xff", "the server's answer is no GetModelMetadataResponse"),
        (
            PREDICT,
            b"\x0a\x0b\x0a\x01y\x12\x06\x08\x0b\x22\x02ab",  # two quantized bytes
            'output "y": dtype 11 is not served',
        ),
    ],
)
def test_an_answer_that_makes_no_sense_is_an_internal_error(
    server: Server, predict: Predict, path: str, answer: bytes, text: str
) -> None:
    server.answers[path] = lambda *_: answer
    with pytest.raises(Internal) as caught:
        predict("m", {"x": [1]})
    assert caught.value.message == text


# --- retries


def unavailable_until(attempt: int, then: Answer) -> tuple[Answer, list[int]]:
    """An answer that is UNAVAILABLE before that attempt, and the attempts."""
    attempts: list[int] = []

    def answer(message: bytes, context: grpc.ServicerContext) -> bytes:
        attempts.append(len(message))
        if len(attempts) < attempt:
            context.abort(grpc.StatusCode.UNAVAILABLE, "full")
        return then(message, context)

    return answer, attempts


def test_nothing_is_retried_unless_it_is_asked_for(server: Server, predict: Predict) -> None:
    server.answers[PREDICT], attempts = unavailable_until(2, echo)
    with pytest.raises(Unavailable, match=r"^full$"):
        predict("m", {"x": np.zeros(1)})
    assert len(attempts) == 1


@pytest.mark.parametrize("path", [PREDICT, GET_MODEL_METADATA])
def test_unavailable_is_retried(server: Server, connect: Connect, path: str) -> None:
    server.answers[path], attempts = unavailable_until(3, server.answers[path])
    assert connect(server.address, retries=2).predict("m", {"x": [1]})["x"].tolist() == [1]
    assert len(attempts) == 3


def test_a_request_of_megabytes_is_retried_as_well(server: Server, connect: Connect) -> None:
    server.answers[PREDICT], attempts = unavailable_until(2, echo)
    assert connect(server.address, retries=1).predict("m", {"x": np.zeros(1 << 18)})["x"].size == 1 << 18
    assert len(attempts) == 2


def test_retries_end_and_the_last_answer_is_told(server: Server, connect: Connect) -> None:
    server.answers[PREDICT], attempts = unavailable_until(100, echo)
    with pytest.raises(Unavailable, match=r"^full$"):
        connect(server.address, retries=2).predict("m", {"x": np.zeros(1)})
    assert len(attempts) == 3


def test_other_errors_are_not_retried(server: Server, connect: Connect) -> None:
    server.answers[PREDICT] = refuse(grpc.StatusCode.INTERNAL)
    with pytest.raises(Internal):
        connect(server.address, retries=4).predict("m", {"x": np.zeros(1)})
    assert server.asked(PREDICT) == 1


@pytest.mark.parametrize("kind", [Client, AsyncClient])
@pytest.mark.parametrize("retries", [-1, 5, 1.5])
def test_a_number_of_retries_that_grpc_does_not_make_is_refused(kind: Any, retries: Any) -> None:
    with pytest.raises(InvalidArgument, match=f"^retries is {retries}; it must be 0 to 4$"):
        kind("127.0.0.1:1", retries=retries)


# --- connections and their end


def test_all_calls_share_one_connection(server: Server, connect: Connect) -> None:
    client = connect(server.address)
    with ThreadPoolExecutor(8) as threads:
        sizes = threads.map(lambda size: client.predict("m", {"x": [0] * size})["x"].size, range(40))
        assert list(sizes) == list(range(40))
    assert len({context.peer() for _, _, context in server.calls}) == 1


def test_a_closed_client_is_unavailable(server: Server, connect: Connect) -> None:
    unused, used = connect(server.address), connect(server.address)
    used.predict("m", {"x": [1]})
    for client in (unused, used):
        client.close()
        client.close()
        for value in ([1], [1.0], np.zeros(1)):
            with pytest.raises(Unavailable, match=r"^the client is closed$"):
                client.predict("other", {"x": value})


def test_a_block_closes_its_client(server: Server) -> None:
    with Client(server.address) as client:
        assert client.predict("m", {"x": [1]})["x"].tolist() == [1]
    with pytest.raises(Unavailable):
        client.predict("m", {"x": [1]})

    async def use() -> AsyncClient:
        async with AsyncClient(server.address) as client:
            assert (await client.predict("m", {"x": [1]}))["x"].tolist() == [1]
        with pytest.raises(Unavailable):
            await client.predict("m", {"x": [1]})
        return client

    asyncio.run(use())


@pytest.mark.parametrize("path", [PREDICT, GET_MODEL_METADATA])
def test_closing_cancels_what_still_waits(server: Server, path: str) -> None:
    blocked = server.answers[path] = Blocked(server.answers[path])
    client = Client(server.address)
    with ThreadPoolExecutor(2) as threads:
        waiting = [threads.submit(client.predict, "m", {"x": [1]}) for _ in range(2)]
        assert blocked.arrived.wait(LIMIT_S)
        client.close()
        for each in waiting:
            assert isinstance(each.exception(LIMIT_S), (Cancelled, Unavailable))
    assert blocked.gone.wait(LIMIT_S)
    blocked.release()


@pytest.mark.parametrize("path", [PREDICT, GET_MODEL_METADATA])
def test_closing_cancels_the_tasks_calls_but_not_the_tasks(server: Server, path: str) -> None:
    blocked = server.answers[path] = Blocked(server.answers[path])

    async def use() -> None:
        client = AsyncClient(server.address)
        tasks = [asyncio.ensure_future(client.predict("m", {"x": [1]})) for _ in range(2)]
        await asyncio.to_thread(blocked.arrived.wait, LIMIT_S)
        await client.close()
        for task in tasks:
            with pytest.raises(Cancelled):
                await asyncio.wait_for(task, LIMIT_S)

    asyncio.run(use())
    assert blocked.gone.wait(LIMIT_S)
    blocked.release()


# --- threads and tasks


def test_threads_that_ask_at_once_ask_for_dtypes_once(server: Server) -> None:
    blocked = server.answers[GET_MODEL_METADATA] = Blocked(server.answers[GET_MODEL_METADATA])
    started = threading.Barrier(21)

    def predict() -> Any:
        started.wait(LIMIT_S)
        return client.predict("m", {"x": [1]})["x"].dtype

    with Client(server.address) as client, ThreadPoolExecutor(20) as threads:
        waiting = [threads.submit(predict) for _ in range(20)]
        started.wait(LIMIT_S)
        blocked.release()
        assert {each.result(LIMIT_S) for each in waiting} == {np.dtype(np.float32)}
    assert server.asked(GET_MODEL_METADATA) == 1
    assert server.asked(PREDICT) == 20


def test_tasks_that_ask_at_once_ask_for_dtypes_once(server: Server) -> None:
    async def use() -> None:
        async with AsyncClient(server.address) as client:
            outputs = await asyncio.gather(*(client.predict("m", {"x": [i]}) for i in range(1000)))
        assert [output["x"].tolist() for output in outputs] == [[i] for i in range(1000)]

    asyncio.run(use())
    assert server.asked(GET_MODEL_METADATA) == 1


def test_cancelling_a_task_cancels_its_request(server: Server) -> None:
    blocked = server.answers[PREDICT] = Blocked(echo)

    async def use() -> None:
        async with AsyncClient(server.address) as client:
            task = asyncio.ensure_future(client.predict("m", {"x": np.zeros(1)}))
            await asyncio.to_thread(blocked.arrived.wait, LIMIT_S)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await asyncio.to_thread(blocked.gone.wait, LIMIT_S)

    asyncio.run(use())
    blocked.release()


def test_cancelling_one_task_leaves_the_others_their_dtypes(server: Server) -> None:
    blocked = server.answers[GET_MODEL_METADATA] = Blocked(server.answers[GET_MODEL_METADATA])

    async def use() -> None:
        async with AsyncClient(server.address) as client:
            first, second = [asyncio.ensure_future(client.predict("m", {"x": [1]})) for _ in range(2)]
            await asyncio.to_thread(blocked.arrived.wait, LIMIT_S)
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            blocked.release()
            assert (await second)["x"].dtype == np.float32

    asyncio.run(use())
    assert server.asked(GET_MODEL_METADATA) == 1


def test_an_async_client_belongs_to_the_loop_of_its_first_call(server: Server) -> None:
    client = AsyncClient(server.address)

    async def use() -> Any:
        return (await client.predict("m", {"x": np.zeros(1)}))["x"].size

    loop = asyncio.new_event_loop()
    assert loop.run_until_complete(use()) == 1
    with pytest.raises(FailedPrecondition, match="another event loop"):
        asyncio.run(use())
    assert loop.run_until_complete(use()) == 1
    loop.run_until_complete(client.close())
    loop.close()


# --- import

IMPORT = """
import sys, time
begin = time.perf_counter()
import headrace
headrace.Client, headrace.AsyncClient
seconds = time.perf_counter() - begin
heavy = {"tensorflow", "ml_dtypes", "headrace._core", "headrace.engine", "headrace.model"} & set(sys.modules)
assert not heavy, heavy
print(seconds)
"""


def test_the_clients_are_imported_in_no_time_and_without_the_engine() -> None:
    def seconds() -> float:
        done = subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        return float(done.stdout)

    assert min(seconds() for _ in range(5)) < 0.3


@pytest.mark.parametrize("timeout", [0, -1, float("nan")])
def test_a_timeout_that_has_passed_is_not_waited_for(timeout: float) -> None:
    with Client("127.0.0.1:1") as client, pytest.raises(DeadlineExceeded):
        client.predict("half", {"x": np.ones(1, np.float32)}, timeout=timeout)
