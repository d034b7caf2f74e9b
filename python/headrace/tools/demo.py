# SPDX-License-Identifier: Apache-2.0
"""`headrace demo`: trains a small real model, serves it with and without batching, and shows what batching did."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import itertools
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headrace.errors import HeadraceError
from headrace.proto import message_class
from headrace.server.ports import check_port
from headrace.tools.closed_loop import Round, closed_loop
from headrace.tools.report import bar_chart, columns, size_classes, styled
from headrace.tools.served import BatchRun, Served, ServerFailed

# Wide enough that the model, not the transport, is the work: a run reads 33 MB of weights, for one row or for 64.
LAYER_UNITS = (64, 2048, 2048, 2048, 10)
TRAINING_PASSES = 8
TRAINING_BATCH = 64
LEARNING_RATE = 0.1

DT_FLOAT = 1  # tensorflow.DataType

IN_FLIGHT = 64
ROUNDS = 3
ROUND_SECONDS = 2.0
SPEEDUP_MIN = 2.0

# The same for both: one model call at a time, and on the CPU, where a call of one row is slower than any transport.
COMPARED_FLAGS = ("--num_batch_threads=1",)
CPU_ONLY = {"CUDA_VISIBLE_DEVICES": "-1"}


class DemoFailed(Exception):
    """The demo cannot go on, or batching did not do what it should; the text is for the user."""


@dataclass(frozen=True)
class Measured:
    """A round of one mode: what the client saw, and the model calls of the server."""

    client: Round
    batches: Sequence[BatchRun]

    @property
    def model_calls_per_request(self) -> float:
        return len(self.batches) / len(self.client.latencies_s)

    @property
    def executor_us_per_request(self) -> float:
        return sum(batch.run_us for batch in self.batches) / len(self.client.latencies_s)


def run(*, keep: bool = False, port: int = 8500) -> int:
    """Runs the demo and returns the exit code: 1 where batching is not at least twice as fast, changed a prediction or
    failed a request.

    With `keep` the model stays in ./models/digits, and is served on `port` until Ctrl-C.
    """
    try:
        for package in ("tensorflow", "sklearn"):
            if importlib.util.find_spec(package) is None:
                name = {"sklearn": "scikit-learn"}.get(package, package)
                raise DemoFailed(f"needs {name}: {sys.executable} -m pip install {name}")
        if keep:
            check_free(port)
        with contextlib.ExitStack() as cleanup:
            models = Path("models") if keep else Path(cleanup.enter_context(tempfile.TemporaryDirectory()))
            model = models / "digits"
            compare(model)
            if keep:
                serve(model, port)
    except (DemoFailed, ServerFailed) as error:
        print(f"headrace demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def check_free(port: int) -> None:
    """Raises DemoFailed, before anything is trained, if the model could not be served on `port` in the end."""
    try:
        check_port("0.0.0.0", port)
    except HeadraceError as error:
        raise DemoFailed(f"cannot serve on {error.message.partition(';')[0]}") from None


def compare(model: Path) -> None:
    """Trains the model, measures both modes in alternation and prints them.  Raises DemoFailed where one falls short."""
    say(f"Training a {'-'.join(map(str, LAYER_UNITS))} network on scikit-learn's handwritten digits ...")
    digits, labels = train(model)
    requests = [predict_request(digit) for digit in digits]

    say("Serving it twice: as it is, and with --enable_batching=false ...")
    rounds: dict[str, list[Measured]] = {"unbatched": [], "batched": []}
    with (
        Served(model, *COMPARED_FLAGS, "--enable_batching=false", environment=CPU_ONLY) as unbatched,
        Served(model, *COMPARED_FLAGS, environment=CPU_ONLY) as batched,
    ):
        servers = {"unbatched": unbatched, "batched": batched}
        for server in servers.values():
            server.wait_ready(timeout_s=60)
        say(f"Sending {len(digits)} digits it has not seen, one per request, {IN_FLIGHT} in flight, over gRPC ...")
        for _ in range(ROUNDS):
            for mode, server in servers.items():
                rounds[mode].append(measure(server, requests))

    predictions = {mode: [predicted_classes(one.client) for one in rounds[mode]] for mode in rounds}
    expected = predictions["unbatched"][0]
    changed = sum(int((classes != expected).sum()) for mode in predictions.values() for classes in mode)
    accuracy = [float(np.mean(mode[0] == labels)) for mode in predictions.values()]
    typical = {mode: median_round(measured) for mode, measured in rounds.items()}
    speedup = typical["batched"].client.requests_per_s / typical["unbatched"].client.requests_per_s

    say("")
    say(columns(list(typical), comparison(typical, accuracy)))
    for mode, one in typical.items():
        say(f"\nModel calls by rows per call, {mode}:")
        say(bar_chart(size_classes(Counter(batch.rows for batch in one.batches)), sys.stdout))
    say("")
    if changed:
        raise DemoFailed(f"FAILED: {changed} predictions are not the same in every round")
    if speedup < SPEEDUP_MIN:
        raise DemoFailed(f"FAILED: batched is {speedup:.1f} times as fast as unbatched, expected {SPEEDUP_MIN:.0f}")
    say(styled(f"With batching: {speedup:.1f} times the requests per second, the same predictions.", "1", sys.stdout))


def comparison(typical: dict[str, Measured], accuracy: Sequence[float]) -> list[tuple[str, list[str]]]:
    """The lines of the table, a value for each mode."""
    modes = typical.values()
    return [
        ("requests/s", [f"{one.client.requests_per_s:,.0f}" for one in modes]),
        ("latency p50", [f"{one.client.latency_ms(0.50):,.1f} ms" for one in modes]),
        ("latency p99", [f"{one.client.latency_ms(0.99):,.1f} ms" for one in modes]),
        ("model calls per request", [f"{one.model_calls_per_request:.3f}" for one in modes]),
        ("executor time per request", [f"{one.executor_us_per_request / 1e3:,.2f} ms" for one in modes]),
        ("accuracy", [f"{share:.1%}" for share in accuracy]),
    ]


def measure(server: Served, requests: Sequence[bytes]) -> Measured:
    """One round of one mode.  Raises DemoFailed where a request failed."""
    client = asyncio.run(closed_loop(server.address, requests, in_flight=IN_FLIGHT, seconds=ROUND_SECONDS))
    if client.errors:
        text, count = Counter(client.errors).most_common(1)[0]
        raise DemoFailed(f"FAILED: {len(client.errors)} requests were not answered, {count} of them: {text}")
    return Measured(client, server.take_batches(requests=len(client.latencies_s)))


def median_round(measured: Sequence[Measured]) -> Measured:
    """The round with the median requests/s."""
    return sorted(measured, key=lambda one: one.client.requests_per_s)[len(measured) // 2]


def say(text: str) -> None:
    print(text, flush=True)


def train(model: Path) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Trains and exports in a process of its own, which keeps TensorFlow out of this one.

    Returns the held-out digits, float32[n, 64], and their labels.
    """
    with tempfile.TemporaryDirectory() as scratch:
        held_out = Path(scratch) / "held_out.npz"
        command = [sys.executable, "-m", __name__, str(model), str(held_out)]
        environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", **CPU_ONLY}
        trainer = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if trainer.returncode != 0:
            raise DemoFailed(f"training failed:\n{trainer.stderr.rstrip()}")
        with np.load(held_out) as arrays:
            return arrays["digits"], arrays["labels"]


