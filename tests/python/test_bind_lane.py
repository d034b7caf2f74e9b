# SPDX-License-Identifier: Apache-2.0
"""Lanes as Python has them: predict(), submit(), reserve(), Reply and ReplyQueue, over a function."""

from __future__ import annotations

import gc
import os
import select
import signal
import subprocess
import sys
import threading
import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from headrace import _core
from headrace.config import BatchingOptions
from headrace.engine import Engine
from headrace.errors import Code

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from headrace.executors import Function

LIMIT_S = 30.0
OPEN, FLOAT, INT, STRING = 0, 1, 3, 7

PAIRS = _core.Signature("pairs", [_core.TensorSpec("x", FLOAT, [-1, 2])], [_core.TensorSpec("y", FLOAT, [-1, 2])])
OPEN_OUTPUTS = _core.Signature("open", [_core.TensorSpec("x", OPEN, None)], [])
OPTIONAL = _core.Signature(
    "optional", [_core.TensorSpec("x", OPEN, None), _core.TensorSpec("mask", OPEN, None, optional=True)], []
)


@contextmanager
def lane_of(function: Function, signature: _core.Signature = PAIRS, **options: Any) -> Iterator[_core.Lane]:
    engine = Engine()
    model = engine.add_functions("f", {signature.name: (signature, function)}, BatchingOptions(**options))
    try:
        yield model.lanes[signature.name]
    finally:
        engine.close(LIMIT_S)


def double(inputs: Mapping[str, Any]) -> list[Any]:
    return [inputs["x"] * 2]


class Held:
    """A function whose runs wait until they are let go."""

    def __init__(self) -> None:
        self.entered, self.leave = threading.Event(), threading.Event()

    def __call__(self, inputs: Mapping[str, Any]) -> list[Any]:
        self.entered.set()
        assert self.leave.wait(LIMIT_S)
        return double(inputs)


def readable(queue: _core.ReplyQueue, limit_s: float = LIMIT_S) -> bool:
    return bool(select.select([queue.fileno()], [], [], limit_s)[0])


ROW = np.array([[1, 2]], np.float32)


# --- predict ----------------------------------------------------------------------------------------------------------


def test_predict_gives_arrays_of_the_callers_own() -> None:
    with lane_of(double) as lane:
        y = lane.predict({"x": ROW})["y"]
        assert y.tolist() == [[2, 4]]
        assert y.flags.c_contiguous
        assert y.flags.writeable
        y[:] = 0
        assert lane.predict({"x": ROW})["y"].tolist() == [[2, 4]]


def test_predict_fails_with_the_status_and_the_exception_of_the_run() -> None:
    error = ValueError("no such word")

    def fail(_: Mapping[str, Any]) -> list[Any]:
        raise error

    with lane_of(fail) as lane, pytest.raises(_core.StatusError) as raised:
        lane.predict({"x": ROW})
    assert raised.value.code == Code.UNKNOWN
    assert raised.value.message == "ValueError: no such word"
    assert raised.value.cause is error


def test_a_refusal_has_no_cause() -> None:
    with lane_of(double) as lane, pytest.raises(_core.StatusError) as raised:
        lane.predict({})
    assert raised.value.cause is None


def test_the_cause_is_let_go_of_with_the_last_reply() -> None:
    class Kept(Exception):
        pass

    kept: list[weakref.ref[Kept]] = []

    def fail(_: Mapping[str, Any]) -> list[Any]:
        error = Kept()
        kept.append(weakref.ref(error))
        raise error

    with lane_of(fail) as lane:
        with pytest.raises(_core.StatusError):
            lane.predict({"x": ROW})  # the first, which the log keeps
        reply = lane.submit({"x": ROW})
        assert reply.wait(LIMIT_S)
        assert kept[1]() is not None
        del reply
        with pytest.raises(_core.StatusError):
            lane.predict({"x": ROW})  # a call that lets go of what was dropped
        gc.collect()
        assert kept[1]() is None


def test_predict_answers_at_its_deadline_while_the_run_goes_on() -> None:
    held = Held()
    with lane_of(held) as lane:
        with pytest.raises(_core.StatusError) as raised:
            lane.predict({"x": ROW}, 0.01)
        assert raised.value.code == Code.DEADLINE_EXCEEDED
        held.leave.set()


