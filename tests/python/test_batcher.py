# SPDX-License-Identifier: Apache-2.0
"""Batchers of SavedModels: what goes in, what comes out, who waits, and what is left."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from headrace import model
from headrace.batcher import Batcher, Slot
from headrace.config import BatchingOptions
from headrace.errors import (
    Cancelled,
    Code,
    DeadlineExceeded,
    FailedPrecondition,
    HeadraceError,
    InvalidArgument,
    NotFound,
    Unavailable,
)
from headrace.model import LoadedModel
from headrace.reply import Reply
from headrace.tensor_proto import numpy_dtype
from tests.models import DTYPES
from tests.process import count_files, count_threads, resident_bytes

LIMIT_S = 30.0
AN_HOUR = 3_600_000_000  # microseconds
ROWS = {"x": np.array([1.0, 3.0], np.float32)}

Load = Callable[[str], LoadedModel]


@pytest.fixture(scope="module", name="load")
def cached_load(saved_models: Path) -> Load:
    """load(name): a model of tests/models.py, loaded once."""

    @cache
    def load(name: str) -> LoadedModel:
        return model.load(saved_models / name, warm_up_seconds=0.1)

    return load


@pytest.fixture(name="half")
def batcher_of_half_plus_two(load: Load) -> Iterator[Batcher]:
    with Batcher(load("half_plus_two")) as batcher:
        yield batcher


@pytest.fixture(name="waiting")
def batcher_that_waits_for_a_full_batch(load: Load) -> Iterator[Batcher]:
    """Of eight rows."""
    with Batcher(load("half_plus_two"), BatchingOptions(max_batch_size=8, batch_timeout_micros=AN_HOUR)) as batcher:
        yield batcher


Predict = Callable[..., dict[str, NDArray[Any]]]


@pytest.fixture(name="way", params=["predict", "predict_async", "submit"])
def each_way_to_ask(request: pytest.FixtureRequest) -> Callable[..., dict[str, NDArray[Any]]]:
    """way(batcher, inputs, **options): the same by each method."""

    def ask(batcher: Batcher, inputs: Any, **options: Any) -> dict[str, NDArray[Any]]:
        if request.param == "predict_async":
            return asyncio.run(batcher.predict_async(inputs, **options))
        if request.param == "submit":
            return batcher.submit(inputs, **options).result(LIMIT_S)
        return batcher.predict(inputs, **options)

    return ask


def run(program: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


# --- which signature --------------------------------------------------------------------------------------------------


def test_a_model_means_its_serving_default_and_a_signature_itself(load: Load) -> None:
    several = load("several")
    with Batcher(several) as default, Batcher(several.signatures["gather"]) as gather:
        assert default.signature.name == "serving_default"
        assert [spec.name for spec in gather.signature.inputs] == ["i"]
        answer = default.predict({"x": np.ones([1], np.float32), "n": np.array([2])})
        assert {name: y.tolist() for name, y in answer.items()} == {"sum": [3.0], "n": [3]}
        assert gather.predict({"i": [2, 0]})["y"].tolist() == [30.0, 10.0]


def test_a_model_without_serving_default_names_what_it_has(load: Load) -> None:
    with pytest.raises(NotFound, match=r'model dtypes has no "serving_default".*"float32", "float64"') as raised:
        Batcher(load("dtypes"))
    assert isinstance(raised.value, LookupError)


@pytest.mark.parametrize("wrong", ["models/digits", None, lambda x: x])
def test_what_is_no_model_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidArgument, match="must be a LoadedModel or one of its signatures"):
        Batcher(wrong)


@pytest.mark.parametrize("wrong", [{"max_batch_size": 3}, {}, 3])
def test_what_are_no_options_is_refused(load: Load, wrong: Any) -> None:
    with pytest.raises(InvalidArgument, match="they must be BatchingOptions"):
        Batcher(load("half_plus_two"), wrong)


def test_several_batchers_share_a_model(load: Load) -> None:
    half = load("half_plus_two")
    first, second = Batcher(half), Batcher(half.signatures["serving_default"])
    assert first.predict(ROWS)["y"].tolist() == [2.5, 3.5]
    assert first.close(LIMIT_S)
    assert second.predict(ROWS)["y"].tolist() == [2.5, 3.5]
    assert second.close(LIMIT_S)


def test_a_batcher_keeps_its_model(saved_models: Path) -> None:
    loaded = model.load(saved_models / "half_plus_two", warm_up_seconds=0.0)
    with Batcher(loaded) as batcher:
        del loaded
        gc.collect()
        assert batcher.predict(ROWS)["y"].tolist() == [2.5, 3.5]


# --- arrays -----------------------------------------------------------------------------------------------------------


def test_answers_are_contiguous_writable_arrays_of_the_callers_own(half: Batcher, way: Predict) -> None:
    x = np.array([1.0, 3.0], np.float32)
    y = way(half, {"x": x})["y"]
    assert y.tolist() == [2.5, 3.5]
    assert y.flags.c_contiguous
    assert y.flags.writeable
    assert y.flags.aligned
    y[:] = 0
    assert x.tolist() == [1.0, 3.0]
    assert way(half, {"x": x})["y"].tolist() == [2.5, 3.5]


def test_an_answer_pins_no_batch(load: Load) -> None:
    """Rows that ran together come in memory of their own each: side by side they would be one batch's."""
    rows = 8
    with Batcher(load("dtypes").signatures["uint8"], BatchingOptions(batch_timeout_micros=AN_HOUR)) as batcher:
        replies = [batcher.submit({"x": np.full([1, 3], n, np.uint8)}) for n in range(rows)]
        batcher.close(LIMIT_S)
    answers = [reply.result(0)["y"] for reply in replies]
    assert [y.tolist() for y in answers] == [[[[n] * 3] * 2] for n in range(rows)]
    starts = sorted(y.ctypes.data for y in answers)
    assert all(after - before >= 64 for before, after in pairwise(starts))


