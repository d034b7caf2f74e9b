# SPDX-License-Identifier: Apache-2.0
"""The server as gRPC C++ sees it, which shares nothing with grpcio's server and ours but the protocol."""

from __future__ import annotations

import signal
import subprocess
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import tensorflow as tf
from grpc import StatusCode
from grpc_health.v1 import health_pb2
from tensorflow_serving.apis import predict_pb2

from tests.e2e.served import LIMIT_S, Served, arrays, floats

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from numpy.typing import NDArray

ROOT = Path(__file__).parents[2]
PREDICT = "/tensorflow.serving.PredictionService/Predict"
CHECK = "/grpc.health.v1.Health/Check"
WATCH = "/grpc.health.v1.Health/Watch"

HALF = "half_plus_two"

GZIP_OR_ZLIB = 32 + zlib.MAX_WBITS


@dataclass
class Answer:
    code: StatusCode
    text: str
    reply: bytes

    def arrays(self) -> dict[str, NDArray[Any]]:
        assert self.code is StatusCode.OK, self
        return arrays(predict_pb2.PredictResponse.FromString(self.reply))


def hex_of(data: bytes) -> str:
    return data.hex() or "-"


def bytes_of(text: str) -> bytes:
    return b"" if text == "-" else bytes.fromhex(text)


def status_of(code: str, text: str) -> tuple[StatusCode, str]:
    found = next(each for each in StatusCode if each.value[0] == int(code))
    return found, bytes_of(text).decode()