def train_and_export(model: Path, held_out: Path) -> None:
    """Trains on three fifths of scikit-learn's handwritten digits, saves the others, and exports the next version of
    the model as a SavedModel: "x" float32[n, 64] in, "class" int64[n] and "probabilities" float32[n, 10] out."""
    import tensorflow as tf
    from sklearn.datasets import load_digits

    random = np.random.default_rng(0)
    images, classes = load_digits(return_X_y=True)
    order = random.permutation(len(classes))
    x = (images[order] / 16.0).astype(np.float32)
    y = classes[order].astype(np.int64)
    seen = len(x) * 3 // 5
    np.savez(held_out, digits=x[seen:], labels=y[seen:])

    class Network(tf.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            sizes = list(itertools.pairwise(LAYER_UNITS))
            self.weights = [
                tf.Variable(random.normal(0.0, (2.0 / wide) ** 0.5, (wide, narrow)), dtype=tf.float32)
                for wide, narrow in sizes
            ]
            self.biases = [tf.Variable(tf.zeros(narrow)) for _, narrow in sizes]

        def scores(self, rows: tf.Tensor) -> tf.Tensor:
            for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
                rows = tf.nn.relu(rows @ weight + bias)
            return rows @ self.weights[-1] + self.biases[-1]

        @tf.function(input_signature=[tf.TensorSpec([None, LAYER_UNITS[0]]), tf.TensorSpec([None], tf.int64)])  # type: ignore[untyped-decorator]
        def learn(self, rows: tf.Tensor, labels: tf.Tensor) -> None:
            with tf.GradientTape() as tape:
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, self.scores(rows))
                loss = tf.reduce_mean(losses)
            for variable, slope in zip(self.variables, tape.gradient(loss, self.variables), strict=True):
                variable.assign_sub(LEARNING_RATE * slope)

        @tf.function(input_signature=[tf.TensorSpec([None, LAYER_UNITS[0]], name="x")])  # type: ignore[untyped-decorator]
        def classify(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
            scores = self.scores(x)
            return {"class": tf.argmax(scores, axis=1), "probabilities": tf.nn.softmax(scores)}

    network = Network()
    for _ in range(TRAINING_PASSES):
        for rows in np.array_split(random.permutation(seen), seen // TRAINING_BATCH):
            network.learn(x[rows], y[rows])
    versions = [int(path.name) for path in model.glob("[0-9]*") if path.name.isdecimal()]
    tf.saved_model.save(network, str(model / str(max(versions, default=0) + 1)), signatures=network.classify)


def predict_request(digit: NDArray[np.float32]) -> bytes:
    """A PredictRequest message of one digit."""
    request = message_class("tensorflow.serving.PredictRequest")()
    request.model_spec.name = "digits"
    tensor = request.inputs["x"]
    tensor.dtype = DT_FLOAT
    for size in (1, digit.size):
        tensor.tensor_shape.dim.add().size = size
    tensor.tensor_content = digit.astype("<f4").tobytes()
    return bytes(request.SerializeToString())


def predicted_classes(client: Round) -> NDArray[np.int64]:
    """The class of each digit; -1 where one round gave different answers to the same digit."""
    response = message_class("tensorflow.serving.PredictResponse")
    classes = np.empty(len(client.responses), np.int64)
    for digit, messages in client.responses.items():
        answers = {response.FromString(message).outputs["class"].int64_val[0] for message in messages}
        classes[digit] = answers.pop() if len(answers) == 1 else -1
    return classes


def serve(model: Path, port: int) -> None:
    """Serves until the server ends, on Ctrl-C for instance."""
    say(f"\nServing {model} on port {port} until Ctrl-C.  In another terminal:\n\n{client_call(port)}")
    command = [sys.executable, "-m", "headrace", "serve", str(model), f"--port={port}"]
    with subprocess.Popen(command) as server:
        while True:
            try:
                code = server.wait()
                break
            except KeyboardInterrupt:
                continue  # the server got it as well, and answers what it accepted
    if code:
        raise DemoFailed(f"the server ended with exit code {code}")


def client_call(port: int) -> str:
    """A shell command that asks for the class of a digit; it needs nothing but this package."""
    return f"""\
{sys.executable} - <<'EOF'
import grpc
from headrace.errors import HeadraceError
from headrace.proto import message_class

request = message_class("tensorflow.serving.PredictRequest")()
request.model_spec.name = "digits"
x = request.inputs["x"]
x.dtype = 1  # DT_FLOAT
for size in (1, 64):
    x.tensor_shape.dim.add().size = size
x.float_val.extend([0, 0, 0, 1, 1, 0, 0, 0] * 8)  # a vertical stroke of 8x8 pixels

with grpc.insecure_channel("127.0.0.1:{port}") as channel:
    predict = channel.unary_unary("/tensorflow.serving.PredictionService/Predict")
    message = predict(request.SerializeToString())
response = message_class("tensorflow.serving.PredictResponse").FromString(message)
print("class", response.outputs["class"].int64_val[0])
EOF
"""


if __name__ == "__main__":
    train_and_export(Path(sys.argv[1]), Path(sys.argv[2]))
