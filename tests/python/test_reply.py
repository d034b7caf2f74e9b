# SPDX-License-Identifier: Apache-2.0
"""Replies: what a caller holds, and who is told of the answer: threads, callbacks and event loops."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from headrace.batched_function import Batched, batched
from headrace.errors import Cancelled, Code, DeadlineExceeded, HeadraceError, Unavailable, Unknown
from headrace.reply import LoopReplies, Reply
from tests.process import count_files, count_threads

if TYPE_CHECKING:
    from numpy.typing import NDArray

LIMIT_S = 30.0
AN_HOUR = 3_600_000_000  # microseconds
ROW = np.array([[1.0, 2.0]], np.float32)

Rows = Batched[[Any], Any]


class Held:
    """Doubles its rows; runs wait until they are let go.  `rows` are those that ran."""

    def __init__(self) -> None:
        self.entered, self.leave = threading.Event(), threading.Event()
        self.rows: list[Any] = []

    def __call__(self, x: NDArray[Any]) -> NDArray[Any]:
        self.entered.set()
        assert self.leave.wait(LIMIT_S)
        self.rows += x.tolist()
        return x * 2


@contextmanager
def open_batched(function: Callable[..., Any], **options: Any) -> Iterator[Rows]:
    made: Rows = batched(**options)(function)
    try:
        yield made
    finally:
        made.close(LIMIT_S)


@pytest.fixture(name="held")
def held_function() -> Iterator[Held]:
    held = Held()
    yield held
    held.leave.set()


@pytest.fixture(name="rows")
def batched_held(held: Held) -> Iterator[Rows]:
    with open_batched(held, max_batch_size=8) as rows:
        yield rows
        held.leave.set()


@pytest.fixture(name="double")
def batched_double() -> Iterator[Rows]:
    with open_batched(lambda x: x * 2) as double:
        yield double


def running(rows: Rows, held: Held) -> Reply[Any]:
    """A reply whose request runs."""
    reply = rows.submit(ROW)
    assert held.entered.wait(LIMIT_S)
    return reply


# --- results ----------------------------------------------------------------------------------------------------------


def test_the_result_is_an_array_of_the_callers_own(double: Rows) -> None:
    y = double.submit(ROW).result()
    assert y.tolist() == [[2, 4]]
    assert y.flags.c_contiguous
    assert y.flags.writeable


def test_a_second_call_gives_the_same_memory(double: Rows) -> None:
    reply = double.submit(ROW)
    reply.result()[:] = 7
    assert reply.result().tolist() == [[7, 7]]


def test_result_gives_up_waiting_and_leaves_the_request_running(rows: Rows, held: Held) -> None:
    reply = running(rows, held)
    for timeout in (0, 0.01):
        with pytest.raises(TimeoutError, match="the request goes on") as raised:
            reply.result(timeout=timeout)
        assert not isinstance(raised.value, HeadraceError)
    with pytest.raises(TimeoutError):
        reply.exception(0)
    assert not reply.done()
    held.leave.set()
    assert reply.result(LIMIT_S).tolist() == [[2, 4]]
    assert reply.done()


def test_several_threads_wait_for_one_reply(rows: Rows, held: Held) -> None:
    reply = running(rows, held)
    answers: list[Any] = []
    waiting = [threading.Thread(target=lambda: answers.append(reply.result(LIMIT_S).tolist())) for _ in range(4)]
    for thread in waiting:
        thread.start()
    held.leave.set()
    for thread in waiting:
        thread.join(LIMIT_S)
    assert answers == [[[2, 4]]] * 4


def test_what_the_function_raised_is_the_cause_of_the_exception() -> None:
    error = ValueError("no such word")

    def fail(_: Any) -> Any:
        raise error

    with open_batched(fail) as failing:
        reply = failing.submit(ROW)
        with pytest.raises(Unknown) as raised:
            reply.result(LIMIT_S)
        told = reply.exception(LIMIT_S)
        assert isinstance(told, Unknown)
        for each in (raised.value, told):
            assert (each.code, each.message) == (Code.UNKNOWN, "ValueError: no such word")
            assert each.__cause__ is error


def test_a_reply_that_went_well_has_no_exception(double: Rows) -> None:
    assert double.submit(ROW).exception(LIMIT_S) is None


def test_a_reply_outlives_who_made_it() -> None:
    """Dropping the last other reference to a queue does not close it while replies are pending."""
    made = batched(lambda x: x * 2)
    gone = weakref.ref(made)
    reply = made.submit(ROW)
    del made
    gc.collect()
    assert gone() is not None
    assert reply.result(LIMIT_S).tolist() == [[2, 4]]
    del reply
    gc.collect()
    assert gone() is None


# --- cancel -----------------------------------------------------------------------------------------------------------


def test_a_request_that_waits_is_taken_out_of_the_queue(rows: Rows, held: Held) -> None:
    first = running(rows, held)
    waits = rows.submit(ROW * 5)
    assert waits.cancel()
    assert waits.done()
    assert not waits.cancel()
    with pytest.raises(Cancelled) as raised:
        waits.result(0)
    assert raised.value.code == Code.CANCELLED
    assert isinstance(waits.exception(0), Cancelled)
    held.leave.set()
    assert first.result(LIMIT_S).tolist() == [[2, 4]]
    rows.submit(ROW * 3).result(LIMIT_S)
    assert held.rows == [[1, 2], [3, 6]]
    assert rows.stats()["cancelled"] == 1


def test_the_result_of_one_that_runs_is_dropped(rows: Rows, held: Held) -> None:
    reply = running(rows, held)
    assert reply.cancel()
    assert reply.done()
    held.leave.set()
    with pytest.raises(Cancelled):
        reply.result(LIMIT_S)


def test_an_answered_one_cannot_be_cancelled(double: Rows) -> None:
    reply = double.submit(ROW)
    reply.result(LIMIT_S)
    assert not reply.cancel()
    assert reply.result(0).tolist() == [[2, 4]]


# --- callbacks --------------------------------------------------------------------------------------------------------


def test_a_callback_runs_once_on_a_thread_of_the_batchers_own(rows: Rows, held: Held) -> None:
    reply = running(rows, held)
    called: list[tuple[Any, str]] = []
    told = threading.Event()

    def note(of: Reply[Any]) -> None:
        called.append((of, threading.current_thread().name))
        told.set()

    reply.add_done_callback(note)
    assert called == []
    held.leave.set()
    assert told.wait(LIMIT_S)
    rows.close(LIMIT_S)
    assert called == [(reply, "headrace-callbacks")]


def test_a_callback_of_an_answered_reply_runs_at_once(double: Rows) -> None:
    reply = double.submit(ROW)
    reply.result(LIMIT_S)
    called: list[tuple[Any, int]] = []
    reply.add_done_callback(lambda of: called.append((of, threading.get_ident())))
    assert called == [(reply, threading.get_ident())]


def test_callbacks_run_in_the_order_in_which_they_were_added(rows: Rows, held: Held) -> None:
    reply = running(rows, held)
    order: list[int] = []
    for number in range(5):
        reply.add_done_callback(lambda _, number=number: order.append(number))  # type: ignore[misc]
    held.leave.set()
    rows.close(LIMIT_S)
    assert order == [0, 1, 2, 3, 4]


def test_callbacks_are_called_once_each_whenever_they_come(double: Rows) -> None:
    """Added by several threads while the answers arrive."""
    calls: list[int] = []
    each = 200

    def add(number: int) -> None:
        for turn in range(each):
            replies[turn].add_done_callback(lambda _: calls.append(number))

    replies = [double.submit(ROW) for _ in range(each)]
    adding = [threading.Thread(target=add, args=(number,)) for number in range(4)]
    for thread in adding:
        thread.start()
    for thread in adding:
        thread.join(LIMIT_S)
    double.close(LIMIT_S)
    assert sorted(calls) == [number for number in range(4) for _ in range(each)]


def test_callbacks_of_failed_and_of_cancelled_replies_run_too(rows: Rows, held: Held) -> None:
    first = running(rows, held)
    waits = rows.submit(ROW)
    called: list[Any] = []
    told = threading.Event()
    for reply in (first, waits):
        reply.add_done_callback(called.append)
        reply.add_done_callback(lambda _: told.set())
    assert waits.cancel()
    assert told.wait(LIMIT_S)
    assert called == [waits]
    assert not rows.close(0.0)
    assert called == [waits, first]
    assert isinstance(first.exception(0), Unavailable)


@pytest.mark.parametrize("error", [ValueError("in a callback"), SystemExit(3)])
@pytest.mark.parametrize("answered", [False, True])
def test_what_a_callback_raises_is_logged_and_stops_no_other(
    rows: Rows, held: Held, caplog: pytest.LogCaptureFixture, error: BaseException, answered: bool
) -> None:
    def fail(_: Reply[Any]) -> None:
        raise error

    reply, other = running(rows, held), rows.submit(ROW)
    called: list[Any] = []
    if answered:
        held.leave.set()
        reply.result(LIMIT_S)
    for each in (reply, other):
        each.add_done_callback(fail)
        each.add_done_callback(called.append)
    held.leave.set()
    rows.close(LIMIT_S)
    assert called == [reply, other]
    logged = [record for record in caplog.records if record.name == "headrace"]
    assert [record.exc_info[1] for record in logged if record.exc_info] == [error, error]


def test_a_callback_may_use_the_batcher_and_close_it(rows: Rows, held: Held) -> None:
    reply = running(rows, held)
    answers: list[Any] = []
    ended = threading.Event()

    def go_on(of: Reply[Any]) -> None:
        answers.append(rows(of.result(0)).tolist())
        last = rows.submit(ROW)
        answers.append(rows.close(LIMIT_S))
        last.add_done_callback(lambda of: answers.append(of.result(0).tolist()))
        ended.set()

    reply.add_done_callback(go_on)
    held.leave.set()
    assert ended.wait(LIMIT_S)
    assert answers == [[[4, 8]], True, [[2, 4]]]


def test_close_returns_after_the_last_callback(rows: Rows, held: Held) -> None:
    called: list[Any] = []
    replies = [running(rows, held), *(rows.submit(ROW) for _ in range(20))]
    for reply in replies:
        reply.add_done_callback(called.append)
    held.leave.set()
    assert rows.close(LIMIT_S)
    assert sorted(map(id, called)) == sorted(map(id, replies))
    assert "headrace-callbacks" not in {thread.name for thread in threading.enumerate()}


def test_a_callback_that_does_not_return_is_left_behind(rows: Rows, held: Held) -> None:
    entered, leave = threading.Event(), threading.Event()

    def stay(_: Reply[Any]) -> None:
        entered.set()
        leave.wait(LIMIT_S)

    running(rows, held).add_done_callback(stay)
    held.leave.set()
    assert entered.wait(LIMIT_S)
    assert not rows.close(0.1)
    leave.set()


def test_the_thread_of_callbacks_keeps_nobody(held: Held) -> None:
    before, others = count_threads(), set(threading.enumerate())
    made: Rows = batched(held)
    gone = weakref.ref(made)
    told = threading.Event()
    reply = running(made, held)
    reply.add_done_callback(lambda _: told.set())
    del made, reply
    assert gone() is not None
    held.leave.set()
    assert told.wait(LIMIT_S)
    for thread in set(threading.enumerate()) - others:
        thread.join(LIMIT_S)
    assert gone() is None
    assert count_threads() == before


def test_no_thread_is_made_for_callbacks_that_need_none(double: Rows) -> None:
    reply = double.submit(ROW)
    reply.result(LIMIT_S)
    reply.add_done_callback(lambda _: None)
    assert "headrace-callbacks" not in {thread.name for thread in threading.enumerate()}


# --- event loops ------------------------------------------------------------------------------------------------------


@pytest.fixture(name="deliveries")
def counted_deliveries(monkeypatch: pytest.MonkeyPatch) -> list[LoopReplies]:
    """One entry for each time that a loop woke up for replies."""
    deliveries: list[LoopReplies] = []
    deliver = LoopReplies._deliver

    def count(replies: LoopReplies) -> None:
        deliveries.append(replies)
        deliver(replies)

    monkeypatch.setattr(LoopReplies, "_deliver", count)
    return deliveries


def test_a_loop_wakes_up_once_for_a_batch(deliveries: list[LoopReplies]) -> None:
    batches = 5

    async def ask() -> list[Any]:
        answers = []
        for turn in range(batches):
            answers += await asyncio.gather(*(double.predict_async(ROW * turn) for _ in range(16)))
        return answers

    with open_batched(lambda x: x * 2, max_batch_size=16, batch_timeout_micros=AN_HOUR) as double:
        answers = asyncio.run(ask())
        assert double.stats()["batches_by_rows"] == {16: batches}
    assert [each.tolist() for each in answers] == [[[2 * turn, 4 * turn]] for turn in range(batches) for _ in range(16)]
    assert len(deliveries) == batches


def test_one_loop_is_woken_once_for_batches_of_several_queues_that_it_waits_for(
    deliveries: list[LoopReplies], double: Rows
) -> None:
    async def ask(*queues: Rows) -> None:
        await asyncio.gather(*(queue.predict_async(ROW) for queue in queues))

    with open_batched(lambda x: x + 1) as other:
        asyncio.run(ask(double, other))
    assert len({id(replies) for replies in deliveries}) == 1
    assert len(deliveries) <= 2


def test_several_loops_wait_for_one_batch(deliveries: list[LoopReplies]) -> None:
    answers: list[Any] = []

    async def ask(number: int) -> None:
        answers.extend(await asyncio.gather(*(double.predict_async(ROW * number) for _ in range(4))))

    with open_batched(lambda x: x * 2, max_batch_size=12, batch_timeout_micros=AN_HOUR) as double:
        loops = [threading.Thread(target=lambda n=n: asyncio.run(ask(n))) for n in range(3)]
        for loop in loops:
            loop.start()
        for loop in loops:
            loop.join(LIMIT_S)
        assert double.stats()["batches"] == 1
    assert sorted(each.tolist() for each in answers) == [[[2 * n, 4 * n]] for n in range(3) for _ in range(4)]
    assert len({id(replies) for replies in deliveries}) == 3


def test_cancelling_a_task_cancels_its_request(rows: Rows, held: Held) -> None:
    async def ask() -> None:
        first = asyncio.create_task(rows.predict_async(ROW))
        assert await asyncio.to_thread(held.entered.wait, LIMIT_S)
        waits = asyncio.create_task(rows.predict_async(ROW * 5))
        await asyncio.sleep(0)
        waits.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waits
        assert rows.stats()["cancelled"] == 1
        held.leave.set()
        assert (await first).tolist() == [[2, 4]]

    asyncio.run(ask())
    assert rows.stats()["cancelled"] == 1
    assert held.rows == [[1, 2]]


def test_a_limit_of_asyncio_cancels_the_request(rows: Rows) -> None:
    async def ask() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(rows.predict_async(ROW), 0.01)

    asyncio.run(ask())
    assert rows.stats()["cancelled"] == 1


def test_a_coroutine_that_is_given_up_cancels_the_request(rows: Rows) -> None:
    """As a task is whose loop has gone: it ends with GeneratorExit, not with CancelledError."""

    async def ask() -> None:
        waits = rows.predict_async(ROW)
        waits.send(None)
        assert rows.stats()["cancelled"] == 0
        waits.close()

    asyncio.run(ask())
    assert rows.stats()["cancelled"] == 1


def test_a_task_that_is_cancelled_when_the_answer_is_there_cancels_nothing(double: Rows) -> None:
    async def ask() -> None:
        task = asyncio.create_task(double.predict_async(ROW))
        await asyncio.sleep(0)
        double(ROW)  # blocks the loop; the task's own answer came before
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    asyncio.run(ask())
    assert double.stats()["cancelled"] == 0
    assert double(ROW).tolist() == [[2, 4]]


def test_the_deadline_of_a_task_is_an_error_of_its_own(rows: Rows) -> None:
    lane = rows._lane

    async def ask() -> None:
        with pytest.raises(DeadlineExceeded) as raised:
            await lane.predict_async({"x": ROW}, 0.01, cast=False)
        assert isinstance(raised.value, TimeoutError)

    asyncio.run(ask())


def test_an_exception_reaches_the_task_with_its_cause() -> None:
    error = ValueError("no such word")

    def fail(_: Any) -> Any:
        raise error

    async def ask(failing: Rows) -> None:
        with pytest.raises(Unknown) as raised:
            await failing.predict_async(ROW)
        assert raised.value.__cause__ is error

    with open_batched(fail) as failing:
        asyncio.run(ask(failing))


def test_run_after_run_leaves_nothing_behind(double: Rows) -> None:
    async def ask() -> Any:
        loops.add(asyncio.get_running_loop())
        abandoned = asyncio.create_task(double.predict_async(ROW))  # cancelled as the loop ends
        answer = await double.predict_async(ROW)
        del abandoned
        return answer

    loops: weakref.WeakSet[asyncio.AbstractEventLoop] = weakref.WeakSet()
    asyncio.run(ask())
    before = count_files()
    for _ in range(50):
        assert asyncio.run(ask()).tolist() == [[2, 4]]
    gc.collect()
    assert len(loops) == 0
    assert count_files() <= before


def test_a_loop_that_was_closed_too_early_is_let_go_of(rows: Rows, held: Held) -> None:
    """With replies that nobody waits for any more."""

    def ask() -> tuple[weakref.ref[asyncio.AbstractEventLoop], weakref.ref[asyncio.Task[Any]]]:
        loop = asyncio.new_event_loop()
        task = loop.create_task(rows.predict_async(ROW))
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
        return weakref.ref(loop), weakref.ref(task)

    rows.stats()  # opens it
    before = count_files()
    gone = ask()
    gc.collect()
    assert [each() for each in gone] == [None, None]
    held.leave.set()
    assert rows(ROW).tolist() == [[2, 4]]
    assert count_files() <= before


def test_the_loop_of_a_stopped_run_is_not_awaited(rows: Rows, held: Held) -> None:
    """An answer may come for a loop that stands still; it is delivered when the loop goes on."""
    loop = asyncio.new_event_loop()
    try:
        task = loop.create_task(rows.predict_async(ROW))
        loop.run_until_complete(asyncio.sleep(0))
        held.leave.set()
        assert rows(ROW).tolist() == [[2, 4]]
        assert not task.done()
        assert loop.run_until_complete(task).tolist() == [[2, 4]]
    finally:
        loop.close()


def test_the_end_of_the_process_does_not_wait_for_tasks_or_callbacks() -> None:
    program = """
import asyncio, os, sys, threading
import numpy as np
import headrace

entered = threading.Event()

@headrace.batched
def never(x):
    entered.set()
    threading.Event().wait()

row = np.ones([1, 2], np.float32)
reply = never.submit(row)
reply.add_done_callback(lambda of: os.write(1, type(of.exception(0)).__name__.encode()))
assert entered.wait(30)
loop = asyncio.new_event_loop()
task = loop.create_task(never.predict_async(row))
task._log_destroy_pending = False
loop.run_until_complete(asyncio.sleep(0))
threading.Thread(target=lambda: never(row), daemon=True).start()
sys.exit(5)
"""
    ended = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "ignore", "-c", program],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert ended.returncode == 5, ended.stderr
    assert ended.stdout in ("", "Unavailable")
    assert "Fatal" not in ended.stderr
