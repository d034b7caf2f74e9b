# SPDX-License-Identifier: Apache-2.0
"""Python threads and callables over the native core, without TensorFlow, for a run under ThreadSanitizer.

Executors are Python threads, clients are Python threads; every accepted request gets exactly one answer, its own.
Without the sanitizer these are ordinary stress tests of the binding.
"""

from __future__ import annotations

import random
import select
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest

from headrace import _core

# How long a test waits for an event before it fails, in seconds.
EVENT_LIMIT = 120.0

CANCELLED, DEADLINE_EXCEEDED, INTERNAL, UNAVAILABLE = 1, 4, 13, 14

DT_FLOAT = 1


def lane_options(policy: str = "adaptive", batch_timeout_micros: int = 0) -> _core.LaneOptions:
    return _core.LaneOptions(
        max_batch_size=16,
        batch_timeout_micros=batch_timeout_micros,
        max_enqueued_batches=1_000,
        policy=policy,
        batched=True,
        slab_bytes_max=1 << 20,
        waiting_bytes_max=1 << 24,
    )


def signature(name: str) -> _core.Signature:
    spec = [_core.TensorSpec("x", DT_FLOAT, [-1, -1])]
    return _core.Signature(name, spec, [_core.TensorSpec("y", DT_FLOAT, [-1, -1])])


def run_threads(*targets: Callable[[], None]) -> None:
    """Runs them to their end, and raises what one of them raised."""
    with ThreadPoolExecutor(len(targets)) as threads:
        for run in [threads.submit(target) for target in targets]:
            run.result(EVENT_LIMIT)


class Callables:
    """A model of two lanes whose executors double their rows; every 17th batch fails, some keep their argument."""

    def __init__(self, executors: int = 2) -> None:
        self.timer = _core.Timer()
        self.model = _core.Model("doubles", 1, self.timer)
        self.lanes = [
            self.model.add_lane(signature("adaptive"), lane_options()),
            self.model.add_lane(signature("timeout"), lane_options("timeout", 1_000)),
        ]
        self.kept: list[np.ndarray] = []
        self.executors = [threading.Thread(target=self.execute, daemon=True) for _ in range(executors)]
        for executor in self.executors:
            executor.start()

    def execute(self) -> None:
        batches = 0
        while (batch := self.model.next()) is not None:
            batches += 1
            x = batch.inputs["x"]
            assert sum(batch.slot_rows) == batch.rows == len(x)
            if batches % 17 == 0:
                batch.fail(INTERNAL, "this one fails")
                continue
            if batches % 5 == 0:
                self.kept = [*self.kept[-3:], x]
            batch.finish([x * 2])

    def close(self, drain_timeout: float = EVENT_LIMIT) -> None:
        assert self.model.close(drain_timeout)
        for executor in self.executors:
            executor.join(EVENT_LIMIT)
            assert not executor.is_alive()
        self.timer.close()
        for lane in self.lanes:
            stats = lane.stats()
            ways = ("ok", "failed", "expired", "cancelled", "closed")
            assert stats["requests"] == sum(stats[way] for way in ways)
            assert stats["waiting_rows"] == 0


@pytest.fixture
def callables() -> Iterator[Callables]:
    made = Callables()
    yield made
    made.close()


def code_of(reply: _core.Reply) -> int:
    """0, or the code of the error that answered it."""
    assert reply.done()
    try:
        reply.outputs()
    except _core.StatusError as error:
        return error.code
    return 0


def try_submit(lane: _core.Lane, x: np.ndarray, timeout: float | None = None) -> tuple[_core.Reply | None, int]:
    """The reply, or the code of the refusal."""
    try:
        return lane.submit({"x": x}, timeout), 0
    except _core.StatusError as error:
        return None, error.code


def numbered(client: int, number: int, rows: int) -> np.ndarray:
    return np.full((rows, 2), client * 10_000 + number, np.float32)


def test_every_thread_gets_its_own_rows(callables: Callables) -> None:
    def client(index: int) -> None:
        dice = random.Random(index)
        for number in range(150):
            x = numbered(index, number, dice.randint(1, 4))
            reply = dice.choice(callables.lanes).submit({"x": x})
            assert reply.wait(EVENT_LIMIT)
            assert code_of(reply) in (0, INTERNAL)
            assert code_of(reply) != 0 or np.array_equal(reply.outputs()["y"], x * 2)

    run_threads(*[partial(client, index) for index in range(6)])


def test_one_answer_while_cancels_and_deadlines_race_the_executors(callables: Callables) -> None:
    def client(index: int) -> None:
        dice = random.Random(index)
        for number in range(60):
            replies = []
            for timeout in (None, None, dice.choice([None, 0.002])):
                x = numbered(index, number, dice.randint(1, 4))
                reply, code = try_submit(dice.choice(callables.lanes), x, timeout)
                assert code in (0, DEADLINE_EXCEEDED)
                if reply is not None:
                    replies.append((x, reply))
            cancelled = dice.choice(replies)[1]
            canceller = threading.Thread(target=cancelled.cancel)
            canceller.start()
            for x, reply in replies:
                assert reply.wait(EVENT_LIMIT)
                assert code_of(reply) in (0, CANCELLED, DEADLINE_EXCEEDED, INTERNAL)
                assert code_of(reply) != 0 or np.array_equal(reply.outputs()["y"], x * 2)
            canceller.join()
            assert not cancelled.cancel()

    run_threads(*[partial(client, index) for index in range(4)])


