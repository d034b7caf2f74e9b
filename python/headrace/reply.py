# SPDX-License-Identifier: Apache-2.0
"""Reply: the promise of an answer, and who is told when it is there: threads, event loops, callbacks.

No native thread takes the GIL.  Answers are announced through a file descriptor, once for a whole batch, to an event
loop or to a thread of the Batcher's own.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import select
import threading
import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from numpy.typing import NDArray

from headrace import _core
from headrace.errors import HeadraceError, InvalidArgument, from_status

logger = logging.getLogger("headrace")

R = TypeVar("R")

Outputs = dict[str, NDArray[Any]]


def headrace_error(error: _core.StatusError) -> HeadraceError:
    """The public error of a native one.  Raise it `from error.cause`: what a callable raised, or nothing."""
    return from_status(error.code, error.message)


def outputs_of(native: _core.Reply) -> Outputs:
    """The outputs of an answered reply.  Raises HeadraceError if it failed."""
    try:
        return native.outputs()
    except _core.StatusError as error:
        raise headrace_error(error) from error.cause


def check_timeout(timeout: object) -> None:
    """Raises InvalidArgument unless it is a number of seconds, or None."""
    if timeout is None:
        return
    try:
        math.isnan(timeout)  # type: ignore[arg-type]  # whatever is or converts to a float
    except (TypeError, ValueError, OverflowError):
        raise InvalidArgument(f"timeout is {timeout!r:.50}; it must be seconds or None") from None


class Reply(Generic[R]):
    """The promise of one answer, with the methods of concurrent.futures.Future.

    Thread safety: everything from any thread.
    """

    def __init__(
        self,
        native: _core.Reply,
        convert: Callable[[Outputs], R],
        callbacks: Callbacks,
        check_may_wait: Callable[[], None],
        owner: object,
    ) -> None:
        self._native = native
        self._convert = convert
        self._callbacks = callbacks
        self._check_may_wait = check_may_wait  # raises FailedPrecondition
        self._owner = owner  # who drops the Batcher still gets the answer
        self._lock = threading.Lock()
        self._waiting: list[Callable[[Reply[R]], object]] | None = None  # guarded by _lock; None: nobody watches yet

    def result(self, timeout: float | None = None) -> R:
        """Waits for the answer, for at most `timeout` seconds.

        Raises HeadraceError if the request failed, and TimeoutError if there is no answer yet: the request goes on, and
        may be asked for again.  The arrays are the caller's own: contiguous and writable.  A second call gives the
        same memory.
        """
        self._wait(timeout)
        return self._convert(outputs_of(self._native))

    def exception(self, timeout: float | None = None) -> HeadraceError | None:
        """Waits as result() does; why the request failed, or None.  Raises TimeoutError."""
        self._wait(timeout)
        try:
            self._native.outputs()
        except _core.StatusError as error:
            failed = headrace_error(error)
            failed.__cause__ = error.cause
            return failed
        return None

    def done(self) -> bool:
        """Whether it is answered, cancelled or failed."""
        return self._native.done()

    def cancel(self) -> bool:
        """Whether this call ended the request: result() raises Cancelled then.  False once it was answered.

        One that waits is taken out of the queue.  One that runs cannot be interrupted; its result is dropped.
        """
        try:
            return self._native.cancel()
        except _core.StatusError as error:
            raise headrace_error(error) from None

    def add_done_callback(self, function: Callable[[Reply[R]], object]) -> None:
        """Calls `function(reply)` once it is answered: now, if it is, else on a thread of the Batcher's own.

        What `function` raises is logged.
        """
        if not callable(function):
            raise InvalidArgument(f"a callback is called; got {function!r}")
        with self._lock:
            watched = self._waiting is not None
            # Nobody is there to watch any more where it was answered meanwhile.
            if not self._is_answered(0.0) and (watched or self._callbacks.watch(self._native, self._call_waiting)):
                self._waiting = [*(self._waiting or []), function]  # before _call_waiting() can have the lock
                return
        _call(function, self)

    def _wait(self, timeout: float | None) -> None:
        check_timeout(timeout)
        if not self._is_answered(0.0):
            self._check_may_wait()
        if not self._is_answered(timeout):
            raise TimeoutError(f"no answer within {timeout} s; the request goes on")

    def _is_answered(self, timeout: float | None) -> bool:
        try:
            return self._native.wait(timeout)
        except _core.StatusError as error:  # in a forked child
            raise headrace_error(error) from None

    def _call_waiting(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting or [], []
        for function in waiting:
            _call(function, self)


def _call(function: Callable[[Reply[R]], object], reply: Reply[R]) -> None:
    try:
        function(reply)
    except KeyboardInterrupt:  # of whoever called, not of the callback
        raise
    except BaseException:  # SystemExit would end the thread, and with it the callbacks of others
        logger.exception("a callback of a reply raised:")


class Callbacks:
    """The thread that runs callbacks; it starts with the first that has to wait, and ends with close().

    Thread safety: everything from any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queue: _core.ReplyQueue | None = None  # guarded by _lock
        self._thread: threading.Thread | None = None  # guarded by _lock
        self._closed = False  # guarded by _lock

    def watch(self, native: _core.Reply, call: Callable[[], None]) -> bool:
        """Has `call` called once the reply is answered; False if the thread has ended, when all replies are."""
        with self._lock:
            if self._closed:
                return False
            if self._queue is None:
                queue = _core.ReplyQueue()
                thread = threading.Thread(target=_run_callbacks, args=(queue,), name="headrace-callbacks", daemon=True)
                thread.start()
                self._queue, self._thread = queue, thread
            self._queue.watch(native, call)
            return True

    def close(self, timeout_s: float) -> bool:
        """Has the thread run what is left and end; whether it has ended within `timeout_s` seconds.

        Call it when every reply is answered.
        """
        with self._lock:
            self._closed = True
            thread = self._thread
            if self._queue is not None:
                self._queue.put(None)
        if thread is None or thread is threading.current_thread():
            return True
        thread.join(timeout_s)
        return not thread.is_alive()