@pytest.mark.parametrize("signature", ["serving_default", "reshape", "slice"])
def test_an_output_that_is_its_input_is_a_copy_of_it(load: Load, way: Predict, signature: str) -> None:
    x = np.arange(4, dtype=np.float32).reshape([1, 4])
    with Batcher(load("aliases").signatures[signature]) as batcher:
        way(batcher, {"x": x})["y"][:] = 7
        assert way(batcher, {"x": x})["y"].ravel().tolist() == [0, 1, 2, 3]
    assert np.array_equal(x, [[0, 1, 2, 3]])


def test_an_answer_outlives_its_batcher(load: Load) -> None:
    with Batcher(load("half_plus_two")) as batcher:
        y = batcher.predict(ROWS)["y"]
    del batcher
    gc.collect()
    y += 1
    assert y.tolist() == [3.5, 4.5]


def test_the_first_dimension_counts_rows_and_stays(half: Batcher, way: Predict) -> None:
    for rows in (1, 2, 64):
        assert way(half, {"x": np.zeros([rows], np.float32)})["y"].shape == (rows,)


def test_a_request_larger_than_a_batch_is_refused(half: Batcher, way: Predict) -> None:
    with pytest.raises(InvalidArgument, match="64"):
        way(half, {"x": np.zeros([65], np.float32)})


def test_any_layout_of_memory_is_taken(load: Load, way: Predict) -> None:
    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    reversed_bytes = x[:, :3].astype(">f4")
    with Batcher(load("dtypes").signatures["float32"]) as batcher:
        for view in (x[:, ::2], x[::-1, :3], np.asfortranarray(x[:, :3]), reversed_bytes):
            y = way(batcher, {"x": view})["y"]
            assert y[:, 0].tolist() == view.tolist()


def test_arrays_may_change_once_submit_returned(waiting: Batcher) -> None:
    x = np.ones([1], np.float32)
    reply = waiting.submit({"x": x})
    x[:] = 100
    waiting.close(LIMIT_S)
    assert reply.result(0)["y"].tolist() == [2.5]


def test_arrays_may_change_once_a_task_waits(waiting: Batcher) -> None:
    async def ask() -> list[float]:
        x = np.ones([1], np.float32)
        task = asyncio.create_task(waiting.predict_async({"x": x}))
        await asyncio.sleep(0)  # until it is queued
        x[:] = 100
        others = [waiting.submit({"x": [0.0]}) for _ in range(7)]
        answer: list[float] = (await task)["y"].tolist()
        assert all(other.done() for other in others)
        return answer

    assert asyncio.run(ask()) == [2.5]


@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if dtype != "string"])
def test_every_dtype_comes_back_as_it_went(load: Load, dtype: str) -> None:
    kind = numpy_dtype(load("dtypes").signatures[dtype].signature.inputs[0].dtype)
    x = np.array([[0, 1, 1], [1, 0, 0]]).astype(kind)
    with Batcher(load("dtypes").signatures[dtype]) as batcher:
        y = batcher.predict({"x": x})["y"]
        assert y.dtype == x.dtype
        assert np.array_equal(y, np.stack([x, x], axis=1))
        assert y.flags.writeable


