# SPDX-License-Identifier: Apache-2.0
"""A lane of its own: when it opens, how it ends, and what other processes may do with it."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from headrace import _core
from headrace.config import BatchingOptions
from headrace.engine import Engine, ServedModel
from headrace.errors import DeadlineExceeded, FailedPrecondition, HeadraceError, InvalidArgument, Unavailable
from headrace.lane import Lane
from tests.process import count_files, count_threads, resident_bytes

if TYPE_CHECKING:
    from headrace.executors import Function

LIMIT_S = 30.0
AN_HOUR = 3_600_000_000  # microseconds
SIGNATURE = _core.Signature("s", [_core.TensorSpec("x", 1, [-1])], [_core.TensorSpec("y", 1, [-1])])
ROW = {"x": np.ones([1], np.float32)}


def double(inputs: Mapping[str, Any]) -> list[Any]:
    return [inputs["x"] * 2]


def lane_of(function: Function, **options: Any) -> Lane:
    def serve(engine: Engine) -> ServedModel:
        return engine.add_functions("f", {"s": (SIGNATURE, function)}, BatchingOptions(**options))

    return Lane("lane of a test", serve)


@pytest.fixture(name="lane")
def lane_of_double() -> Iterator[Lane]:
    lane = lane_of(double)
    yield lane
    lane.close(LIMIT_S)


class Held:
    """Doubles its rows; runs wait until they are let go."""

    def __init__(self) -> None:
        self.entered, self.leave = threading.Event(), threading.Event()

    def __call__(self, inputs: Mapping[str, Any]) -> list[Any]:
        self.entered.set()
        assert self.leave.wait(LIMIT_S)
        return double(inputs)


def run(program: str) -> subprocess.CompletedProcess[str]:
    """A program that begins with `f`, a batched function that doubles, and `row`."""
    begin = """
import asyncio, os, sys, threading
import numpy as np
import headrace
from headrace.errors import *

f = headrace.batched(lambda x: x * 2)
row = np.ones([1], np.float32)

def told(use):
    try:
        print(use(), flush=True)
    except HeadraceError as error:
        print(type(error).__name__, flush=True)

def in_child(what):
    child = os.fork()
    if child == 0:
        try:
            what()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""
    return subprocess.run(
        [sys.executable, "-c", begin + program], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )


# --- opening ----------------------------------------------------------------------------------------------------------


def test_threads_start_at_the_first_use() -> None:
    before = count_threads(), count_files()
    lane = lane_of(double)
    assert (count_threads(), count_files()) == before
    assert lane.predict(ROW, None, cast=False)["y"].tolist() == [2]
    assert count_threads() > before[0]
    assert lane.close(LIMIT_S)
    assert (count_threads(), count_files()) == before


def test_threads_that_use_it_first_at_the_same_time_open_it_once() -> None:
    opened: list[Engine] = []

    def serve(engine: Engine) -> ServedModel:
        opened.append(engine)
        return engine.add_functions("f", {"s": (SIGNATURE, double)}, BatchingOptions())

    lane = Lane("lane of a test", serve)
    start = threading.Barrier(8)
    answers: list[Any] = []

    def use() -> None:
        start.wait(LIMIT_S)
        answers.append(lane.predict(ROW, None, cast=False)["y"].tolist())

    using = [threading.Thread(target=use) for _ in range(8)]
    for thread in using:
        thread.start()
    for thread in using:
        thread.join(LIMIT_S)
    assert lane.close(LIMIT_S)
    assert answers == [[2]] * 8
    assert len(opened) == 1


def test_what_cannot_be_opened_leaves_nothing_and_may_be_tried_again() -> None:
    refusals = [FailedPrecondition("not yet")]

    def serve(engine: Engine) -> ServedModel:
        if refusals:
            raise refusals.pop()
        return engine.add_functions("f", {"s": (SIGNATURE, double)}, BatchingOptions())

    before = count_threads(), count_files()
    lane = Lane("lane of a test", serve)
    with pytest.raises(FailedPrecondition, match="not yet"):
        lane.predict(ROW, None, cast=False)
    assert (count_threads(), count_files()) == before
    assert lane.predict(ROW, None, cast=False)["y"].tolist() == [2]
    assert lane.close(LIMIT_S)


