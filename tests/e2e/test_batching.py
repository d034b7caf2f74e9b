# SPDX-License-Identifier: Apache-2.0
"""What batching does to requests, seen by a client and in the log of batches."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import grpc
import numpy as np
import pytest
from grpc import StatusCode

from tests.e2e.served import LIMIT_S, Client, Served, arrays, floats, longs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HOUR = "--batch_timeout_micros=3600000000"


class HalfPlusTwo:
    """A server of half_plus_two that logs its batches, and a client."""

    def __init__(self, server: Served) -> None:
        self.server = server
        self.client = Client(server.address, "half_plus_two")

    def send(self, x: Any, *, timeout: float = LIMIT_S) -> Any:
        """Sends a request and does not wait for its answer."""
        return self.client.stub.Predict.future(self.client.request({"x": floats(x)}), timeout=timeout)


@pytest.fixture
def serve(saved_models: Path, transport: str) -> Iterator[Any]:
    """Starts a server with the given flags."""
    started: list[HalfPlusTwo] = []

    def start(*flags: str) -> HalfPlusTwo:
        path = saved_models / "half_plus_two"
        started.append(HalfPlusTwo(Served(path, "--port=0", "--log_batches", f"--grpc_transport={transport}", *flags)))
        return started[-1]

    yield start
    for each in started:
        each.client.channel.close()
        assert each.server.stop() == 0, each.server.log()


def y(call: Any) -> list[float]:
    return list(arrays(call.result(LIMIT_S))["y"].tolist())


def test_a_lone_request_waits_its_window_and_no_batch_exceeds_its_size(serve: Any) -> None:
    half = serve("--batch_size=16", "--batch_timeout_micros=100000")
    half.server.wait_line(r"/serving_default: policy timeout, a lone request waits up to 100 ms \(batch_timeout_micros")
    waits_s = []
    for _ in range(5):
        begin = time.perf_counter()
        assert y(half.send([2.0])) == [3.0]
        waits_s.append(time.perf_counter() - begin)
    assert 0.1 <= min(waits_s) <= 0.13
    calls = [half.send(np.arange(1 + i % 16)) for i in range(200)]
    for i, call in enumerate(calls):
        assert y(call) == [x / 2 + 2 for x in range(1 + i % 16)]
    batches = half.server.batches(requests=205)
    assert max(batch.rows for batch in batches) <= 16
    assert {batch.rows for batch in batches[:5]} == {1}
    assert len(batches) < 205


def test_a_full_batch_does_not_wait_for_its_window(serve: Any) -> None:
    half = serve("--max_batch_size=100", HOUR)
    calls = [half.send([i]) for i in range(100)]
    for i, call in enumerate(calls):
        assert y(call) == [i / 2 + 2]
    [batch] = half.server.batches(requests=100)
    assert (batch.rows, batch.reason) == (100, "full")


def test_by_default_a_lone_request_runs_at_once_alone(serve: Any) -> None:
    half = serve()
    half.server.wait_line("policy adaptive, a lone request never waits")
    for i in range(10):
        assert y(half.send([i])) == [i / 2 + 2]
    assert [batch.rows for batch in half.server.batches(requests=10)] == [1] * 10


def test_without_batching_every_request_runs_alone(serve: Any) -> None:
    half = serve("--enable_batching=false", HOUR)
    half.server.wait_line(r"not batched \(enable_batching is false\)")
    calls = [half.send([i]) for i in range(20)]
    assert [y(call) for call in calls] == [[i / 2 + 2] for i in range(20)]
    assert [batch.requests for batch in half.server.batches(requests=20)] == [1] * 20


def test_a_full_queue_refuses_at_once_with_tensorflow_serving_s_text(serve: Any) -> None:
    half = serve("--max_batch_size=4", "--max_enqueued_batches=1", HOUR)
    waiting = half.send([1, 2, 3])
    half.client.wait_received()
    code, details = half.client.refusal(half.client.request({"x": floats([1, 2])}))
    assert code is StatusCode.UNAVAILABLE
    assert details == (
        "The batch scheduling queue to which this task was submitted is full; currently 1 batches enqueued and "
        "max_enqueued_batches is 1"
    )
    assert y(half.send([4])) == [4.0]  # fits, and fills the batch
    assert y(waiting) == [2.5, 3.0, 3.5]


def test_every_request_of_a_burst_is_answered_or_told_that_the_queue_is_full(serve: Any) -> None:
    half = serve("--batch_size=64")
    calls = [half.send([i]) for i in range(6000)]
    refusals = [call.exception(LIMIT_S) for call in calls]
    assert {refused.code() for refused in refusals if refused is not None} <= {StatusCode.UNAVAILABLE}
    assert half.client.predict({"x": floats([2.0])})["y"].tolist() == [3.0]


def test_a_request_whose_deadline_passes_leaves_the_queue(serve: Any) -> None:
    half = serve("--max_batch_size=4", HOUR)
    with pytest.raises(grpc.RpcError) as raised:
        half.send([1], timeout=0.2).result()
    assert raised.value.code() is StatusCode.DEADLINE_EXCEEDED
    calls = [half.send([i]) for i in range(4)]
    assert [y(call) for call in calls] == [[2.0], [2.5], [3.0], [3.5]]
    [batch] = half.server.batches(requests=4)
    assert batch.rows == 4


def test_a_cancelled_request_leaves_the_queue(serve: Any) -> None:
    half = serve("--max_batch_size=4", HOUR)
    gone = half.send([1, 2, 3])
    half.client.wait_received()
    gone.cancel()
    # Room for a whole batch appears only when the server has heard of it.
    calls = [half.send([i]) for i in range(4)]
    assert gone.cancelled()
    assert [y(call)[0] for call in calls] == [2.0, 2.5, 3.0, 3.5]


def test_a_client_that_goes_away_harms_nobody(serve: Any, transport: str) -> None:
    half = serve("--max_batch_size=4", HOUR)
    other = Client(half.server.address, "half_plus_two")
    lost = [other.stub.Predict.future(other.request({"x": [1.0]})) for _ in range(3)]
    other.wait_received()
    other.channel.close()
    assert all(call.cancelled() or call.exception() is not None for call in lost)
    calls = [half.send([i, i, i, i]) for i in range(3)]
    assert [y(call) for call in calls] == [[2.0] * 4, [2.5] * 4, [3.0] * 4], transport


def test_rows_of_other_shapes_wait_in_a_batch_of_their_own(saved_models: Path, transport: str) -> None:
    with Served(
        saved_models / "several",
        "--port=0",
        f"--grpc_transport={transport}",
        "--max_batch_size=2",
        HOUR,
        "--log_batches",
    ) as server:
        client = Client(server.address, "several")
        x, n = floats([1]), longs([1])
        rows = [client.stub.Predict.future(client.request({"x": x, "n": n}), timeout=LIMIT_S)]
        odd = client.stub.Predict.future(client.request({"x": x[None], "n": n[None]}), timeout=LIMIT_S)
        rows.append(client.stub.Predict.future(client.request({"x": x, "n": n}), timeout=LIMIT_S))
        assert [arrays(call.result(LIMIT_S))["sum"].tolist() for call in rows] == [[2.0], [2.0]]
        assert not odd.done()
        client.predict({"x": x[None], "n": n[None]})
        assert arrays(odd.result(LIMIT_S))["sum"].tolist() == [[2.0]]
        assert [batch.rows for batch in server.batches(requests=4)] == [2, 2]
        client.channel.close()
