# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import logging
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from headrace import _core
from headrace.config import BatchingOptions
from headrace.engine import Engine
from headrace.errors import Code, FailedPrecondition, HeadraceError, ResourceExhausted, Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from headrace.executors import Function

LIMIT_S = 30.0
FLOAT = 1
Arrays = "Mapping[str, NDArray[Any]]"


def rows_signature(*outputs: str) -> _core.Signature:
    """Rows of two floats in, rows of two floats out."""
    specs = [_core.TensorSpec(name, FLOAT, [-1, 2]) for name in outputs or ("y",)]
    return _core.Signature("serving_default", [_core.TensorSpec("x", FLOAT, [-1, 2])], specs)


@contextmanager
def serving(function: Function, *outputs: str, **options: Any) -> Iterator[_core.Lane]:
    """The lane of a function."""
    engine = Engine()
    model = engine.add_functions(
        "f", {"serving_default": (rows_signature(*outputs), function)}, BatchingOptions(**options)
    )
    try:
        yield model.lanes["serving_default"]
    finally:
        assert engine.close(LIMIT_S)


def rows(*values: float) -> dict[str, NDArray[Any]]:
    return {"x": np.repeat(np.array(values, np.float32)[:, None], 2, axis=1)}


def status(reply: _core.Reply) -> tuple[int, str]:
    assert reply.wait(LIMIT_S)
    with pytest.raises(_core.StatusError) as raised:
        reply.outputs()
    return raised.value.code, raised.value.message