def test_bfloat16_is_that_of_ml_dtypes(load: Load, way: Predict) -> None:
    x = np.array([[1.5, 2.0, 3.0]], ml_dtypes.bfloat16)
    with Batcher(load("dtypes").signatures["bfloat16"]) as batcher:
        assert way(batcher, {"x": x})["y"].dtype == ml_dtypes.bfloat16
        assert way(batcher, {"x": [[1.5, 2.0, 3.0]]})["y"][0, 1].tolist() == [1.5, 2.0, 3.0]
        with pytest.raises(InvalidArgument, match="got float32, the signature wants bfloat16"):
            way(batcher, {"x": x.astype(np.float32)})
        assert way(batcher, {"x": x.astype(np.float32)}, cast=True)["y"].dtype == ml_dtypes.bfloat16


def test_lists_and_numbers_take_the_signatures_dtype(load: Load, way: Predict) -> None:
    with Batcher(load("several")) as batcher:
        answer = way(batcher, {"x": [1, 2.5], "n": [1, 2]})
        assert answer["sum"].dtype == np.float32
        assert answer["n"].dtype == np.int64
        assert answer["sum"].tolist() == [2.0, 4.5]
    with Batcher(load("unbatchable").signatures["scalar"]) as batcher:
        assert way(batcher, {"x": [[1, 2, 3, 4]], "k": 2})["y"].tolist() == [[2, 4, 6, 8]]


def test_an_array_of_another_dtype_is_refused_unless_cast(half: Batcher, way: Predict) -> None:
    for dtype in (np.float64, np.int64, np.float16):
        x = {"x": np.array([1, 3], dtype)}
        with pytest.raises(InvalidArgument, match=f"got {np.dtype(dtype)}, the signature wants float32"):
            way(half, x)
        assert way(half, x, cast=True)["y"].tolist() == [2.5, 3.5]


def test_a_cast_loses_precision_and_nothing_else(load: Load, way: Predict) -> None:
    with Batcher(load("dtypes").signatures["int8"]) as batcher:
        assert way(batcher, {"x": np.array([[1, 2, 127]])}, cast=True)["y"].dtype == np.int8
        with pytest.raises(InvalidArgument, match="out of range for int8"):
            way(batcher, {"x": np.array([[1, 2, 128]])}, cast=True)
        with pytest.raises(InvalidArgument, match="got float32, the signature wants int8"):
            way(batcher, {"x": np.array([[1.5, 2, 3]], np.float32)}, cast=True)


@pytest.mark.parametrize(
    "texts",
    [
        [b"a", "\u00e9"],
        ["a", "\u00e9"],
        np.array(["a", "\u00e9"]),
        np.array([b"a", "\u00e9".encode()]),
        np.array([b"a", "\u00e9"], object),
    ],
    ids=["list of both", "list of str", "U", "S", "object"],
)
def test_strings_are_bytes_or_text_and_come_back_as_bytes(load: Load, way: Predict, texts: Any) -> None:
    with Batcher(load("several").signatures["texts"]) as batcher:
        joined = way(batcher, {"a": texts, "b": ["1", "2"]})["joined"]
    assert joined.dtype == object
    assert joined.tolist() == [b"a-1", "\u00e9-2".encode()]
    assert all(type(text) is bytes for text in joined)


def test_strings_may_have_bytes_that_are_no_text(load: Load) -> None:
    strange = [b"\xff\x00\xfe", b"", b"x" * 100_000]
    with Batcher(load("several").signatures["texts"]) as batcher:
        answer = batcher.predict({"a": np.array(strange, object), "b": [b""] * 3})
    assert answer["joined"].tolist() == [text + b"-" for text in strange]


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, 'input "x" is missing'),
        ({"y": [1.0]}, 'input "x" is missing; the signature has {x}'),
        ({"x": [1.0], "y": [1.0]}, 'there is no input "y"'),
        ({"x": ["a"]}, 'input "x": got <U1, the signature wants float32'),
        ({"x": [None]}, 'input "x"'),
        ({"x": [[1.0], [1.0, 2.0]]}, 'input "x"'),
        ([1.0], "must be a mapping"),
    ],
)
def test_wrong_inputs_are_invalid_arguments_that_name_them(
    half: Batcher, way: Predict, inputs: Any, message: str
) -> None:
    with pytest.raises(InvalidArgument, match=message) as raised:
        way(half, inputs)
    assert isinstance(raised.value, ValueError)
    assert raised.value.code == Code.INVALID_ARGUMENT
    assert raised.value.message == str(raised.value)
    assert raised.value.__cause__ is None