def test_lent_arrays_may_change_once_predict_returned(callables: Callables) -> None:
    """Whatever ended it: the answer, the deadline while the rows were being copied, or a refusal."""

    def client(index: int) -> None:
        dice = random.Random(index)
        x = np.empty((4, 2), np.float32)
        for number in range(200):
            x[:] = index * 10_000 + number
            code = 0
            try:
                y = dice.choice(callables.lanes).predict({"x": x}, dice.choice([None, 0.002]))["y"]
            except _core.StatusError as error:
                code = error.code
            assert code in (0, DEADLINE_EXCEEDED, INTERNAL)
            assert code != 0 or np.array_equal(y, x * 2)

    run_threads(*[partial(client, index) for index in range(6)])


def test_a_reply_queue_tells_of_each_reply_once(callables: Callables) -> None:
    queue = _core.ReplyQueue()
    clients, each = 4, 200
    told: list[int] = []

    def client(index: int) -> None:
        dice = random.Random(index)
        for number in range(each):
            reply, code = try_submit(
                dice.choice(callables.lanes), numbered(index, number, 1), dice.choice([None, 0.01])
            )
            assert reply is not None, code
            queue.watch(reply, (index * each + number, reply))
            if dice.random() < 0.2:
                reply.cancel()

    def reader() -> None:
        while len(told) < clients * each:
            readable, _, _ = select.select([queue.fileno()], [], [], EVENT_LIMIT)
            assert readable
            for number, reply in queue.take():
                assert reply.done()
                told.append(number)

    run_threads(reader, *[partial(client, index) for index in range(clients)])
    assert sorted(told) == list(range(clients * each))


def test_several_threads_may_wait_for_one_reply(callables: Callables) -> None:
    for number in range(50):
        reply = callables.lanes[1].submit({"x": numbered(0, number, 1)})

        def wait(reply: _core.Reply = reply) -> None:
            assert reply.wait(EVENT_LIMIT)
            assert reply.done()

        run_threads(wait, wait, wait)


def test_closing_under_load_answers_what_was_accepted() -> None:
    for _ in range(5):
        callables = Callables()
        started = threading.Barrier(5, timeout=EVENT_LIMIT)

        def client(index: int, callables: Callables = callables, started: threading.Barrier = started) -> None:
            replies = []
            for number in range(10_000):
                if number == 10:
                    started.wait()
                reply, code = try_submit(callables.lanes[number % 2], numbered(index, number, 1))
                assert code in (0, UNAVAILABLE)
                if reply is None:
                    break
                replies.append(reply)
            for reply in replies:
                assert reply.wait(EVENT_LIMIT)
                assert code_of(reply) in (0, INTERNAL)

        def close(callables: Callables = callables, started: threading.Barrier = started) -> None:
            started.wait()
            callables.close()

        run_threads(close, *[partial(client, index) for index in range(4)])


def field(number: int, content: bytes) -> bytes:
    """A length-delimited protobuf field of fewer than 128 bytes."""
    assert len(content) < 128
    return bytes([number << 3 | 2, len(content)]) + content


def predict_request(model: str, signature_name: str, x: np.ndarray) -> bytes:
    """A PredictRequest with one float32 input, "x"."""
    shape = b"".join(field(2, bytes([1 << 3, dim])) for dim in x.shape)
    tensor = bytes([1 << 3, DT_FLOAT]) + field(2, shape) + field(4, x.tobytes())
    return field(1, field(1, model.encode()) + field(3, signature_name.encode())) + field(
        2, field(1, b"x") + field(2, tensor)
    )


def test_the_predict_queue_answers_each_message_once(callables: Callables) -> None:
    router = _core.Router()
    router.add(callables.model)
    queue = _core.PredictQueue(router)
    dice = random.Random(1)
    pending: set[int] = set()
    codes: dict[int, int] = {}

    def take() -> None:
        for token, code, _, response in queue.take():
            pending.remove(token)
            codes[code] = codes.get(code, 0) + 1
            assert bool(response) == (code == 0)

    for token in range(1_000):
        message = predict_request(
            "doubles", dice.choice(["adaptive", "timeout"]), numbered(0, token, dice.randint(1, 4))
        )
        pending.add(token)
        queue.submit(token, message, dice.choice([None, 0.002]))
        if dice.random() < 0.2:
            queue.cancel(dice.choice(sorted(pending)))
        if len(pending) > 50:
            take()
    while pending:
        readable, _, _ = select.select([queue.fileno()], [], [], EVENT_LIMIT)
        assert readable
        take()
    assert codes[0] > 0
    assert set(codes) <= {0, CANCELLED, DEADLINE_EXCEEDED, INTERNAL}
    assert queue.pending() == 0
    queue.close()
