# SPDX-License-Identifier: Apache-2.0
"""Python executors: threads that run the batches of one model through Python functions.

No C++ frame lies under a function: a thread takes a batch from the core, runs the function, gives the outputs back.
They are daemon threads, so that a function that never returns keeps no process alive.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from headrace import _core
from headrace.errors import Code, HeadraceError, InvalidArgument, ResourceExhausted

logger = logging.getLogger("headrace")

# Arrays by input name to arrays in the order of the signature's outputs or, where it leaves these open, by name.
Function = Callable[[Mapping[str, NDArray[Any]]], Sequence[NDArray[Any]] | Mapping[str, NDArray[Any]]]


class PythonExecutors:
    """`count` threads that serve `model`'s lanes; `functions` has one function for each signature name."""

    def __init__(self, model: _core.Model, functions: Mapping[str, Function], count: int) -> None:
        self._model = model
        self._functions = functions
        self._complained = False
        self._threads = [
            threading.Thread(target=self._serve, name=f"headrace-exec-{i}", daemon=True) for i in range(count)
        ]

    def start(self) -> None:
        """Raises ResourceExhausted where the system has no more threads; the model is closed then."""
        try:
            for thread in self._threads:
                thread.start()
        except RuntimeError as error:
            self._model.close(0.0)  # which ends those that have started
            raise ResourceExhausted(
                f"{error}: {len(self._threads)} executor threads were wanted; lower num_batch_threads"
            ) from None

    def join(self, timeout_s: float) -> bool:
        """Waits for the threads of a closed model; whether all have ended within `timeout_s` seconds."""
        until = time.monotonic() + timeout_s
        others = [thread for thread in self._threads if thread is not threading.current_thread()]
        for thread in others:
            thread.join(max(0.0, until - time.monotonic()))
        return not any(thread.is_alive() for thread in others)

    def is_current(self) -> bool:
        """Whether the calling thread is one of them."""
        return threading.current_thread() in self._threads

    def _serve(self) -> None:
        while (batch := self._model.next()) is not None:
            self._run(batch)

    def _run(self, batch: _core.Batch) -> None:
        name = batch.lane.signature.name
        try:
            outputs = self._functions[name](batch.inputs)
            if isinstance(outputs, Mapping):
                names, outputs = list(outputs), list(outputs.values())
            else:
                names = None
            self._check_rows(batch, outputs, names)
            batch.finish(outputs, names)
        except BaseException as error:  # noqa: BLE001  whatever a function raises, its requests get an answer
            has_code = issubclass(type(error), (HeadraceError, _core.StatusError))
            batch.fail(*_answer(error), cause=None if has_code else error)
            if not has_code:
                self._complain(name, error)

    def _check_rows(self, batch: _core.Batch, outputs: Sequence[NDArray[Any]], names: Sequence[str] | None) -> None:
        """Raises InvalidArgument if there is another number of outputs, or of rows in one, than there must be."""
        signature = batch.lane.signature
        if names is None:
            what = f"{self._model.name}/{signature.name}"
            names = [spec.name for spec in signature.outputs]
        else:
            what = self._model.name  # a function of that name
        if len(outputs) != len(names):
            raise InvalidArgument(f"{what} returned {len(outputs)} outputs; it has {len(names)}")
        # A model that runs a request alone need not give its outputs a batch dimension.
        with_rows = [value.ndim > 0 for value in batch.inputs.values()]
        if not any(with_rows) or (signature.outputs and not (batch.lane.options.batched and all(with_rows))):
            return
        for output_name, output in zip(names, outputs, strict=True):
            shape = np.shape(output)
            if shape[:1] != (batch.rows,):
                got = f"{shape[0]} rows" if shape else "a scalar"
                raise InvalidArgument(
                    f'{what} returned {got} for output "{output_name}"; its inputs have {batch.rows} rows'
                )

    def _complain(self, name: str, error: BaseException) -> None:
        """Logs the first exception with its traceback, which clients do not see."""
        if self._complained:
            return
        self._complained = True
        with contextlib.suppress(BaseException):  # code of the function's author, too: the exception's, and the log's
            logger.error("%s/%s raised:", self._model.name, name, exc_info=error)


def _answer(error: BaseException) -> tuple[Code, str]:
    """The code and the message that clients get: never OK, always UTF-8, whatever the exception makes of itself."""
    code = Code.UNKNOWN
    try:
        if issubclass(type(error), (HeadraceError, _core.StatusError)):
            coded = cast("HeadraceError | _core.StatusError", error)
            code = Code(coded.code)
            message = str(coded.message)
        else:
            message = f"{type(error).__name__}: {error}"
    except BaseException:  # noqa: BLE001  code of the function's author, too
        message = type(error).__name__
    return (Code.UNKNOWN if code == Code.OK else code), message.encode(errors="backslashreplace").decode()