def test_tensorflow_decides_about_other_dimensions(half: Batcher, load: Load, way: Predict) -> None:
    """What it takes is answered, and what it refuses is its error; neither meets requests of the usual shape."""
    assert way(half, {"x": [[1.0, 3.0]]})["y"].tolist() == [[2.5, 3.5]]
    assert way(half, {"x": np.zeros([0], np.float32)})["y"].shape == (0,)
    with Batcher(load("dense")) as batcher, pytest.raises(InvalidArgument):
        way(batcher, {"x": [[1.0, 3.0]]})


def test_inputs_with_different_numbers_of_rows_are_refused(load: Load, way: Predict) -> None:
    with Batcher(load("several")) as batcher, pytest.raises(InvalidArgument, match=r"rows|dimension"):
        way(batcher, {"x": [1.0, 2.0], "n": [1]})


def test_an_error_of_the_model_has_its_code(load: Load, way: Predict) -> None:
    with Batcher(load("several").signatures["gather"]) as batcher:
        with pytest.raises(HeadraceError, match=r"not in \[0, 3\)") as raised:
            way(batcher, {"i": [7]})
        assert raised.value.code == Code.INVALID_ARGUMENT
        assert way(batcher, {"i": [1]})["y"].tolist() == [20.0]


# --- waiting ----------------------------------------------------------------------------------------------------------


def test_the_limit_of_predict_is_a_deadline(waiting: Batcher, way: Predict) -> None:
    with pytest.raises(DeadlineExceeded) as raised:
        way(waiting, ROWS, timeout=0.01)
    assert isinstance(raised.value, TimeoutError)
    assert raised.value.code == Code.DEADLINE_EXCEEDED
    assert waiting.stats()["expired"] == 1


def test_a_deadline_that_is_not_reached_changes_nothing(half: Batcher, way: Predict) -> None:
    assert way(half, ROWS, timeout=LIMIT_S)["y"].tolist() == [2.5, 3.5]


def test_a_queue_that_is_full_is_unavailable(load: Load) -> None:
    options = BatchingOptions(max_batch_size=2, max_enqueued_batches=1, batch_timeout_micros=AN_HOUR)
    with Batcher(load("half_plus_two"), options) as batcher:
        waits = batcher.submit({"x": [1.0]})
        with pytest.raises(Unavailable):
            batcher.submit({"x": [1.0, 2.0]})
        waits.cancel()


def test_threads_and_tasks_of_several_loops_share_batches(waiting: Batcher) -> None:
    answers: dict[int, list[float]] = {}

    def ask(number: int) -> None:
        answers[number] = waiting.predict({"x": [float(number)]})["y"].tolist()

    async def ask_two(number: int) -> None:
        both = await asyncio.gather(*(waiting.predict_async({"x": [float(n)]}) for n in (number, number + 1)))
        answers[number], answers[number + 1] = (each["y"].tolist() for each in both)

    asking = [threading.Thread(target=ask, args=(number,)) for number in range(3)]
    asking += [threading.Thread(target=lambda n=n: asyncio.run(ask_two(n))) for n in (3, 5)]
    for thread in asking:
        thread.start()
    answers[7] = waiting.submit({"x": [7.0]}).result(LIMIT_S)["y"].tolist()
    for thread in asking:
        thread.join(LIMIT_S)
    assert answers == {number: [number / 2 + 2] for number in range(8)}
    assert waiting.stats()["batches_by_rows"] == {8: 1}


def test_many_threads_and_tasks_get_their_own_answers(half: Batcher) -> None:
    wrong: list[Any] = []
    turns = 200

    def check(number: int, answer: dict[str, NDArray[Any]]) -> None:
        if answer["y"].tolist() != [number / 2 + 2]:
            wrong.append((number, answer))

    def ask(first: int) -> None:
        for number in range(first, first + turns):
            check(number, half.predict({"x": [number]}))

    async def ask_in_loop(first: int) -> None:
        async def one(number: int) -> None:
            check(number, await half.predict_async({"x": [number]}))

        await asyncio.gather(*(one(number) for number in range(first, first + turns)))

    asking = [threading.Thread(target=ask, args=(1000 * n,)) for n in range(4)]
    asking += [threading.Thread(target=lambda n=n: asyncio.run(ask_in_loop(1000 * n))) for n in range(4, 6)]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join(LIMIT_S)
    assert wrong == []
    assert half.stats()["ok"] == 6 * turns