def test_a_function_answers_each_request_from_its_own_rows() -> None:
    batch_rows = []

    def double(inputs: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
        batch_rows.append(len(inputs["x"]))
        return [inputs["x"] * 2]

    with serving(double, max_batch_size=16) as lane:
        replies = [lane.submit(rows(*range(i, i + 1 + i % 4))) for i in range(200)]
        for i, reply in enumerate(replies):
            assert reply.wait(LIMIT_S)
            np.testing.assert_array_equal(reply.outputs()["y"], 2 * rows(*range(i, i + 1 + i % 4))["x"])
    assert max(batch_rows) <= 16
    assert sum(batch_rows) == sum(1 + i % 4 for i in range(200))


def test_a_function_sees_the_slab_itself() -> None:
    seen = []
    size = 2

    def look(inputs: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
        x = inputs["x"]
        seen.append((x.ctypes.data, x.flags.owndata))
        return [x.copy()]

    with serving(look, max_batch_size=size, batch_timeout_micros=3_600_000_000) as lane:
        for _ in range(20):
            for reply in [lane.submit(rows(1)) for _ in range(size)]:
                assert reply.wait(LIMIT_S)
    assert not any(owned for _, owned in seen)
    assert all(address % 64 == 0 for address, _ in seen)
    # The slab comes back from one batch to the next: no array was made for any of them.
    assert len({address for address, _ in seen}) <= 2


def test_a_function_may_keep_its_argument() -> None:
    kept = []

    def keep(inputs: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
        kept.append(inputs["x"])
        return [inputs["x"]]

    with serving(keep) as lane:
        for i in range(20):
            reply = lane.submit(rows(i))
            assert reply.wait(LIMIT_S)
            np.testing.assert_array_equal(reply.outputs()["y"], rows(i)["x"])
    for i, x in enumerate(kept):
        np.testing.assert_array_equal(x, rows(i)["x"])


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (ValueError("no good"), Code.UNKNOWN, "ValueError: no good"),
        (SystemExit(3), Code.UNKNOWN, "SystemExit: 3"),
        (Unavailable("later"), Code.UNAVAILABLE, "later"),
        (FailedPrecondition("not so"), Code.FAILED_PRECONDITION, "not so"),
    ],
)
def test_an_exception_fails_its_batch_and_no_other(error: BaseException, code: Code, message: str) -> None:
    def fail_on_negative(inputs: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
        if inputs["x"].min() < 0:
            raise error
        return [inputs["x"]]

    with serving(fail_on_negative, enable_batching=False) as lane:
        for _ in range(3):
            assert status(lane.submit(rows(-1))) == (code, message)
            reply = lane.submit(rows(1))
            assert reply.wait(LIMIT_S)
            assert reply.outputs()["y"].tolist() == [[1.0, 1.0]]


class Mute(Exception):
    """Has no words for itself."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (Mute(), Code.UNKNOWN, "Mute"),
        (ValueError("no \udc80 UTF-8"), Code.UNKNOWN, "ValueError: no \\udc80 UTF-8"),
        (HeadraceError(Code.OK, "well"), Code.UNKNOWN, "well"),
        (HeadraceError(Code.ABORTED, "\udc80"), Code.ABORTED, "\\udc80"),
    ],
)
def test_an_exception_that_cannot_tell_what_it_is_stops_no_executor(error: Exception, code: Code, message: str) -> None:
    def fail_on_negative(inputs: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
        if inputs["x"].min() < 0:
            raise error
        return [inputs["x"]]

    with serving(fail_on_negative, enable_batching=False, num_batch_threads=1) as lane:
        assert status(lane.submit(rows(-1))) == (code, message)
        reply = lane.submit(rows(1))
        assert reply.wait(LIMIT_S)
        assert reply.outputs()["y"].tolist() == [[1.0, 1.0]]


def test_a_log_that_raises_costs_no_executor() -> None:
    def fail(_inputs: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
        raise ValueError("no good")

    def refuse(_record: logging.LogRecord) -> bool:
        raise RuntimeError("no log")

    log = logging.getLogger("headrace")
    log.addFilter(refuse)
    try:
        with serving(fail) as lane:
            for _ in range(2):
                assert status(lane.submit(rows(1))) == (Code.UNKNOWN, "ValueError: no good")
    finally:
        log.removeFilter(refuse)


def test_an_exception_that_lies_about_its_class_costs_no_executor() -> None:
    class Liar(Exception):
        @property
        def __class__(self) -> Any:
            raise RuntimeError("no class")

        @__class__.setter
        def __class__(self, _value: Any) -> None: ...

    def fail(_inputs: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
        raise Liar

    with serving(fail) as lane:
        for _ in range(2):
            code, message = status(lane.submit(rows(1)))
            assert code == Code.UNKNOWN
            assert message.startswith("Liar")


def test_the_first_exception_is_logged_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    def fail(_inputs: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
        raise ValueError("no good")

    with serving(fail) as lane:
        for _ in range(3):
            status(lane.submit(rows(1)))
    [record] = caplog.records
    assert record.getMessage() == "f/serving_default raised:"
    assert record.exc_info is not None


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ([np.zeros([3, 2], np.float32)], 'f/serving_default returned 3 rows for output "y"; its inputs have 2 rows'),
        ([np.float32(0)], 'f/serving_default returned a scalar for output "y"; its inputs have 2 rows'),
        ([], "f/serving_default returned 0 outputs; it has 1"),
        ([np.zeros([2, 2], np.float32)] * 2, "f/serving_default returned 2 outputs; it has 1"),
    ],
)
def test_a_wrong_number_of_rows_or_outputs_is_an_error_that_names_both(answer: Any, message: str) -> None:
    with serving(lambda _inputs: answer) as lane:
        assert status(lane.submit(rows(1, 2))) == (Code.INVALID_ARGUMENT, message)


def test_a_wrong_dtype_is_an_error() -> None:
    with serving(lambda inputs: [inputs["x"].astype(np.int64)]) as lane:
        code, message = status(lane.submit(rows(1)))
    assert code != Code.OK
    assert "y" in message


def test_outputs_are_given_back_in_the_order_of_the_signature() -> None:
    with serving(lambda inputs: [inputs["x"], inputs["x"] + 1], "same", "next") as lane:
        reply = lane.submit(rows(1))
        assert reply.wait(LIMIT_S)
        answer = {name: value.tolist() for name, value in reply.outputs().items()}
    assert answer == {"same": [[1, 1]], "next": [[2, 2]]}


@pytest.mark.parametrize("threads", [1, 3])
def test_a_function_runs_as_many_times_at_once_as_there_are_threads(threads: int) -> None:
    inside = threading.Barrier(threads)
    running = threading.Semaphore(threads)

    def meet(inputs: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
        assert running.acquire(blocking=False)
        inside.wait(LIMIT_S)
        running.release()
        return [inputs["x"]]

    with serving(meet, enable_batching=False, num_batch_threads=threads) as lane:
        replies = [lane.submit(rows(i)) for i in range(threads * 5)]
        for i, reply in enumerate(replies):
            assert reply.wait(LIMIT_S)
            assert reply.outputs()["y"].tolist() == [[i, i]]


def test_threads_that_cannot_start_leave_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[threading.Thread] = []
    start = threading.Thread.start

    def start_two(thread: threading.Thread) -> None:
        if len(started) == 2:
            raise RuntimeError("can't start new thread")
        start(thread)
        started.append(thread)

    engine = Engine()
    monkeypatch.setattr(threading.Thread, "start", start_two)
    with pytest.raises(ResourceExhausted, match="3 executor threads were wanted; lower num_batch_threads"):
        engine.add_functions(
            "f",
            {"serving_default": (rows_signature(), lambda inputs: [inputs["x"]])},
            BatchingOptions(num_batch_threads=3),
        )
    for thread in started:
        thread.join(LIMIT_S)
        assert not thread.is_alive()
    assert engine.close(LIMIT_S)