class IndependentClient:
    """A client process with one channel; it answers line by line what it is told (tests/grpc_cpp)."""

    def __init__(self, program: Path, address: str, log: Path, **arguments: int) -> None:
        self._log = log.open("w")
        self._process = subprocess.Popen(
            [program, address, *(f"grpc.{name}={value}" for name, value in arguments.items())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env={"GRPC_VERBOSITY": "debug", "GRPC_TRACE": "http_keepalive"},
        )
        self._started = 0

    def __enter__(self) -> IndependentClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            code = self._process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise
        finally:
            self._process.stdout.close()
            self._log.close()
        assert code == 0

    def start(self, path: str, message: bytes, *options: str) -> int:
        """Sends a request; its number is for finish() and cancel()."""
        self._started += 1
        self._say("start", self._started, path, hex_of(message), *options)
        return self._started

    def finish(self, call: int) -> Answer:
        self._say("finish", call)
        code, text, reply = self._hear()
        return Answer(*status_of(code, text), bytes_of(reply))

    def call(self, path: str, message: bytes, *options: str) -> Answer:
        return self.finish(self.start(path, message, *options))

    def cancel(self, call: int) -> None:
        self._say("cancel", call)

    def open(self, path: str, message: bytes) -> int:
        """A stream of replies to one message, for read() and cancel()."""
        self._started += 1
        self._say("open", self._started, path, hex_of(message))
        return self._started

    def read(self, stream: int) -> bytes | Answer:
        """The next reply, or how the stream ended."""
        self._say("read", stream)
        first, *rest = self._hear()
        return Answer(*status_of(*rest), b"") if first == "end" else bytes_of(first)

    def _say(self, *words: object) -> None:
        assert self._process.stdin is not None
        print(*words, file=self._process.stdin, flush=True)

    def _hear(self) -> list[str]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the client has ended"
        return line.split()


@pytest.fixture(scope="session")
def program() -> Path:
    """Built here if it is not; needs libgrpc++-dev, which scripts/install installs."""
    built = subprocess.run(
        ["make", "--silent", "build/independent_client"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return ROOT / "build" / "independent_client"


@pytest.fixture(scope="module")
def server(saved_models: Path, transport: str) -> Iterator[Served]:
    with Served(saved_models / HALF, "--port=0", f"--grpc_transport={transport}", "--max_batch_size=300000") as served:
        yield served


@pytest.fixture
def client(program: Path, server: Served, tmp_path: Path) -> Iterator[IndependentClient]:
    with IndependentClient(program, server.address, tmp_path / "log") as made:
        yield made


def request(values: Any, model: str = HALF) -> bytes:
    message = predict_pb2.PredictRequest()
    message.model_spec.name = model
    message.inputs["x"].CopyFrom(tf.make_tensor_proto(floats(values)))
    serialized: bytes = message.SerializeToString()
    return serialized


def wait_received(client: IndependentClient) -> None:
    """Waits until the server has taken in what was sent before: it answers in the order of arrival what needs no run."""
    for _ in range(3):
        assert client.call(PREDICT, b"").code is StatusCode.INVALID_ARGUMENT


def test_one_row_and_a_megabyte_are_answered_exactly(client: IndependentClient) -> None:
    np.testing.assert_array_equal(client.call(PREDICT, request([2.0])).arrays()["y"], floats([3.0]))
    x = np.arange(1 << 18, dtype=np.float32)
    np.testing.assert_array_equal(client.call(PREDICT, request(x)).arrays()["y"], x / 2 + 2)


def test_a_hundred_calls_at_once_on_one_channel_get_their_own_answers(client: IndependentClient) -> None:
    calls = [client.start(PREDICT, request([float(i)] * (1 + i % 7))) for i in range(100)]
    for i, call in enumerate(calls):
        np.testing.assert_array_equal(client.finish(call).arrays()["y"], floats([i / 2 + 2] * (1 + i % 7)))


def test_headers_of_the_client_do_not_matter_even_binary_ones(client: IndependentClient) -> None:
    headers = ["x-trace-bin:=00ff80", "x-trace:=" + b"plain".hex(), "x-long:=" + (b"y" * 4_000).hex()]
    np.testing.assert_array_equal(client.call(PREDICT, request([2.0]), *headers).arrays()["y"], floats([3.0]))


def test_an_unknown_method_is_unimplemented(client: IndependentClient) -> None:
    assert client.call("/no.such.Service/Method", b"").code is StatusCode.UNIMPLEMENTED


def test_what_is_no_message_is_an_invalid_argument(client: IndependentClient) -> None:
    answer = client.call(PREDICT, b"\xff\xff")
    assert answer.code is StatusCode.INVALID_ARGUMENT
    assert answer.text
    assert not answer.reply


def test_the_text_of_an_error_may_have_any_characters(client: IndependentClient) -> None:
    answer = client.call(PREDICT, request([2.0], model="größe 100% €\t😀"))
    assert answer.code is StatusCode.NOT_FOUND
    assert "größe 100% €\t😀" in answer.text


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_compressed_requests_are_answered(client: IndependentClient, encoding: str) -> None:
    x = np.zeros(100_000, np.float32)
    np.testing.assert_array_equal(client.call(PREDICT, request(x), f"compress={encoding}").arrays()["y"], x + 2)


# grpcio's server leaves replies as they are unless it is told to compress all of them.
def test_a_reply_to_a_compressed_request_is_compressed_by_the_native_transport(
    program: Path, server: Served, transport: str, tmp_path: Path
) -> None:
    x = np.zeros(100_000, np.float32)
    with IndependentClient(program, server.address, tmp_path / "log", per_message_decompression=0) as client:
        answer = client.call(PREDICT, request(x), "compress=gzip")
    assert answer.code is StatusCode.OK, answer
    if transport == "native":
        assert len(answer.reply) < 10_000
        answer.reply = zlib.decompress(answer.reply, wbits=GZIP_OR_ZLIB)
    np.testing.assert_array_equal(answer.arrays()["y"], x + 2)


def test_health_is_checked_and_watched(client: IndependentClient) -> None:
    serving = health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVING).SerializeToString()
    assert client.call(CHECK, b"").reply == serving
    asked = health_pb2.HealthCheckRequest(service="no such service").SerializeToString()
    assert client.call(CHECK, asked).code is StatusCode.NOT_FOUND
    stream = client.open(WATCH, b"")
    assert client.read(stream) == serving
    client.cancel(stream)
    end = client.read(stream)
    assert isinstance(end, Answer)
    assert end.code is StatusCode.CANCELLED


def test_a_deadline_and_a_cancel_end_a_call_and_nothing_else(
    program: Path, slow_model: Path, transport: str, tmp_path: Path
) -> None:
    served = Served(slow_model, "--port=0", f"--grpc_transport={transport}", "--num_batch_threads=4")
    with served, IndependentClient(program, served.address, tmp_path / "log") as client:
        late = client.start(PREDICT, request([1_000.0], "slow"), "timeout_ms=100")
        cancelled = client.start(PREDICT, request([1_000.0], "slow"))
        wait_received(client)
        client.cancel(cancelled)
        assert client.finish(cancelled).code is StatusCode.CANCELLED
        assert client.finish(late).code is StatusCode.DEADLINE_EXCEEDED
        np.testing.assert_array_equal(client.call(PREDICT, request([1.0], "slow")).arrays()["y"], floats([1.0]))


# grpcio's server takes frequent pings for an attack (grpc.http2.min_ping_interval_without_data_ms).
def test_pings_keep_a_connection_alive(program: Path, slow_model: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    served = Served(slow_model, "--port=0", "--grpc_transport=native")
    arguments = {"keepalive_time_ms": 50, "keepalive_timeout_ms": 20_000, "http2.max_pings_without_data": 0}
    with served, IndependentClient(program, served.address, log, **arguments) as client:
        np.testing.assert_array_equal(client.call(PREDICT, request([1_000.0], "slow")).arrays()["y"], floats([1_000.0]))
    assert log.read_text().count("Finish keepalive ping") > 1


def test_a_server_that_stops_answers_what_it_has_and_a_client_comes_back_to_the_next(
    program: Path, slow_model: Path, transport: str, tmp_path: Path
) -> None:
    served = Served(slow_model, "--port=0", f"--grpc_transport={transport}")
    with IndependentClient(program, served.address, tmp_path / "log") as client:
        running = client.start(PREDICT, request([1_000.0], "slow"))
        wait_received(client)
        served.process.send_signal(signal.SIGTERM)
        served.wait_line("stopping: answering")
        assert client.call(PREDICT, request([1.0], "slow")).code is StatusCode.UNAVAILABLE
        np.testing.assert_array_equal(client.finish(running).arrays()["y"], floats([1_000.0]))
        assert served.wait() == 0
        with Served(slow_model, f"--port={served.port}", f"--grpc_transport={transport}"):
            options = ["wait_for_ready=1", f"timeout_ms={int(1000 * LIMIT_S)}"]
            answer = client.call(PREDICT, request([1.0], "slow"), *options)
            np.testing.assert_array_equal(answer.arrays()["y"], floats([1.0]))