def _run_callbacks(queue: _core.ReplyQueue) -> None:
    readable = select.poll()
    readable.register(queue.fileno(), select.POLLIN)
    while True:
        readable.poll()
        for call in queue.take():
            if call is None:
                return
            call()
        call = None  # it keeps its reply, and that the Batcher, whose end is this thread's


class LoopReplies:
    """What the tasks of one event loop queue, and hear of their replies.

    Executors are woken once for all that is queued in one turn of the loop, or when a batch is full, and the loop once
    for all replies of a batch.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._queue = _core.ReplyQueue()
        self._to_announce: set[_core.Lane] = set()
        loop.add_reader(self._queue.fileno(), self._deliver)

    def watch(self, native: _core.Reply, lane: _core.Lane, answered: asyncio.Future[None]) -> None:
        """Announces the request with those of this turn; sets the result of `answered` when it is answered."""
        self._queue.watch(native, answered)
        if not self._to_announce:
            answered.get_loop().call_soon(self._announce)
        self._to_announce.add(lane)

    def _announce(self) -> None:
        lanes, self._to_announce = self._to_announce, set()
        for lane in lanes:
            lane.announce()

    def _deliver(self) -> None:
        for answered in self._queue.take():
            if not answered.done():  # the task may have been cancelled
                answered.set_result(None)


# Only the loop's reader keeps its LoopReplies, whose futures keep the loop: a loop that is closed lets go of all.
_loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, weakref.ref[LoopReplies]] = weakref.WeakKeyDictionary()
_loops_lock = threading.Lock()


def _forget_loops() -> None:
    """In a forked child: the lock may be held by a thread that stayed with the parent."""
    global _loops_lock  # noqa: PLW0603
    _loops_lock = threading.Lock()
    _loops.clear()


os.register_at_fork(after_in_child=_forget_loops)


async def wait_in_loop(native: _core.Reply, lane: _core.Lane) -> None:
    """Waits in the running loop for a request that `lane` has not announced.  Cancelling the task cancels it."""
    try:
        await _watch(asyncio.get_running_loop(), native, lane)
    except _core.StatusError as error:  # no file descriptor is left
        native.cancel()
        raise headrace_error(error) from None
    except BaseException:  # CancelledError, or GeneratorExit where the loop has gone
        native.cancel()
        raise


def _watch(loop: asyncio.AbstractEventLoop, native: _core.Reply, lane: _core.Lane) -> asyncio.Future[None]:
    with _loops_lock:
        known = _loops.get(loop)
        replies = known() if known is not None else None
        if replies is None:
            replies = LoopReplies(loop)
            _loops[loop] = weakref.ref(replies)
    answered: asyncio.Future[None] = loop.create_future()
    replies.watch(native, lane, answered)
    return answered