def test_a_caller_who_finds_an_idle_executor_runs_the_batch_itself(half: Batcher) -> None:
    """Seen by the CPU time that other threads take meanwhile, of the best of five attempts."""

    def others_s(ask: Callable[[], object]) -> float:
        before = time.process_time() - time.thread_time()
        for _ in range(500):
            ask()
        return time.process_time() - time.thread_time() - before

    for _ in range(50):
        half.predict(ROWS)  # how long a run takes is known then
    calls = min(others_s(lambda: half.predict(ROWS)) for _ in range(5))
    replies = min(others_s(lambda: half.submit(ROWS).result()) for _ in range(5))
    assert calls < replies / 4


def test_ctrl_c_interrupts_a_wait_within_100_ms_and_cancels_the_request(saved_models: Path) -> None:
    program = """
import os, signal, sys, threading, time
import headrace

model = headrace.load(sys.argv[1], warm_up_seconds=0.0)
batcher = headrace.Batcher(model, headrace.BatchingOptions(batch_timeout_micros=3_600_000_000))
batcher.stats()  # opens it
waits = batcher.submit({"x": [1.0]})

def interrupted_after(wait, requests):
    sent = []
    def interrupt():
        while batcher.stats()["requests"] < requests:
            time.sleep(0.001)
        time.sleep(0.02)  # it sleeps by now, or is the slower for it
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        wait()
    except KeyboardInterrupt:
        took = time.monotonic() - sent[0]
    thread.join()
    return took

print(min(interrupted_after(waits.result, 1) for _ in range(5)))
print(min(interrupted_after(lambda: batcher.predict({"x": [1.0]}), 2 + turn) for turn in range(5)))
print(batcher.stats()["cancelled"], waits.cancel())
"""
    ended = run(program, saved_models / "half_plus_two")
    assert ended.returncode == 0, ended.stderr
    result, predict, rest = ended.stdout.splitlines()
    assert float(result) < 0.1
    assert float(predict) < 0.1
    assert rest == "5 True"


# --- reserve ----------------------------------------------------------------------------------------------------------


def test_a_reserved_buffer_is_submitted_at_the_end_of_its_block(half: Batcher) -> None:
    with half.reserve(rows=2) as slot:
        x = slot["x"]
        assert (x.shape, x.dtype.name, x.ctypes.data % 64) == ((2,), "float32", 0)
        assert x.flags.writeable
        assert not slot.done()
        x[:] = [1.0, 3.0]
        assert half.stats()["requests"] == 0
    assert slot.result(LIMIT_S)["y"].tolist() == [2.5, 3.5]
    assert slot.exception(0) is None
    assert slot.done()
    assert not slot.cancel()
    told: list[Reply[Any]] = []
    slot.add_done_callback(told.append)
    assert told[0].result(0)["y"].tolist() == [2.5, 3.5]
    with pytest.raises(ValueError, match="read-only"):
        x[:] = 0


def test_an_exception_in_the_block_cancels_it(half: Batcher) -> None:
    with pytest.raises(KeyError, match="of the block"), half.reserve(rows=1) as slot:
        raise KeyError("of the block")
    assert slot.done()
    for method in (slot.result, slot.exception, slot.cancel, lambda: slot.add_done_callback(print)):
        with pytest.raises(Cancelled, match="nothing was submitted"):
            method()
    assert half.stats()["requests"] == 0


def test_a_slot_is_no_reply_before_its_block_has_ended(half: Batcher) -> None:
    with half.reserve(rows=1) as slot:
        for method in (slot.result, slot.exception, slot.cancel, lambda: slot.add_done_callback(print)):
            with pytest.raises(FailedPrecondition, match="end of its `with` block"):
                method()
        slot["x"][:] = 1.0
    assert slot.result(LIMIT_S)["y"].tolist() == [2.5]


@pytest.mark.parametrize("given_up", [False, True])
def test_a_slot_has_one_block(half: Batcher, given_up: bool) -> None:
    slot = half.reserve(rows=1)
    try:
        with slot:
            slot["x"][:] = 1.0
            if given_up:
                raise KeyError
    except KeyError:
        pass
    with pytest.raises(FailedPrecondition, match="reserve another"), slot:
        pass
    assert half.stats()["requests"] == (0 if given_up else 1)


def test_the_limit_of_reserve_begins_at_the_end_of_the_block(waiting: Batcher) -> None:
    with waiting.reserve(rows=1, timeout=0.01) as slot:
        slot["x"][:] = 1.0
    with pytest.raises(DeadlineExceeded):
        slot.result(LIMIT_S)
    with pytest.raises(InvalidArgument, match="it must be seconds or None"):
        waiting.reserve(rows=1, timeout="soon")  # type: ignore[arg-type]


