# SPDX-License-Identifier: Apache-2.0
"""Engine: the models that are loaded, with everything native that serves them, and the one way to shut all of it down."""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from headrace import _core
from headrace.config import BatchingOptions
from headrace.errors import FailedPrecondition, from_status
from headrace.executors import Function, PythonExecutors
from headrace.model import LoadedModel

# How long Python executors may take to leave: after close(), where they have nothing left to run, and at the end of the
# process, where they may.
LEAVE_S = 1.0
EXIT_JOIN_S = 5.0

# Bytes of one value, by tensorflow.DataType's number; strings have no fixed size.
VALUE_BYTES = {
    1: 4, 2: 8, 3: 4, 4: 1, 5: 2, 6: 1, 8: 8, 9: 8, 10: 1, 14: 2, 17: 2, 18: 16, 19: 2, 22: 4, 23: 8
}  # fmt: skip


@dataclass(frozen=True)
class ServedModel:
    """A model version that is being served.  `lines` tell in words how, for the log."""

    native: _core.Model
    lanes: Mapping[str, _core.Lane]
    executors: PythonExecutors | None  # None: native ones
    lines: tuple[str, ...] = ()


class Engine:
    """Serves models until close().

    Thread safety: add() and close() from any thread, one at a time.  In a forked child every call is an error, except
    close(), which does nothing there: the threads have stayed with the parent.
    """

    def __init__(self) -> None:
        if _ending.is_set():
            raise FailedPrecondition("the process is ending")  # its threads could not run any more
        self._process = os.getpid()
        self._timer = _core.Timer()
        self._router = _core.Router()
        self._models: list[ServedModel] = []
        self._closed = False
        _open_engines.add(self)

    @property
    def router(self) -> _core.Router:
        """What finds the lane of a request."""
        self._check_usable()
        return self._router

    def lanes(self) -> Iterator[tuple[str, _core.Lane]]:
        """Every lane with its name, "digits/serving_default"."""
        for model in self._models:
            for name, lane in model.lanes.items():
                yield f"{model.native.name}/{name}", lane

    def add(self, loaded: LoadedModel, options: BatchingOptions, *, executor: str = "native") -> ServedModel:
        """Serves a loaded model, by native executors or Python ones."""
        self._check_usable()
        loaded.check_process()
        native = _core.Model(loaded.name, loaded.version, self._timer)
        lanes = {}
        lines = []
        for name, found in loaded.signatures.items():
            runner = found.runner if executor == "native" else None
            lane, told = _add_lane(native, found.signature, options, found.batched, runner, loaded.pinner)
            lanes[name] = lane
            lines += told
        threads = options.batch_threads(gpu=loaded.gpu)
        executors = None
        if executor == "native":
            try:
                native.start(threads)
            except _core.StatusError as error:
                raise from_status(error.code, error.message) from None
        else:
            functions = {name: loaded.python_callable(name) for name in lanes}
            executors = PythonExecutors(native, functions, threads)
            executors.start()
        return self._serve(ServedModel(native, lanes, executors, tuple(lines)))

    def add_functions(
        self,
        name: str,
        functions: Mapping[str, tuple[_core.Signature, Function]],
        options: BatchingOptions,
    ) -> ServedModel:
        """Serves Python functions over batches as the signatures of a model of version 1."""
        self._check_usable()
        native = _core.Model(name, 1, self._timer)
        lanes = {}
        lines = []
        for key, (signature, _) in functions.items():
            lanes[key], told = _add_lane(native, signature, options, batched=True)
            lines += told
        executors = PythonExecutors(
            native, {key: function for key, (_, function) in functions.items()}, options.num_batch_threads or 1
        )
        executors.start()
        return self._serve(ServedModel(native, lanes, executors, tuple(lines)))

    def close(self, drain_s: float) -> bool:
        """Refuses new requests, answers those that wait within `drain_s` seconds, the rest with UNAVAILABLE, and stops.

        False if something that ran had not returned by then and was left behind.
        """
        if self._closed or os.getpid() != self._process:
            return True
        return self._stop(drain_s, join_s=LEAVE_S)

    def _stop(self, drain_s: float, *, join_s: float) -> bool:
        self._closed = True
        _open_engines.discard(self)
        drain_until = time.monotonic() + drain_s
        ended = [model.native.close(max(0.0, drain_until - time.monotonic())) for model in self._models]
        join_until = time.monotonic() + join_s
        executors = [model.executors for model in self._models if model.executors is not None]
        ended += [each.join(max(0.0, join_until - time.monotonic())) for each in executors]
        self._timer.close()
        return all(ended)

    def _serve(self, model: ServedModel) -> ServedModel:
        self._models.append(model)
        self._router.add(model.native)
        return model

    def _check_usable(self) -> None:
        if os.getpid() != self._process:
            raise FailedPrecondition(
                f"this engine belongs to process {self._process}, and its threads stayed there when process"
                f" {os.getpid()} was forked: make one after the fork"
            )
        if self._closed:
            raise FailedPrecondition("the engine is closed")


def _add_lane(
    native: _core.Model,
    signature: _core.Signature,
    options: BatchingOptions,
    batched: bool,
    runner: _core.Runner | None = None,
    pinner: _core.SlabPinner | None = None,
) -> tuple[_core.Lane, list[str]]:
    """Adds the lane of a signature that may be `batched`; says in words how it is served, for the log."""
    fitted = options.fitted(row_bytes(signature))
    name = f"{native.name}/{signature.name}"
    lines = []
    if not options.enable_batching:
        lines.append(f"{name}: not batched (enable_batching is false)")
    elif batched:
        lines.append(f"{name}: {fitted.wait_text()}")
    if fitted.max_batch_size < options.max_batch_size:
        lines.append(
            f"{name}: max_batch_size lowered from {options.max_batch_size} to {fitted.max_batch_size}, which fill"
            f" {options.slab_bytes_max} bytes"
        )
    lane_options = fitted.lane_options(batched=batched and options.enable_batching)
    return native.add_lane(signature, lane_options, runner, pinner), lines


# What the end of the process must close, and whether it has begun.
_transports: list[Callable[[], object]] = []
_open_engines: set[Engine] = set()
_ending = threading.Event()


def at_exit(stop: Callable[[], object]) -> None:
    """Calls `stop` when the process ends, before the engines are closed."""
    _transports.append(stop)


@atexit.register
def _close_at_exit() -> None:
    """Answers what waits with UNAVAILABLE, and leaves behind what has not returned after a while.

    From then on no thread may come back from native code: an interpreter that is finalizing would abort the process.
    """
    _ending.set()
    for stop in _transports:
        stop()
    join_until = time.monotonic() + EXIT_JOIN_S
    engines = [engine for engine in list(_open_engines) if engine._process == os.getpid()]  # others may still close
    for engine in engines:
        engine._stop(0.0, join_s=max(0.0, join_until - time.monotonic()))
    _core.forbid_gil()


def row_bytes(signature: _core.Signature) -> int:
    """Bytes of one row of the signature's inputs, as far as their shapes and dtypes fix it."""
    total = 0
    for spec in signature.inputs:
        dimensions = (spec.shape or [])[1:]
        value_bytes = VALUE_BYTES.get(spec.dtype, 0)
        if spec.shape and min(dimensions, default=1) >= 0:
            row = value_bytes
            for dimension in dimensions:
                row *= dimension
            total += row
    return total