def test_it_serves_one_model_that_a_server_can_have_too(lane: Lane) -> None:
    served = lane.served()
    assert served is lane.served()
    assert list(served.lanes) == ["s"]
    assert served.lanes["s"].predict(ROW)["y"].tolist() == [2]
    assert lane.stats()["ok"] == 1


# --- arguments --------------------------------------------------------------------------------------------------------


def test_inputs_are_any_mapping(lane: Lane) -> None:
    assert lane.predict(MappingProxyType(ROW), None, cast=False)["y"].tolist() == [2]


@pytest.mark.parametrize("inputs", [[("x", [1.0])], np.ones([1]), None])
def test_what_is_no_mapping_is_refused(lane: Lane, inputs: Any) -> None:
    with pytest.raises(InvalidArgument, match="must be a mapping from names to arrays"):
        lane.predict(inputs, None, cast=False)
    with pytest.raises(InvalidArgument, match="must be a mapping from names to arrays"):
        lane.submit_native(inputs, None, cast=False)
    with pytest.raises(InvalidArgument, match="must be a mapping from names to arrays"):
        asyncio.run(lane.predict_async(inputs, None, cast=False))


def test_a_deadline_is_a_number_of_seconds(lane: Lane) -> None:
    for seconds in (30, 30.0, np.float32(30)):
        assert lane.predict(ROW, seconds, cast=False)["y"].tolist() == [2]
    for wrong in ("30", [30]):
        with pytest.raises(InvalidArgument, match="it must be seconds or None"):
            lane.predict(ROW, wrong, cast=False)  # type: ignore[arg-type]
    for past in (0, -1.0):
        with pytest.raises(DeadlineExceeded):
            lane.predict(ROW, past, cast=False)


# --- closing ----------------------------------------------------------------------------------------------------------


def test_what_was_accepted_is_answered_before_it_closes() -> None:
    lane = lane_of(double, batch_timeout_micros=AN_HOUR)
    replies = [lane.reply(lane.submit_native(ROW, None, cast=False), lambda outputs: outputs, None) for _ in range(10)]
    assert lane.close(LIMIT_S)
    assert [reply.result(0)["y"].tolist() for reply in replies] == [[2]] * 10


def test_everyone_who_waits_gets_unavailable_where_there_is_no_time() -> None:
    """Threads, tasks, replies and callbacks."""
    held = Held()
    lane = lane_of(held, max_batch_size=1)
    told: list[HeadraceError] = []

    def wait() -> None:
        with pytest.raises(Unavailable) as raised:
            lane.predict(ROW, None, cast=False)
        told.append(raised.value)

    async def wait_in_loop() -> None:
        asking = (lane.predict_async(ROW, None, cast=False) for _ in range(3))
        told.extend(await asyncio.gather(*asking, return_exceptions=True))  # type: ignore[arg-type]

    replies = [lane.reply(lane.submit_native(ROW, None, cast=False), lambda outputs: outputs, None) for _ in range(3)]
    replies[0].add_done_callback(lambda reply: told.append(reply.exception(0)))  # type: ignore[arg-type]
    waiting = [threading.Thread(target=wait) for _ in range(3)]
    waiting.append(threading.Thread(target=lambda: asyncio.run(wait_in_loop())))
    for thread in waiting:
        thread.start()
    assert held.entered.wait(LIMIT_S)
    until_queued = threading.Event()
    while lane.stats()["requests"] < 9:
        until_queued.wait(0.001)
    assert not lane.close(0.0)
    for thread in waiting:
        thread.join(LIMIT_S)
    held.leave.set()
    told += [reply.exception(0) for reply in replies]  # type: ignore[misc]
    assert [type(error) for error in told] == [Unavailable] * 10


