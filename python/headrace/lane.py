# SPDX-License-Identifier: Apache-2.0
"""Lane: a queue of this process with executors of its own, from its first use to close()."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from headrace import _core
from headrace.engine import LEAVE_S, Engine, ServedModel
from headrace.errors import FailedPrecondition, InvalidArgument, Unavailable
from headrace.executors import PythonExecutors
from headrace.reply import Callbacks, Outputs, Reply, check_timeout, headrace_error, outputs_of, wait_in_loop

# How late a signal may be heard that comes just before a wait begins: Python looks for it only between steps.
SIGNAL_S = 0.05


class Lane:
    """One lane of an engine of its own.  Threads start at the first use, so that it may be made before a fork.

    `serve` serves a model with one signature in an engine.  Neither it nor what it serves may refer to the owner of the
    lane: whoever drops the owner without close() has the lane closed then.

    Thread safety: everything from any thread.
    """

    def __init__(self, what: str, serve: Callable[[Engine], ServedModel]) -> None:
        self._what = what  # "batcher": for messages
        self._serve = serve
        # A signal handler may use or close the lane while its own thread opens or closes it.
        self._lock = threading.RLock()
        self._native: _core.Lane | None = None  # written under _lock
        self._served: ServedModel | None = None  # guarded by _lock
        self._engine: Engine | None = None  # guarded by _lock
        self._executors: PythonExecutors | None = None  # written under _lock; None: native ones
        self._closed = False  # guarded by _lock
        self._callbacks = Callbacks()
        self._dropped: weakref.finalize[[Engine, Callbacks], Lane] | None = None

    def served(self) -> ServedModel:
        """The model of the lane, which this opens.  Raises Unavailable once it is closed."""
        with self._lock:
            if self._closed:
                raise Unavailable(f"the {self._what} is closed")
            if self._served is None:
                engine = Engine()
                try:
                    served = self._serve(engine)
                except BaseException:
                    engine.close(0.0)
                    raise
                if self._was_closed_or_opened():  # by a signal handler, meanwhile
                    engine.close(0.0)
                    return self.served()
                self._engine = engine
                self._dropped = weakref.finalize(self, _close_dropped, engine, self._callbacks)
                self._dropped.atexit = False  # the engine sees to the end of the process
                self._executors = served.executors
                [self._native] = served.lanes.values()
                self._served = served
                return served
            return self._served

    def native(self) -> _core.Lane:
        """The core's lane, which this opens.  Raises Unavailable once it is closed."""
        lane = self._native
        if lane is None:
            [lane] = self.served().lanes.values()
        return lane

    def predict(self, inputs: Mapping[str, Any], timeout: float | None, *, cast: bool) -> Outputs:
        """Waits for the outputs.  Raises HeadraceError."""
        inputs = _checked(inputs, timeout)
        lane = self.native()
        self._check_may_wait()
        try:
            return lane.predict(inputs, timeout, bool(cast))
        except _core.StatusError as error:
            raise headrace_error(error) from error.cause

    async def predict_async(self, inputs: Mapping[str, Any], timeout: float | None, *, cast: bool) -> Outputs:
        """The same in an event loop."""
        lane = self.native()
        self._check_may_wait()
        native = _submit(lane, inputs, timeout, cast=cast, announce=False)
        await wait_in_loop(native, lane)
        return outputs_of(native)

    def submit_native(self, inputs: Mapping[str, Any], timeout: float | None, *, cast: bool) -> _core.Reply:
        """Queues a request.  Raises HeadraceError if it is refused."""
        return _submit(self.native(), inputs, timeout, cast=cast, announce=True)

    def reply(self, native: _core.Reply, convert: Callable[[Outputs], Any], owner: object) -> Reply[Any]:
        """The public reply; it keeps `owner`."""
        return Reply(native, convert, self._callbacks, self._check_may_wait, owner)

    def stats(self) -> dict[str, Any]:
        """Counters since the first use.  Raises Unavailable once it is closed."""
        try:
            return self.native().stats()
        except _core.StatusError as error:  # in a forked child
            raise headrace_error(error) from None

    def close(self, timeout: float) -> bool:
        """Refuses new requests, answers what was accepted within `timeout` seconds and the rest with UNAVAILABLE.

        False if something had to be left behind.  May be called again, which returns at once, and by callbacks and runs
        of its own; such a run and what waits behind it get UNAVAILABLE.
        """
        if timeout is None:
            raise InvalidArgument("timeout is None; it must be seconds")
        check_timeout(timeout)
        with self._lock:
            self._closed = True
            self._native = None
            self._served = None
            engine, self._engine = self._engine, None
            if self._dropped is not None:
                self._dropped.detach()
        if engine is None:
            return True
        if self._is_own_run():
            timeout = 0.0  # the run that calls it would wait for itself
        if threading.current_thread() is not threading.main_thread():
            return self._end(engine, timeout)
        # On a thread of its own, so that Ctrl-C is heard meanwhile and cuts nothing short.
        ended: list[bool] = []
        ending = threading.Thread(
            target=lambda: ended.append(self._end(engine, timeout)), name="headrace-close", daemon=True
        )
        ending.start()
        while ending.is_alive():
            ending.join(SIGNAL_S)
        return ended == [True]

    def _end(self, engine: Engine, timeout: float) -> bool:
        until = time.monotonic() + timeout
        ended = engine.close(timeout)
        return self._callbacks.close(max(LEAVE_S, until - time.monotonic())) and ended

    def _was_closed_or_opened(self) -> bool:
        return self._closed or self._served is not None

    def _is_own_run(self) -> bool:
        return self._executors is not None and self._executors.is_current()

    def _check_may_wait(self) -> None:
        """Raises FailedPrecondition where an executor would wait for itself."""
        if self._is_own_run():
            raise FailedPrecondition(f"the {self._what} would wait for itself: its own executor calls it")


def _close_dropped(engine: Engine, callbacks: Callbacks) -> None:
    engine.close(0.0)
    callbacks.close(0.0)


def _submit(
    lane: _core.Lane, inputs: Mapping[str, Any], timeout: float | None, *, cast: bool, announce: bool
) -> _core.Reply:
    inputs = _checked(inputs, timeout)
    try:
        return lane.submit(inputs, timeout, bool(cast), announce)
    except _core.StatusError as error:
        raise headrace_error(error) from error.cause


def _checked(inputs: object, timeout: object) -> dict[str, Any]:
    """The inputs as the core takes them.  Raises InvalidArgument."""
    check_timeout(timeout)
    if isinstance(inputs, dict):
        return inputs
    if not isinstance(inputs, Mapping):
        raise InvalidArgument(
            f"inputs are of type {type(inputs).__name__}; they must be a mapping from names to arrays"
        )
    return dict(inputs)
