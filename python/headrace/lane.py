# SPDX-License-Identifier: Apache-2.0
"""Lane: a queue of this process with executors of its own, from its first use to close()."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping
from numbers import Real
from typing import Any

from headrace import _core
from headrace.engine import Engine, ServedModel
from headrace.errors import InvalidArgument, Unavailable
from headrace.reply import Callbacks, Outputs, Reply, headrace_error, outputs_of, wait_in_loop


class Lane:
    """One lane of an engine of its own.  Threads start at the first use, so that it may be made before a fork.

    `serve` serves a model with one signature in an engine.  Neither it nor what it serves may refer to the owner of the
    lane: whoever drops the owner without close() has the lane closed then.

    Thread safety: everything from any thread.
    """

    def __init__(self, what: str, serve: Callable[[Engine], ServedModel]) -> None:
        self._what = what  # "batcher": for messages
        self._serve = serve
        self._lock = threading.Lock()
        self._native: _core.Lane | None = None  # written under _lock
        self._served: ServedModel | None = None  # guarded by _lock
        self._engine: Engine | None = None  # guarded by _lock
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
                    self._served = self._serve(engine)
                except BaseException:
                    engine.close(0.0)
                    raise
                self._engine = engine
                self._dropped = weakref.finalize(self, _close_dropped, engine, self._callbacks)
                self._dropped.atexit = False  # the engine sees to the end of the process
                [self._native] = self._served.lanes.values()
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
        try:
            return self.native().predict(inputs, timeout, cast)
        except _core.StatusError as error:
            raise headrace_error(error) from error.cause

    async def predict_async(self, inputs: Mapping[str, Any], timeout: float | None, *, cast: bool) -> Outputs:
        """The same in an event loop."""
        native = self.submit_native(inputs, timeout, cast=cast)
        await wait_in_loop(native)
        return outputs_of(native)

    def submit_native(self, inputs: Mapping[str, Any], timeout: float | None, *, cast: bool) -> _core.Reply:
        """Queues a request.  Raises HeadraceError if it is refused."""
        inputs = _checked(inputs, timeout)
        try:
            return self.native().submit(inputs, timeout, cast)
        except _core.StatusError as error:
            raise headrace_error(error) from error.cause

    def reply(self, native: _core.Reply, convert: Callable[[Outputs], Any], owner: object) -> Reply[Any]:
        """The public reply; it keeps `owner`."""
        return Reply(native, convert, self._callbacks, owner)

    def stats(self) -> dict[str, Any]:
        """Counters since the first use.  Raises Unavailable once it is closed."""
        return self.native().stats()

    def close(self, timeout: float) -> bool:
        """Refuses new requests, answers what was accepted within `timeout` seconds and the rest with UNAVAILABLE.

        False if something had to be left behind.  May be called again.
        """
        with self._lock:
            self._closed = True
            self._native = None
            self._served = None
            engine, self._engine = self._engine, None
            if self._dropped is not None:
                self._dropped.detach()
        if engine is None:
            return True
        ended = engine.close(timeout)
        self._callbacks.close()
        return ended


def _close_dropped(engine: Engine, callbacks: Callbacks) -> None:
    engine.close(0.0)
    callbacks.close()


def _checked(inputs: object, timeout: object) -> dict[str, Any]:
    """The inputs as the core takes them.  Raises InvalidArgument."""
    if timeout is not None and not isinstance(timeout, Real):
        raise InvalidArgument(f"timeout is {timeout!r}; it must be seconds or None")
    if isinstance(inputs, dict):
        return inputs
    if not isinstance(inputs, Mapping):
        raise InvalidArgument(
            f"inputs are of type {type(inputs).__name__}; they must be a mapping from names to arrays"
        )
    return dict(inputs)