def test_arrays_that_predict_was_lent_may_change_once_it_returned() -> None:
    """Also where it gives up before the run has ended: by then the rows are copied."""
    held = Held()
    with lane_of(held) as lane:
        large = np.ones([64, 2], np.float32)
        with pytest.raises(_core.StatusError):
            lane.predict({"x": large}, 0.01)
        large[:] = 7
        held.leave.set()
        assert lane.predict({"x": large})["y"][0, 0] == 14


def test_ctrl_c_interrupts_predict_and_cancels_the_request() -> None:
    program = """
import os, signal, sys, threading
import numpy as np
from headrace import _core
from headrace.config import BatchingOptions
from headrace.engine import Engine

entered, leave = threading.Event(), threading.Event()

def hold(inputs):
    if not entered.is_set():
        entered.set()
        leave.wait(30)
    return [inputs["x"]]

spec = _core.TensorSpec("x", 1, [-1])
engine = Engine()
lane = engine.add_functions("f", {"s": (_core.Signature("s", [spec], [spec]), hold)}, BatchingOptions()).lanes["s"]
row = {"x": np.ones([1], np.float32)}
threading.Thread(target=lambda: entered.wait(30) and os.kill(os.getpid(), signal.SIGINT)).start()
try:
    lane.predict(row)
except KeyboardInterrupt:
    leave.set()
    lane.predict(row)
    print("interrupted", lane.stats()["cancelled"])
engine.close(30)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=LIMIT_S, check=True)
    assert ended.stdout == "interrupted 1\n"


# --- inputs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["predict", "submit"])
@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, 'input "x" is missing; the signature has {x}'),
        ({"x": ROW, "z": ROW}, 'there is no input "z"; the signature has {x}'),
        ({"x": ROW, 3: ROW}, "an input is named by a str; got 3"),
        ({"x": ROW.astype(np.float64)}, 'input "x": got float64, the signature wants float32'),
        ({"x": [["a", "b"]]}, 'input "x": got <U1, the signature wants float32'),
    ],
)
def test_wrong_inputs_are_refused_by_name(call: str, inputs: Any, message: str) -> None:
    with lane_of(double) as lane, pytest.raises(_core.StatusError) as raised:
        getattr(lane, call)(inputs)
    assert (raised.value.code, raised.value.message) == (Code.INVALID_ARGUMENT, message)


def test_a_name_need_not_be_utf_8() -> None:
    with lane_of(double) as lane, pytest.raises(_core.StatusError, match=r'there is no input "\\udc80"'):
        lane.predict({"x": ROW, "\udc80": ROW})


@pytest.mark.parametrize("call", ["predict", "submit"])
def test_an_array_that_is_larger_than_its_memory_is_refused_before_it_is_copied(call: str) -> None:
    huge = np.broadcast_to(np.float32(0), (1 << 42, 2))
    with lane_of(double) as lane, pytest.raises(_core.StatusError, match="slab_bytes_max") as raised:
        getattr(lane, call)({"x": huge})
    assert raised.value.code == Code.INVALID_ARGUMENT


@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.int8, np.bool_])
def test_cast_takes_numbers_of_another_type(dtype: Any) -> None:
    with lane_of(double) as lane:
        assert lane.predict({"x": ROW.astype(dtype)}, cast=True)["y"].dtype == np.float32


@pytest.mark.parametrize("value", [[[1e300, 1.0]], np.array([[1e300, 1.0]])])
def test_numbers_do_not_become_infinite(value: Any) -> None:
    with lane_of(double) as lane, pytest.raises(_core.StatusError, match="out of range for float32"):
        lane.predict({"x": value}, cast=True)


def test_infinite_numbers_stay_so() -> None:
    with lane_of(double) as lane:
        assert lane.predict({"x": [[float("inf"), float("nan")]]})["y"].tolist()[0][0] == float("inf")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.array([1.5]), 'input "x": got float64, the signature wants int32'),
        (np.array([1 << 40]), 'input "x": holds a number out of range for int32'),
        (np.array([b"1"]), 'input "x": got |S1, the signature wants int32'),
    ],
)
def test_cast_loses_neither_fractions_nor_range(value: Any, message: str) -> None:
    signature = _core.Signature("ints", [_core.TensorSpec("x", INT, [-1])], [_core.TensorSpec("y", INT, [-1])])
    with lane_of(double, signature) as lane, pytest.raises(_core.StatusError) as raised:
        lane.predict({"x": value}, cast=True)
    assert raised.value.message == message


def test_an_open_signature_takes_what_comes_and_answers_under_the_names_of_the_run() -> None:
    def shapes(inputs: Mapping[str, Any]) -> dict[str, Any]:
        x = inputs["x"]
        return {"same": x, "kind": np.array([x.dtype.name] * len(x), object)}

    with lane_of(shapes, OPEN_OUTPUTS) as lane:
        for value in (np.ones([1, 3], np.float16), np.array([1, 2]), np.array([b"a"], object)):
            answer = lane.predict({"x": value})
            assert list(answer) == ["same", "kind"]
            assert answer["same"].tolist() == value.tolist()
            assert answer["kind"][0] == value.dtype.name.encode()


def test_requests_that_leave_out_an_optional_input_share_no_batch_with_others() -> None:
    seen: list[tuple[int, list[str]]] = []

    def look(inputs: Mapping[str, Any]) -> dict[str, Any]:
        seen.append((len(inputs["x"]), list(inputs)))
        return {"output": inputs["x"]}

    row = np.ones([1, 2], np.float32)
    with lane_of(look, OPTIONAL, max_batch_size=2, batch_timeout_micros=3_600_000_000) as lane:
        replies = [lane.submit(inputs) for inputs in ({"x": row}, {"x": row, "mask": row}) for _ in range(2)]
        assert all(reply.wait(LIMIT_S) for reply in replies)
    assert sorted(seen) == [(2, ["x"]), (2, ["x", "mask"])]


# --- reserve ----------------------------------------------------------------------------------------------------------


def test_a_reserved_slot_is_an_aligned_buffer_that_runs_in_place() -> None:
    addresses = []

    def look(inputs: Mapping[str, Any]) -> list[Any]:
        addresses.append(inputs["x"].ctypes.data)
        return double(inputs)

    with lane_of(look) as lane:
        slot = lane.reserve(3)
        x = slot.arrays["x"]
        assert (x.shape, x.dtype.name, x.ctypes.data % 64) == ((3, 2), "float32", 0)
        x[:] = [[1, 2], [3, 4], [5, 6]]
        reply = slot.submit()
        assert reply.wait(LIMIT_S)
        assert reply.outputs()["y"].tolist() == [[2, 4], [6, 8], [10, 12]]
        assert addresses == [x.ctypes.data]


def test_a_submitted_slot_is_read_only_and_cannot_be_submitted_again() -> None:
    with lane_of(double) as lane:
        slot = lane.reserve(1)
        slot.arrays["x"][:] = 1
        slot.submit()
        with pytest.raises(ValueError, match="read-only"):
            slot.arrays["x"][:] = 2
        with pytest.raises(_core.StatusError, match="submitted already") as raised:
            slot.submit()
        assert raised.value.code == Code.FAILED_PRECONDITION


def test_a_slot_that_is_dropped_queues_nothing() -> None:
    with lane_of(double) as lane:
        lane.reserve(1)
        assert lane.stats()["requests"] == 0


def test_reserve_wants_what_the_signature_leaves_open() -> None:
    def mask(inputs: Mapping[str, Any]) -> dict[str, Any]:
        return dict(inputs)

    with lane_of(mask, OPTIONAL) as lane:
        slot = lane.reserve(2, {"x": [3], "mask": []}, {"x": "float16", "mask": bool})
        assert {name: (a.shape, a.dtype.name) for name, a in slot.arrays.items()} == {
            "x": ((2, 3), "float16"),
            "mask": ((2,), "bool"),
        }
        assert list(lane.reserve(2, {"x": [3]}, {"x": "float16"}).arrays) == ["x"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0,), r"rows is 0; it must be 1 to 64 \(max_batch_size\)"),
        ((65,), "rows is 65"),
        ((1, {"z": [2]}), 'there is no input "z"'),
        ((1, {"x": [3]}), r'input "x": shapes has \[3\] for a row, the signature wants \[2\]'),
        ((1, {"x": [2, 2]}), r"shapes has \[2,2\]"),
        ((1, {"x": [-1]}), r"shapes has \[\?\]"),
        ((1, None, {"x": "int32"}), 'input "x": dtypes has int32, the signature wants float32'),
    ],
)
def test_reserve_refuses_what_contradicts_the_signature(arguments: Any, message: str) -> None:
    with lane_of(double) as lane, pytest.raises(_core.StatusError, match=message) as raised:
        lane.reserve(*arguments)
    assert raised.value.code == Code.INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("spec", "arguments", "message"),
    [
        (_core.TensorSpec("x", FLOAT, None), (1,), r"leaves the shape of a row open \(rank unknown\)"),
        (_core.TensorSpec("x", FLOAT, [-1, -1]), (1,), r"leaves the shape of a row open \(\[\?,\?\]\)"),
        (_core.TensorSpec("x", OPEN, [-1, 2]), (1,), "leaves its dtype open"),
        (_core.TensorSpec("x", STRING, [-1]), (1,), "strings have no buffer"),
        (_core.TensorSpec("x", FLOAT, []), (1,), "is a scalar"),
        (_core.TensorSpec("x", FLOAT, [-1, -1]), (1, {"x": [1 << 40]}), "slab_bytes_max"),
        (_core.TensorSpec("x", FLOAT, None), (1, {"x": [1 << 40, 1 << 40]}), "slab_bytes_max"),
    ],
)
def test_reserve_needs_rows_of_a_known_size(spec: _core.TensorSpec, arguments: Any, message: str) -> None:
    with lane_of(double, _core.Signature("s", [spec], [])) as lane, pytest.raises(_core.StatusError, match=message):
        lane.reserve(*arguments)


# --- replies ----------------------------------------------------------------------------------------------------------


def test_a_queue_tells_once_of_each_reply_whether_it_was_answered_before_or_after() -> None:
    held = Held()
    queue = _core.ReplyQueue()
    with lane_of(held) as lane:
        early = lane.submit({"x": ROW})
        queue.watch(early, "early")
        assert held.entered.wait(LIMIT_S)
        assert queue.take() == []
        held.leave.set()
        assert readable(queue)
        assert queue.take() == ["early"]
        assert not readable(queue, 0)
        late = lane.submit({"x": ROW})
        assert late.wait(LIMIT_S)
        queue.watch(late, "late")
        assert readable(queue)
        assert queue.take() == ["late"]


def test_a_queue_is_woken_once_for_a_whole_batch() -> None:
    queue = _core.ReplyQueue()
    with lane_of(double, max_batch_size=8, batch_timeout_micros=3_600_000_000) as lane:
        replies = [lane.submit({"x": ROW}) for _ in range(7)]
        for number, reply in enumerate(replies):
            queue.watch(reply, number)
        replies.append(lane.submit({"x": ROW}))
        assert all(reply.wait(LIMIT_S) for reply in replies)
        assert readable(queue)
        assert os.read(os.dup(queue.fileno()), 8) == (1).to_bytes(8, sys.byteorder)  # one write for seven answers
        assert sorted(queue.take()) == list(range(7))


def test_a_reply_has_one_watcher() -> None:
    first, second = _core.ReplyQueue(), _core.ReplyQueue()
    with lane_of(double) as lane:
        reply = lane.submit({"x": ROW})
        first.watch(reply, 1)
        with pytest.raises(_core.StatusError, match="watches the reply already"):
            second.watch(reply, 2)


def test_a_queue_that_is_dropped_before_the_answer_lets_go_of_its_tokens() -> None:
    class Token:
        pass

    held = Held()
    with lane_of(held) as lane:
        reply = lane.submit({"x": ROW})
        token = Token()
        gone = weakref.ref(token)
        queue = _core.ReplyQueue()
        queue.watch(reply, token)
        del token, queue
        gc.collect()
        assert gone() is None
        held.leave.set()
        assert reply.wait(LIMIT_S)


def test_put_hands_a_token_through() -> None:
    queue = _core.ReplyQueue()
    queue.put(None)
    assert readable(queue)
    assert queue.take() == [None]


def test_only_the_main_thread_wakes_up_for_signals() -> None:
    """Another thread's wait ends with the answer, also where signals arrive meanwhile."""
    held = Held()
    previous = signal.signal(signal.SIGUSR1, lambda *_: None)
    try:
        with lane_of(held) as lane:
            answers: list[Any] = []
            caller = threading.Thread(target=lambda: answers.append(lane.predict({"x": ROW})["y"].tolist()))
            caller.start()
            assert held.entered.wait(LIMIT_S)
            assert caller.ident is not None
            signal.pthread_kill(caller.ident, signal.SIGUSR1)
            held.leave.set()
            caller.join(LIMIT_S)
            assert answers == [[[2, 4]]]
    finally:
        signal.signal(signal.SIGUSR1, previous)
