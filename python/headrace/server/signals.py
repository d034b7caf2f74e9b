# SPDX-License-Identifier: Apache-2.0
"""Waiting for SIGINT and SIGTERM, or for a thread of our own to be done.

Works as PID 1, where the kernel drops signals that have no handler.
"""

from __future__ import annotations

import contextlib
import select
import signal
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from typing_extensions import Self

T = TypeVar("T")

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopSignals:
    """While it is entered, SIGINT and SIGTERM stop nothing by themselves: wait() tells of them.

    Thread safety: enter it and wait() on the main thread; run() there too.
    """

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)

    def __enter__(self) -> Self:
        # The handler itself does nothing: Python's C handler has written the signal's number to the socket by then.
        self._handlers = {number: signal.signal(number, _ignore) for number in STOP_SIGNALS}
        self._wakeup = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.set_wakeup_fd(self._wakeup)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._reader.close()
        self._writer.close()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Whether a signal came; False after `timeout_s` seconds, or when something started by run() was done."""
        select.select([self._reader], [], [], timeout_s)
        try:
            received = self._reader.recv(4096)
        except BlockingIOError:
            return False
        return any(number in STOP_SIGNALS for number in received)

    def run(self, work: Callable[[], T], name: str) -> Future[T]:
        """Runs `work` on a daemon thread; wait() returns when it is done."""
        outcome: Future[T] = Future()

        def run() -> None:
            try:
                outcome.set_result(work())
            except BaseException as error:  # noqa: BLE001  whoever asks for the result gets it
                outcome.set_exception(error)
            with contextlib.suppress(OSError):  # nobody waits any more
                self._writer.send(b"\0")

        threading.Thread(target=run, name=name, daemon=True).start()
        return outcome


def _ignore(_number: int, _frame: FrameType | None) -> None:
    pass