def test_a_slot_that_waits_may_be_cancelled(waiting: Batcher) -> None:
    with waiting.reserve(rows=1) as slot:
        slot["x"][:] = 1.0
    told = threading.Event()
    slot.add_done_callback(lambda _: told.set())
    with pytest.raises(TimeoutError):
        slot.result(0)
    assert slot.cancel()
    assert told.wait(LIMIT_S)
    assert isinstance(slot.exception(0), Cancelled)


def test_a_slot_that_is_the_whole_batch_runs_where_it_is(waiting: Batcher) -> None:
    with waiting.reserve(rows=8) as slot:
        slot["x"][:] = 1.0
    assert slot.result(LIMIT_S)["y"].tolist() == [2.5] * 8
    assert waiting.stats()["slabs_allocated"] == 0


def test_slots_share_batches_with_others(waiting: Batcher) -> None:
    slots: list[Slot] = []
    for number in range(3):
        with waiting.reserve(rows=2) as slot:
            slot["x"][:] = [number, number + 0.5]
        slots.append(slot)
    other = waiting.submit({"x": [3.0, 3.5]})
    assert [slot.result(LIMIT_S)["y"].tolist() for slot in slots] == [[n / 2 + 2, n / 2 + 2.25] for n in range(3)]
    assert other.result(LIMIT_S)["y"].tolist() == [3.5, 3.75]
    assert waiting.stats()["batches_by_rows"] == {8: 1}