def test_a_closed_one_refuses_everything_and_may_be_closed_again(lane: Lane) -> None:
    lane.predict(ROW, None, cast=False)
    for _ in range(2):
        assert lane.close(LIMIT_S)
    for use in (
        lambda: lane.predict(ROW, None, cast=False),
        lambda: lane.submit_native(ROW, None, cast=False),
        lambda: asyncio.run(lane.predict_async(ROW, None, cast=False)),
        lane.served,
        lane.native,
        lane.stats,
    ):
        with pytest.raises(Unavailable, match="the lane of a test is closed"):
            use()


def test_one_that_was_never_used_closes_without_opening() -> None:
    before = count_threads()
    lane = lane_of(double)
    assert lane.close(LIMIT_S)
    assert count_threads() == before
    with pytest.raises(Unavailable):
        lane.predict(ROW, None, cast=False)


def test_several_threads_may_close_it_while_others_use_it() -> None:
    lane = lane_of(double)
    start = threading.Barrier(8)
    ended: list[bool] = []

    def ask_for_ever() -> None:
        while True:
            assert lane.predict(ROW, None, cast=False)["y"].tolist() == [2]

    def use() -> None:
        start.wait(LIMIT_S)
        with pytest.raises(Unavailable):
            ask_for_ever()

    def close() -> None:
        start.wait(LIMIT_S)
        ended.append(lane.close(LIMIT_S))

    all_threads = [threading.Thread(target=target) for target in (use, close) * 4]
    for thread in all_threads:
        thread.start()
    for thread in all_threads:
        thread.join(LIMIT_S)
    assert not any(thread.is_alive() for thread in all_threads)
    assert ended == [True] * 4


def test_a_run_that_closes_its_own_lane_does_not_wait_for_itself() -> None:
    def close(inputs: Mapping[str, Any]) -> list[Any]:
        ended.append(lane.close(LIMIT_S))
        closed.set()
        return double(inputs)

    ended: list[bool] = []
    closed = threading.Event()
    lane = lane_of(close)
    with pytest.raises(Unavailable):
        lane.predict(ROW, None, cast=False)
    assert closed.wait(LIMIT_S / 2)
    assert ended == [False]


def test_a_run_that_would_wait_for_itself_is_refused() -> None:
    def recurse(inputs: Mapping[str, Any]) -> list[Any]:
        return list(lane.predict(inputs, None, cast=False).values())

    lane = lane_of(recurse)
    with pytest.raises(FailedPrecondition, match="would wait for itself"):
        lane.predict(ROW, None, cast=False)
    assert lane.close(LIMIT_S)


def test_one_that_is_dropped_ends_its_threads() -> None:
    before = count_threads(), count_files()
    lane = lane_of(double)
    assert lane.predict(ROW, None, cast=False)["y"].tolist() == [2]
    gone = weakref.ref(lane)
    del lane
    gc.collect()
    assert gone() is None
    assert (count_threads(), count_files()) == before


def test_one_that_is_dropped_by_its_own_run_ends_its_threads() -> None:
    before = count_threads()
    others = set(threading.enumerate())  # with executors that other tests have left
    held: list[Lane] = []
    ended = threading.Event()

    def drop(inputs: Mapping[str, Any]) -> list[Any]:
        held.clear()
        ended.set()
        return double(inputs)

    held.append(lane_of(drop))
    reply = held[0].submit_native(ROW, None, cast=False)
    assert ended.wait(LIMIT_S)
    assert reply.wait(LIMIT_S)
    with pytest.raises(_core.StatusError):
        reply.outputs()
    del reply
    for thread in set(threading.enumerate()) - others:
        thread.join(LIMIT_S)
    assert count_threads() == before


def test_a_thousand_of_them_leave_nothing_behind() -> None:
    def open_and_close(times: int) -> None:
        for turn in range(times):
            lane = lane_of(double)
            reply = lane.reply(lane.submit_native(ROW, None, cast=False), lambda outputs: outputs, None)
            if turn % 10 == 0:
                reply.add_done_callback(lambda _: None)
            if turn % 3 == 0:
                assert reply.result(LIMIT_S)["y"].tolist() == [2]
            assert lane.close(LIMIT_S)
            assert reply.done()

    open_and_close(100)
    gc.collect()
    before = threading.active_count(), count_threads(), count_files()
    bytes_before = resident_bytes()
    open_and_close(1000)
    gc.collect()
    assert (threading.active_count(), count_threads(), count_files()) == before
    assert resident_bytes() - bytes_before < 4 << 20


