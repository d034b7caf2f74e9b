# SPDX-License-Identifier: Apache-2.0
"""Batcher: one signature of a model, called from any thread or task, run in batches."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from headrace import _core
from headrace.config import BatchingOptions
from headrace.errors import Cancelled, FailedPrecondition, HeadraceError, InvalidArgument, NotFound
from headrace.lane import Lane
from headrace.model import LoadedModel, LoadedSignature
from headrace.reply import Outputs, Reply, check_timeout, headrace_error

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.engine import Engine, ServedModel

DEFAULT_SIGNATURE = "serving_default"


class Batcher:
    """Runs requests from any thread or task in batches, on executors of its own.

    `model` is a LoadedModel, whose serving_default is meant, or one of its signatures:
    `Batcher(model.signatures["f"])`.  Several Batchers may share a model.  Executors start at the first use.

    An input is an array whose first dimension counts rows, all inputs of a request the same: [rows, ...].  An array has
    the signature's dtype; `cast=True` allows other numbers whose conversion loses nothing but precision.  Lists and
    numbers take that dtype.  Strings are bytes, or str as UTF-8, in lists or arrays; they come back as object arrays
    of bytes.  Outputs are contiguous, writable arrays of the caller's own.

    Thread safety: everything from any thread, and from tasks of any number of event loops.  After a fork the child
    may use one that the parent had not used before, of a model that the child has loaded; others raise
    FailedPrecondition there.

    Errors are HeadraceErrors: InvalidArgument (also a ValueError) for wrong inputs, DeadlineExceeded (also a
    TimeoutError), Unavailable where the queue is full or the Batcher closed, and the model's own.

    Raises NotFound if the model has no serving_default.
    """

    def __init__(self, model: LoadedModel | LoadedSignature, options: BatchingOptions | None = None) -> None:
        if isinstance(model, LoadedModel):
            if DEFAULT_SIGNATURE not in model.signatures:
                names = ", ".join(f'"{name}"' for name in model.signatures)
                raise NotFound(f'model {model.name} has no "{DEFAULT_SIGNATURE}"; give one of its signatures: {names}')
            model = model.signatures[DEFAULT_SIGNATURE]
        elif not isinstance(model, LoadedSignature):
            raise InvalidArgument(
                f"model is of type {type(model).__name__}; it must be a LoadedModel or one of its signatures"
            )
        if options is None:
            options = BatchingOptions()
        elif not isinstance(options, BatchingOptions):
            raise InvalidArgument(f"options are of type {type(options).__name__}; they must be BatchingOptions")
        self._signature = model.signature
        self._lane = Lane("batcher", _serving(model.model, options))

    @property
    def signature(self) -> _core.Signature:
        """Names, dtypes and shapes of the inputs and outputs."""
        return self._signature

    def predict(
        self, inputs: Mapping[str, ArrayLike], *, timeout: float | None = None, cast: bool = False
    ) -> dict[str, NDArray[Any]]:
        """The outputs by name.  Waits for them; `timeout`, in seconds, is the request's deadline.

        The inputs are lent, not copied, and may change once this returns or raises.  If an executor is idle, the
        calling thread may run the batch in its place, where runs of that size are short.  Ctrl-C interrupts the wait
        within 100 ms, or after that run, and cancels the request.
        """
        return self._lane.predict(inputs, timeout, cast=cast)

    async def predict_async(
        self, inputs: Mapping[str, ArrayLike], *, timeout: float | None = None, cast: bool = False
    ) -> dict[str, NDArray[Any]]:
        """The same in an event loop, which wakes up once for all its replies of a batch.

        The inputs are copied.  Cancelling the task cancels the request.
        """
        return await self._lane.predict_async(inputs, timeout, cast=cast)

    def submit(
        self, inputs: Mapping[str, ArrayLike], *, timeout: float | None = None, cast: bool = False
    ) -> Reply[dict[str, NDArray[Any]]]:
        """Queues a request, whose inputs are copied, and returns the promise of its outputs.

        Raises InvalidArgument or Unavailable if it is refused.
        """
        return self._lane.reply(self._lane.submit_native(inputs, timeout, cast=cast), _same, self)

    def reserve(
        self,
        rows: int,
        *,
        shapes: Mapping[str, Sequence[int]] | None = None,
        dtypes: Mapping[str, DTypeLike] | None = None,
        timeout: float | None = None,
    ) -> Slot:
        """A buffer for a request of `rows` rows, to be filled in a `with` block, which submits it at its end.

            with batcher.reserve(rows=1) as slot:
                decode_into(slot["x"])
            y = slot.result()

        `shapes` are those of one row, without the batch dimension; they and `dtypes` are needed where the signature
        leaves them open.  `timeout`, in seconds from the end of the block, is the deadline.  What the buffer holds at
        first is undefined.  Raises InvalidArgument, also for inputs of strings.
        """
        check_timeout(timeout)
        try:
            count = _whole(rows)
        except TypeError:
            raise InvalidArgument(f"rows is {rows!r}; it must be a whole number") from None
        try:
            native = self._lane.native().reserve(count, _row_shapes(shapes), _numpy_dtypes(dtypes))
        except _core.StatusError as error:
            raise headrace_error(error) from None
        return Slot(native, timeout, lambda reply: self._lane.reply(reply, _same, self))

    def stats(self) -> dict[str, Any]:
        """Counters since the first use: requests by how they ended, batches by reason and by rows, and times."""
        return self._lane.stats()

    def close(self, timeout: float = 30.0) -> bool:
        """Refuses new requests, answers those accepted within `timeout` seconds and the rest with Unavailable.

        False if a run had not returned by then and was left behind.  May be called again.
        """
        return self._lane.close(timeout)

    def __enter__(self) -> Batcher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Slot:
    """The rows of a request that is being written.  `slot["x"]` is the array of input "x": [rows, ...], 64-byte aligned.

    It is submitted at the end of its `with` block, unless an exception ends that; from then on its arrays are read
    only, and it has the methods of a Reply.  If its rows are the whole batch they run where they are, else they are
    copied once.
    """

    def __init__(
        self,
        native: _core.Slot,
        timeout: float | None,
        reply_of: Callable[[_core.Reply], Reply[Outputs]],
    ) -> None:
        self._native = native
        self._arrays = native.arrays
        self._timeout = timeout
        self._reply_of = reply_of
        self._reply: Reply[Outputs] | None = None
        self._given_up = False

    def __getitem__(self, name: str) -> NDArray[Any]:
        try:
            return self._arrays[name]
        except KeyError:
            raise NotFound(f'there is no input "{name}"; the slot has {", ".join(self._arrays)}') from None

    def __enter__(self) -> Slot:
        if self._given_up or self._reply is not None:
            raise FailedPrecondition("the slot's block has ended; reserve another")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._given_up = True
            return
        try:
            self._reply = self._reply_of(self._native.submit(self._timeout))
        except _core.StatusError as refusal:
            raise headrace_error(refusal) from None

    def result(self, timeout: float | None = None) -> dict[str, NDArray[Any]]:
        """As Reply.result(), once the block has ended."""
        return self._submitted().result(timeout)

    def exception(self, timeout: float | None = None) -> HeadraceError | None:
        """As Reply.exception(), once the block has ended."""
        return self._submitted().exception(timeout)

    def done(self) -> bool:
        """Whether it was submitted and is answered, or given up."""
        return self._given_up or (self._reply is not None and self._reply.done())

    def cancel(self) -> bool:
        """As Reply.cancel(), once the block has ended."""
        return self._submitted().cancel()

    def add_done_callback(self, function: Callable[[Reply[dict[str, NDArray[Any]]]], object]) -> None:
        """As Reply.add_done_callback(), once the block has ended."""
        self._submitted().add_done_callback(function)

    def _submitted(self) -> Reply[Outputs]:
        if self._given_up:
            raise Cancelled("an exception ended the slot's block: nothing was submitted")
        if self._reply is None:
            raise FailedPrecondition("the slot is submitted at the end of its `with` block")
        return self._reply


def _serving(model: LoadedModel, options: BatchingOptions) -> Callable[[Engine], ServedModel]:
    return lambda engine: engine.add(model, options)


def _same(outputs: Outputs) -> Outputs:
    return outputs


def _row_shapes(shapes: Mapping[str, Sequence[int]] | None) -> dict[str, list[int]] | None:
    if shapes is None:
        return None
    try:
        return {name: [_whole(dimension) for dimension in shape] for name, shape in shapes.items()}
    except (AttributeError, TypeError):
        raise InvalidArgument(f"shapes is {shapes!r:.100}; it must map names to lists of whole numbers") from None


def _numpy_dtypes(dtypes: Mapping[str, DTypeLike] | None) -> dict[str, np.dtype[Any]] | None:
    if dtypes is None:
        return None
    try:
        return {name: np.dtype(dtype) for name, dtype in dtypes.items()}
    except (AttributeError, TypeError):
        raise InvalidArgument(f"dtypes is {dtypes!r:.100}; it must map names to NumPy's dtypes") from None


def _whole(number: object) -> int:
    """A whole number that the core can hold; what is larger is too large whatever it is.  Raises TypeError."""
    return max(-1, min(operator.index(number), 1 << 62))  # type: ignore[arg-type]  # that is what it checks
