# SPDX-License-Identifier: Apache-2.0
"""`headrace serve` in a process of its own, with its log, and TensorFlow Serving's own stubs as its client."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import grpc
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework.tensor_pb2 import TensorProto
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

    from numpy.typing import NDArray

# Generous: it only bounds how long a failing test takes.
LIMIT_S = 60.0

SERVING = re.compile(r"serving \S+ version \d+ on 0\.0\.0\.0:(\d+)(?: and unix:.+)?$")
BATCH = re.compile(r"^batch (\S+) rows=(\d+) requests=(\d+) wait_us=(\d+) run_us=(\d+) reason=(\S+)$")

UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


class Served:
    """A server process; leaving the block stops it and expects that it ends well."""

    def __init__(
        self, *arguments: str | Path, env: Mapping[str, str] | None = None, prefix: Sequence[str] = ()
    ) -> None:
        command = [*prefix, sys.executable, "-m", "headrace", "serve", *map(str, arguments)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=env
        )
        self._changed = threading.Condition()
        self._lines: list[str] = []  # guarded by _changed
        self._ended = False  # guarded by _changed
        self._log_reader = threading.Thread(target=self._read_log, name="log reader", daemon=True)
        self._log_reader.start()

    def __enter__(self) -> Served:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.process.kill()
            self.process.wait(LIMIT_S)
        elif self.process.poll() is None:
            assert self.stop() == 0, self.log()

    @property
    def port(self) -> int:
        """Waits until it serves."""
        found = SERVING.search(self.wait_line(SERVING))
        assert found is not None
        return int(found[1])

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def wait_line(self, pattern: str | re.Pattern[str], *, count: int = 1) -> str:
        """The line of the log that is the `count`th to match."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._matching(pattern)) >= count or self._ended, LIMIT_S)
            matching = self._matching(pattern)
            assert len(matching) >= count, f"no {pattern} in:\n" + "\n".join(self._lines)
            return matching[count - 1]

    def log(self) -> str:
        with self._changed:
            return "\n".join(self._lines)

    def batches(self, *, requests: int) -> list[Batch]:
        """The batches so far, once they hold this many requests (an answer may overtake its line of the log)."""

        def found() -> list[Batch]:
            return [Batch(*match.groups()) for line in self._lines if (match := BATCH.match(line))]

        with self._changed:
            self._changed.wait_for(lambda: sum(batch.requests for batch in found()) >= requests or self._ended, LIMIT_S)
            assert sum(batch.requests for batch in found()) == requests, "\n".join(self._lines)
            return found()

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Sends the signal and returns the exit code."""
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        """Waits for the end and returns the exit code; the log is complete from then on."""
        code = self.process.wait(LIMIT_S)
        self._log_reader.join(LIMIT_S)
        return code

    def _matching(self, pattern: str | re.Pattern[str]) -> list[str]:
        return [line for line in self._lines if re.search(pattern, line)]

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as stderr:
            for line in stderr:
                with self._changed:
                    self._lines.append(line.rstrip("\n"))
                    self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()


class Batch:
    """One line of --log_batches."""

    def __init__(self, lane: str, rows: str, requests: str, wait_us: str, run_us: str, reason: str) -> None:
        self.lane = lane
        self.rows = int(rows)
        self.requests = int(requests)
        self.wait_us = int(wait_us)
        self.run_us = int(run_us)
        self.reason = reason


class Client:
    """A stock TensorFlow Serving client of one model."""

    def __init__(self, address: str, model: str) -> None:
        self.model = model
        self.channel = grpc.insecure_channel(address, options=UNLIMITED)
        # Calls that wait for the connection may overtake each other.
        grpc.channel_ready_future(self.channel).result(LIMIT_S)
        self.stub = prediction_service_pb2_grpc.PredictionServiceStub(self.channel)

    def request(self, inputs: Mapping[str, Any], signature: str = "", **spec: Any) -> predict_pb2.PredictRequest:
        """A request; inputs are TensorProtos or what make_tensor_proto takes.  `spec` goes into its ModelSpec."""
        request = predict_pb2.PredictRequest()
        request.model_spec.name = self.model
        request.model_spec.signature_name = signature
        for field, value in spec.items():
            if field == "version":
                request.model_spec.version.value = value
            else:
                setattr(request.model_spec, field, value)
        for name, value in inputs.items():
            request.inputs[name].CopyFrom(value if isinstance(value, TensorProto) else tf.make_tensor_proto(value))
        return request

    def predict(
        self, inputs: Mapping[str, Any], signature: str = "", *, timeout: float = LIMIT_S, **spec: Any
    ) -> dict[str, NDArray[Any]]:
        """The outputs as arrays.  Raises grpc.RpcError."""
        return arrays(self.stub.Predict(self.request(inputs, signature, **spec), timeout=timeout))

    def wait_received(self) -> None:
        """Waits until the server has taken in what was sent before: it answers in the order of arrival what needs no run."""
        for _ in range(3):
            code, _ = self.refusal(predict_pb2.PredictRequest())
            assert code is grpc.StatusCode.INVALID_ARGUMENT

    def refusal(self, request: Any) -> tuple[grpc.StatusCode, str]:
        """The status of a request that is not answered with OK."""
        with pytest.raises(grpc.RpcError) as raised:
            self.stub.Predict(request, timeout=LIMIT_S)
        return raised.value.code(), raised.value.details() or ""


def floats(values: Any) -> NDArray[np.float32]:
    return np.array(values, np.float32)


def longs(values: Any) -> NDArray[np.int64]:
    return np.array(values, np.int64)


def arrays(response: predict_pb2.PredictResponse) -> dict[str, NDArray[Any]]:
    made: dict[str, NDArray[np.generic]] = {name: tf.make_ndarray(proto) for name, proto in response.outputs.items()}
    return made