def test_reserve_wants_shapes_where_the_signature_leaves_them_open(load: Load) -> None:
    with Batcher(load("unbatchable").signatures["probe_refused"]) as batcher:
        with pytest.raises(InvalidArgument, match="leaves the shape of a row open"):
            batcher.reserve(rows=1)
        with batcher.reserve(rows=2, shapes={"x": [5]}, dtypes={"x": np.float32}) as slot:
            slot["x"][:] = 1.0
        assert slot.result(LIMIT_S)["y"].tolist() == [[2.0] * 5] * 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rows": 0}, "rows is 0"),
        ({"rows": 65}, "rows is 65; it must be 1 to 64"),
        ({"rows": 1, "shapes": {"z": []}}, 'there is no input "z"'),
        ({"rows": 1, "dtypes": {"x": "int32"}}, "the signature wants float32"),
    ],
)
def test_reserve_refuses_what_does_not_fit(half: Batcher, arguments: Any, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        half.reserve(**arguments)


def test_strings_have_no_buffer(load: Load) -> None:
    with Batcher(load("several").signatures["texts"]) as batcher, pytest.raises(InvalidArgument, match="strings"):
        batcher.reserve(rows=1)


def test_a_slot_names_its_inputs(half: Batcher) -> None:
    slot = half.reserve(rows=1)
    with pytest.raises(NotFound, match='there is no input "z"; the slot has x'):
        slot["z"]


def test_a_slot_that_is_refused_raises_at_the_end_of_its_block(half: Batcher) -> None:
    slot = half.reserve(rows=1)
    half.close(LIMIT_S)
    with pytest.raises(Unavailable), slot:
        slot["x"][:] = 1.0


# --- closing ----------------------------------------------------------------------------------------------------------


def test_the_end_of_the_block_answers_what_was_accepted(load: Load) -> None:
    with Batcher(load("half_plus_two"), BatchingOptions(batch_timeout_micros=AN_HOUR)) as batcher:
        replies = [batcher.submit(ROWS) for _ in range(5)]
    assert [reply.result(0)["y"].tolist() for reply in replies] == [[2.5, 3.5]] * 5


def test_closing_while_others_ask_leaves_nobody_waiting(load: Load) -> None:
    """Whichever way they ask, they get answers until they get Unavailable."""

    def reserve(batcher: Batcher) -> list[float]:
        with batcher.reserve(rows=2) as slot:
            slot["x"][:] = [1.0, 3.0]
        answer: list[float] = slot.result()["y"].tolist()
        return answer

    ways: list[Callable[[Batcher], Any]] = [
        lambda batcher: batcher.predict(ROWS)["y"].tolist(),
        lambda batcher: asyncio.run(batcher.predict_async(ROWS))["y"].tolist(),
        lambda batcher: batcher.submit(ROWS).result()["y"].tolist(),
        reserve,
    ]

    def ask(way: Callable[[Batcher], Any], batcher: Batcher, busy: threading.Semaphore, ended: list[Any]) -> None:
        try:
            while True:
                answer = way(batcher)
                if answer != [2.5, 3.5]:
                    ended.append(answer)
                busy.release()
        except Unavailable as error:
            ended.append(type(error))

    for _ in range(10):
        batcher = Batcher(load("half_plus_two"), BatchingOptions(max_batch_size=8))
        busy, ended = threading.Semaphore(0), list[Any]()
        asking = [threading.Thread(target=ask, args=(way, batcher, busy, ended), daemon=True) for way in ways * 2]
        for thread in asking:
            thread.start()
        for _ in range(20):
            assert busy.acquire(timeout=LIMIT_S)
        assert batcher.close(LIMIT_S)
        for thread in asking:
            thread.join(LIMIT_S)
        assert ended == [Unavailable] * len(asking)


def test_use_after_close_is_unavailable(half: Batcher, way: Predict) -> None:
    half.predict(ROWS)
    assert half.close()
    assert half.close()
    with pytest.raises(Unavailable, match="the batcher is closed") as raised:
        way(half, ROWS)
    assert raised.value.code == Code.UNAVAILABLE
    with pytest.raises(Unavailable, match="the batcher is closed"):
        half.reserve(rows=1)
    with pytest.raises(Unavailable, match="the batcher is closed"):
        half.stats()
    assert half.signature.name == "serving_default"


def test_one_that_is_dropped_ends_its_threads(load: Load) -> None:
    half = load("half_plus_two")
    before = count_threads()
    batcher = Batcher(half)
    reply = batcher.submit(ROWS)
    slot = batcher.reserve(rows=1)
    gone = weakref.ref(batcher)
    del batcher
    assert reply.result(LIMIT_S)["y"].tolist() == [2.5, 3.5]
    del reply
    with slot:
        slot["x"][:] = 1.0
    assert slot.result(LIMIT_S)["y"].tolist() == [2.5]
    del slot
    gc.collect()
    assert gone() is None
    assert count_threads() == before


def test_a_thousand_of_them_leave_nothing_behind(load: Load) -> None:
    half = load("half_plus_two")

    def open_and_close(times: int) -> None:
        for turn in range(times):
            batcher = Batcher(half)
            reply = batcher.submit(ROWS)
            if turn % 3 == 0:
                assert batcher.predict(ROWS)["y"].tolist() == [2.5, 3.5]
            assert batcher.close(LIMIT_S)
            assert reply.done()

    def left() -> tuple[int, int, int]:
        return threading.active_count(), count_threads(), count_files()

    open_and_close(100)
    before, bytes_before = left(), resident_bytes()
    open_and_close(1000)
    assert left() == before
    assert resident_bytes() - bytes_before < 4 << 20


# --- processes --------------------------------------------------------------------------------------------------------


def test_a_model_of_the_parent_is_refused_in_a_forked_child(saved_models: Path) -> None:
    program = """
import asyncio, os, sys
import headrace

model = headrace.load(sys.argv[1], warm_up_seconds=0.0)
used, unused = headrace.Batcher(model), headrace.Batcher(model)
row = {"x": [1.0]}
used.predict(row)
child = os.fork()
if child == 0:
    for batcher in (used, unused, headrace.Batcher(model)):
        for use in (
            lambda: batcher.predict(row),
            lambda: batcher.submit(row),
            lambda: asyncio.run(batcher.predict_async(row)),
            lambda: batcher.reserve(rows=1),
            batcher.stats,
        ):
            try:
                use()
            except headrace.FailedPrecondition as error:
                assert "fork" in error.message
            else:
                os._exit(1)
        assert batcher.close()
    print("refused", flush=True)
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
print(used.predict(row)["y"], unused.predict(row)["y"])
"""
    ended = run(program, saved_models / "half_plus_two")
    assert ended.stdout == "refused\n[2.5] [2.5]\n", ended.stderr


def test_the_process_ends_well_while_requests_wait_and_run(saved_models: Path) -> None:
    program = """
import asyncio, sys, threading
import headrace

model = headrace.load(sys.argv[1], warm_up_seconds=0.0)
waiting = headrace.Batcher(model, headrace.BatchingOptions(batch_timeout_micros=3_600_000_000))
busy = headrace.Batcher(model)
reply = waiting.submit({"x": [1.0]})
reply.add_done_callback(lambda _: None)
started = threading.Semaphore(0)

def load():
    started.release()
    while True:
        busy.predict({"x": [1.0]})

def wait():
    started.release()
    waiting.predict({"x": [1.0]})

async def load_in_loop():
    started.release()
    while True:
        await asyncio.gather(*(busy.predict_async({"x": [1.0]}) for _ in range(8)))

threading.excepthook = lambda _: None  # what they are told at the end
for target in (load, load, wait, lambda: asyncio.run(load_in_loop())):
    threading.Thread(target=target, daemon=True).start()
for _ in range(4):
    started.acquire()
sys.exit(3)
"""
    for _ in range(3):
        ended = run(program, saved_models / "half_plus_two")
        assert (ended.returncode, ended.stdout) == (3, ""), ended.stderr
        assert "Fatal" not in ended.stderr
        assert "terminate" not in ended.stderr


def test_the_package_hands_out_its_names_when_they_are_used() -> None:
    program = """
import sys
import headrace

print([name for name in sys.modules if name.startswith("headrace.") or name == "numpy"])
assert set(headrace.__all__) <= set(dir(headrace))
for name in headrace.__all__:
    assert getattr(headrace, name).__name__ == name
assert callable(headrace.batched) and callable(headrace.load)
assert "Batcher" in vars(headrace)
try:
    headrace.Bacher
except AttributeError as error:
    print(error)
print("tensorflow" in sys.modules)
"""
    ended = run(program)
    assert ended.stdout.splitlines() == ["[]", "module 'headrace' has no attribute 'Bacher'", "False"], ended.stderr


def test_neither_tensorflow_nor_grpc_is_imported(saved_models: Path) -> None:
    program = """
import sys
import headrace

with headrace.Batcher(headrace.load(sys.argv[1], warm_up_seconds=0.0)) as batcher:
    batcher.predict({"x": [1.0]})
print([name for name in ("tensorflow", "grpc") if name in sys.modules])
"""
    ended = run(program, saved_models / "half_plus_two")
    assert ended.stdout == "[]\n", ended.stderr


def test_signals_that_are_handled_end_no_wait(waiting: Batcher) -> None:
    handled = threading.Event()
    previous = signal.signal(signal.SIGUSR1, lambda *_: handled.set())

    def interrupt() -> None:
        os.kill(os.getpid(), signal.SIGUSR1)
        assert handled.wait(LIMIT_S)
        for _ in range(7):
            waiting.submit({"x": [1.0]})

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        assert waiting.predict({"x": [1.0]})["y"].tolist() == [2.5]
    finally:
        thread.join(LIMIT_S)
        signal.signal(signal.SIGUSR1, previous)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rows": "x"}, "rows is 'x'; it must be a whole number"),
        ({"rows": 1.0}, "rows is 1.0; it must be a whole number"),
        ({"rows": 10**30}, "max_batch_size"),
        ({"rows": 1, "shapes": {"x": ["a"]}}, "shapes is .*; it must map names to lists of whole numbers"),
        ({"rows": 1, "shapes": {"x": [10**30]}}, "shapes has"),
        ({"rows": 1, "shapes": 5}, "shapes is 5"),
        ({"rows": 1, "dtypes": {"x": "nonsense"}}, "dtypes is .*; it must map names to NumPy's dtypes"),
    ],
)
def test_reserve_says_what_is_wrong_with_its_arguments(half: Batcher, arguments: Any, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        half.reserve(**arguments)


@pytest.mark.parametrize("timeout", ["30", 10**400, [1]])
def test_a_timeout_is_a_number_of_seconds(half: Batcher, timeout: Any) -> None:
    for call in (
        lambda: half.predict({"x": [1.0]}, timeout=timeout),
        lambda: half.submit({"x": [1.0]}).result(timeout),
        lambda: half.close(timeout),
    ):
        with pytest.raises(InvalidArgument, match=r"timeout is .*; it must be seconds"):
            call()
    assert half.predict({"x": [1.0]})["y"].tolist() == [2.5]  # it is still open


def test_what_is_no_callback_is_refused(half: Batcher) -> None:
    with pytest.raises(InvalidArgument, match="a callback is called; got 5"):
        half.submit({"x": [1.0]}).add_done_callback(5)  # type: ignore[arg-type]


def test_ctrl_c_is_heard_while_a_batcher_closes_and_cuts_nothing_short() -> None:
    program = """
import os, signal, sys, threading
import numpy as np
import headrace

entered, leave, told = threading.Event(), threading.Event(), threading.Event()

@headrace.batched
def held(x):
    entered.set()
    leave.wait(30)
    return x

reply = held.submit(np.ones(1))
reply.add_done_callback(lambda _: told.set())
entered.wait(30)
interrupt = threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT))
interrupt.start()
try:
    held.close()
except KeyboardInterrupt:
    leave.set()
    print(reply.result(30), told.wait(30))
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=LIMIT_S, check=True)
    assert ended.stdout == "[1.] True\n"