# --- processes --------------------------------------------------------------------------------------------------------


def test_one_that_was_not_used_before_a_fork_works_in_the_child() -> None:
    ended = run("""
def child():
    print(f(row).tolist(), f.close(), flush=True)

assert in_child(child) == 0
print(f(row).tolist(), f.close())
""")
    assert ended.stdout == "[2.0] True\n[2.0] True\n", ended.stderr


def test_one_that_was_used_before_a_fork_is_refused_in_the_child_and_the_parent_goes_on() -> None:
    ended = run("""
entered, leave = threading.Event(), threading.Event()

@headrace.batched
def held(x):
    entered.set()
    assert leave.wait(30)
    return x * 2

pending = held.submit(row)
assert entered.wait(30)

def child():
    told(lambda: held(row))
    told(lambda: held.submit(row))
    told(lambda: asyncio.run(held.predict_async(row)))
    told(held.stats)
    told(pending.result)
    told(pending.exception)
    told(pending.cancel)
    told(lambda: pending.add_done_callback(print))
    told(held.close)

assert in_child(child) == 0
leave.set()
print(pending.result(30).tolist(), held(row).tolist(), held.close())
""")
    said = ended.stdout.splitlines()
    assert said[:8] == ["FailedPrecondition"] * 8, ended.stdout + ended.stderr
    assert said[8:] == ["True", "[2.0] [2.0] True"], ended.stdout + ended.stderr


def test_the_child_of_a_process_that_uses_one_ends_well() -> None:
    """What it has of the parent's is dropped, or there at its end."""
    ended = run("""
f(row)
child = os.fork()
if child == 0:
    del f
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
child = os.fork()
if child == 0:
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
print(f(row).tolist())
""")
    assert (ended.stdout, ended.stderr) == ("[2.0]\n", "")


def test_the_children_of_a_busy_process_end_well() -> None:
    """Wherever its other threads were at the fork: between native code and Python, too."""
    ended = run("""
def load():
    try:
        while True:
            f(row)
    except headrace.HeadraceError:
        pass  # the process ends

f(row)
for _ in range(3):
    threading.Thread(target=load, daemon=True).start()
for _ in range(20):
    child = os.fork()
    if child == 0:
        sys.exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
print("well")
""")
    assert (ended.returncode, ended.stdout) == (0, "well\n"), ended.stderr


def test_the_end_of_the_process_refuses_what_would_need_threads() -> None:
    """Handlers of atexit that were registered before Headrace's run after it."""
    ended = subprocess.run(
        [
            sys.executable,
            "-c",
            """
import atexit

def late():
    for use in (lambda: used([1.0]), lambda: unused([1.0]), lambda: asyncio.run(unused.predict_async([1.0]))):
        try:
            use()
        except headrace.HeadraceError as error:
            print(type(error).__name__, flush=True)
    print(reply.result(), used.close(), unused.close())

atexit.register(late)
import asyncio
import headrace

used, unused = (headrace.batched(lambda x: x) for _ in range(2))
reply = used.submit([1.0])
reply.result()
""",
        ],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert ended.stdout.split("\n")[:3] == ["Unavailable", "FailedPrecondition", "FailedPrecondition"], ended.stderr
    assert ended.stdout.split("\n")[3] == "[1.] True True", ended.stderr
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_child_may_make_its_own_beside_the_parents() -> None:
    ended = run("""
asyncio.run(f.predict_async(row))
def child():
    g = headrace.batched(lambda x: x * 3)
    print(asyncio.run(g.predict_async(row)).tolist(), flush=True)

assert in_child(child) == 0
print(asyncio.run(f.predict_async(row)).tolist())
""")
    assert (ended.stdout, ended.stderr) == ("[3.0]\n[2.0]\n", "")
