# SPDX-License-Identifier: Apache-2.0
"""Functions over batches, called with single rows."""

from __future__ import annotations

import asyncio
import functools
import gc
import inspect
import os
import pickle
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest

from headrace.batched_function import Batched, batched
from headrace.errors import (
    Code,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    Unavailable,
    Unknown,
)
from tests.process import count_files, count_threads, resident_bytes

LIMIT_S = 30.0
AN_HOUR = 3_600_000_000  # microseconds
ROW = np.array([[1.0, 2.0]], np.float32)

Floats = Any  # an array, or a list that becomes one


@pytest.fixture(name="batch")
def batched_for_a_test() -> Iterator[Callable[..., Any]]:
    """batch(function, **options): batched, and closed at the end of the test."""
    made: list[Batched[..., Any]] = []

    def batch(function: Callable[..., Any], **options: Any) -> Batched[..., Any]:
        made.append(batched(**options)(function))
        return made[-1]

    yield batch
    for each in made:
        each.close(LIMIT_S)


def together(function: Batched[..., Any], *calls: tuple[Any, ...]) -> list[Any]:
    """What calls that wait for a full batch return or raise."""

    async def ask() -> list[Any]:
        return await asyncio.gather(*(function.predict_async(*each) for each in calls), return_exceptions=True)

    return asyncio.run(ask())


# --- calls ------------------------------------------------------------------------------------------------------------


@batched
def double(x: Floats) -> Floats:
    """Doubles."""
    return x * 2


@batched(max_batch_size=4)
def weigh(x: Floats, weight: Floats) -> dict[str, Floats]:
    return {"total": x * weight, "weight": weight}


def test_it_returns_what_the_function_returns_for_these_rows() -> None:
    for x in (ROW, np.ones([5, 2], np.float32)):
        assert double(x).tolist() == (x * 2).tolist()
        assert asyncio.run(double.predict_async(x)).tolist() == (x * 2).tolist()
        assert double.submit(x).result(LIMIT_S).tolist() == (x * 2).tolist()


def test_it_looks_like_the_function() -> None:
    assert (double.__name__, double.__qualname__, double.__doc__) == ("double", "double", "Doubles.")
    assert double.__module__ == __name__
    assert double.__wrapped__(ROW).tolist() == [[2, 4]]  # type: ignore[attr-defined]


def test_arrays_come_by_position_and_by_name() -> None:
    weight = np.array([3.0])
    answers = [
        weigh(ROW[:, 0], weight),
        weigh(ROW[:, 0], weight=weight),
        weigh(weight=weight, x=ROW[:, 0]),
        asyncio.run(weigh.predict_async(ROW[:, 0], weight=weight)),
        weigh.submit(x=ROW[:, 0], weight=weight).result(LIMIT_S),
    ]
    for answer in answers:
        assert {name: value.tolist() for name, value in answer.items()} == {"total": [3.0], "weight": [3.0]}


@pytest.mark.parametrize(
    ("arguments", "keywords"),
    [((), {}), ((ROW,), {}), ((ROW, ROW, ROW), {}), ((ROW, ROW), {"x": ROW}), ((ROW,), {"z": ROW})],
)
def test_wrong_arguments_are_a_type_error_as_the_functions_own(arguments: Any, keywords: Any) -> None:
    for call in (weigh, weigh.submit, lambda *args, **kwargs: asyncio.run(weigh.predict_async(*args, **kwargs))):
        with pytest.raises(TypeError):
            call(*arguments, **keywords)


def test_keyword_only_and_positional_only_parameters_stay_so(batch: Any) -> None:
    def named(x: Floats, *, scale: Floats) -> Floats:
        return x * scale

    def placed(x: Floats, scale: Floats, /) -> Floats:
        return x * scale

    by_name, by_place = batch(named), batch(placed)
    x, scale = np.array([2.0]), np.array([5.0])
    assert by_name(x, scale=scale).tolist() == [10.0]
    assert by_place(x, scale).tolist() == [10.0]
    with pytest.raises(TypeError):
        by_name(x, scale)
    with pytest.raises(TypeError):
        by_place(x, scale=scale)


def test_requests_that_give_the_same_parameters_share_a_batch(batch: Any) -> None:
    batches: list[tuple[int, bool]] = []

    def embed(x: Floats, mask: Floats | None = None) -> Floats:
        batches.append((len(x), mask is not None))
        return x if mask is None else x * mask

    masked = batch(embed, max_batch_size=2, batch_timeout_micros=AN_HOUR)
    x, mask = np.array([2.0]), np.array([0.0])
    answers = together(masked, (x,), (x, mask), (x, None), (x, mask))
    assert [answer.tolist() for answer in answers] == [[2.0], [0.0], [2.0], [0.0]]
    assert sorted(batches) == [(2, False), (2, True)]


def test_a_parameter_with_another_default_has_it_where_none_is_given(batch: Any) -> None:
    def scale(x: Floats, by: Any = 3.0) -> Floats:
        return x * by

    scaled = batch(scale)
    x = np.array([2.0])
    assert scaled(x).tolist() == [6.0]
    assert scaled(x, np.array([4.0])).tolist() == [8.0]
    assert scaled(x, 5.0).tolist() == [10.0]
    with pytest.raises(InvalidArgument, match='input "by"'):
        scaled(x, None)


def test_a_parameter_that_is_left_out_before_another_has_its_default(batch: Any) -> None:
    def pick(x: Floats, low: Floats | None = None, high: Floats | None = None, /) -> Floats:
        return x + (0 if low is None else low) + (0 if high is None else 10 * high)

    picked = batch(pick)
    x, one = np.array([1.0]), np.array([1.0])
    assert picked(x).tolist() == [1.0]
    assert picked(x, one).tolist() == [2.0]
    assert picked(x, None, one).tolist() == [11.0]
    assert picked(x, one, one).tolist() == [12.0]


def test_numbers_without_rows_run_by_themselves_and_are_given_as_they_are(batch: Any) -> None:
    assert batch(lambda x: x * 2)(3.0).tolist() == 6.0


# --- arrays -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        ([1.5], "float64"),
        ([1], "int64"),
        ([True], "bool"),
        (np.array([1], np.uint16), "uint16"),
        (np.array([1], np.float16), "float16"),
        (np.array([1], ml_dtypes.bfloat16), "bfloat16"),
        (np.array([1j], np.complex64), "complex64"),
    ],
)
def test_the_function_gets_the_dtype_that_came(batch: Any, value: Any, dtype: str) -> None:
    seen: list[str] = []

    def look(x: Floats) -> Floats:
        seen.append(x.dtype.name)
        return x

    answer = batch(look)(value)
    assert seen == [dtype]
    assert answer.dtype.name == dtype
    assert answer.tolist() == np.asarray(value).tolist()


@pytest.mark.parametrize(
    "texts", [["a", "\u00e9"], [b"a", "\u00e9"], np.array(["a", "\u00e9"]), np.array(["a", "\u00e9"], object)]
)
def test_texts_arrive_and_come_back_as_bytes(batch: Any, texts: Any) -> None:
    seen: list[Any] = []

    def look(text: Floats) -> Floats:
        seen.append(text.copy())
        return np.array([each.decode().upper() for each in text])

    answer = batch(look)(texts)
    assert seen[0].dtype == object
    assert seen[0].tolist() == [b"a", "\u00e9".encode()]
    assert answer.dtype == object
    assert answer.tolist() == [b"A", "\u00c9".encode()]


def test_requests_of_other_dtypes_and_shapes_share_no_batch(batch: Any) -> None:
    shapes: list[Any] = []

    def look(x: Floats) -> Floats:
        shapes.append((x.dtype.name, x.shape))
        return x

    looked = batch(look, max_batch_size=2, batch_timeout_micros=AN_HOUR)
    kinds: list[Any] = [np.ones([1, 2], np.float32), np.ones([1, 3], np.float32), np.ones([1, 2], np.float64)]
    answers = together(looked, *((x,) for x in kinds), *((x,) for x in kinds))
    assert [answer.shape for answer in answers] == [x.shape for x in kinds] * 2
    assert sorted(shapes) == [("float32", (2, 2)), ("float32", (2, 3)), ("float64", (2, 2))]


class Tensor:
    """What another library's arrays have in common."""

    def __init__(self, values: Any) -> None:
        self.values = np.asarray(values, np.float32)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Floats:
        return self.values if dtype is None else self.values.astype(dtype)


def test_arrays_of_other_libraries_go_in_and_come_out(batch: Any) -> None:
    def twice(x: Floats) -> Tensor:
        assert type(x) is np.ndarray
        return Tensor(x * 2)

    answer = batch(twice)(Tensor([[1.0, 2.0]]))
    assert type(answer) is np.ndarray
    assert answer.tolist() == [[2, 4]]


def test_the_function_may_change_and_keep_its_arguments(batch: Any) -> None:
    kept: list[Floats] = []

    def change(x: Floats) -> Floats:
        kept.append(x)
        x *= 2
        return x

    changed = batch(change)
    x = ROW.copy()
    answers = [changed(x) for _ in range(3)]
    assert x.tolist() == ROW.tolist()
    assert [answer.tolist() for answer in answers] == [[[2, 4]]] * 3
    answers[0][:] = 7
    assert [each.tolist() for each in kept] == [[[2, 4]]] * 3


def test_answers_are_the_callers_own_whatever_the_function_keeps(batch: Any) -> None:
    constant = np.array([[5.0]])
    gone: list[weakref.ref[Floats]] = []

    def keep(_: Floats) -> Floats:
        return constant

    def large(x: Floats) -> Floats:
        y = np.ones([len(x), 1000])
        gone.append(weakref.ref(y))
        return y[:, ::2]

    kept = batch(keep)
    first = kept(ROW)
    first[:] = 0
    assert constant.tolist() == [[5.0]]
    assert kept(ROW).tolist() == [[5.0]]

    answers = together(batch(large, max_batch_size=4, batch_timeout_micros=AN_HOUR), *[(ROW,)] * 4)
    gc.collect()
    assert gone[0]() is None, "an answer pins the batch"
    for answer in answers:
        assert answer.flags.c_contiguous
        assert answer.flags.writeable
        assert answer.shape == (1, 500)


# --- results ----------------------------------------------------------------------------------------------------------


class Scores(NamedTuple):
    best: Floats
    rest: Floats


@pytest.mark.parametrize("rows", [1, 3])
def test_results_are_arrays_tuples_or_dicts(batch: Any, rows: int) -> None:
    x = np.arange(rows, dtype=np.float32)
    both = batch(lambda x: (x, x + 1))(x)
    assert type(both) is tuple
    assert [y.tolist() for y in both] == [x.tolist(), (x + 1).tolist()]
    many = batch(lambda x: tuple(x + i for i in range(12)))(x)
    assert [y.tolist() for y in many] == [(x + i).tolist() for i in range(12)]
    alone = batch(lambda x: (x,))(x)
    assert type(alone) is tuple
    named = batch(lambda x: {"b": x, "a": x + 1})(x)
    assert type(named) is dict
    assert [(name, y.tolist()) for name, y in named.items()] == [("b", x.tolist()), ("a", (x + 1).tolist())]
    listed = batch(lambda x: [float(each) for each in x])(x)
    assert listed.tolist() == x.tolist()
    scores = batch(lambda x: Scores(x, x + 1))(x)
    assert type(scores) is Scores
    assert scores.rest.tolist() == (x + 1).tolist()


def test_outputs_are_named_as_over_the_wire(batch: Any) -> None:
    x = {"x": np.array([1.0])}
    for function, names in (
        (lambda x: x, ["output"]),
        (lambda x: (x, x), ["output_0", "output_1"]),
        (lambda x: {"a": x, "b": x}, ["a", "b"]),
    ):
        [lane] = batch(function).served().lanes.values()
        assert list(lane.predict(x)) == names
        assert [spec.name for spec in lane.signature.inputs] == ["x"]


def test_a_result_of_another_kind_is_an_error_that_names_both(batch: Any) -> None:
    changing = batch(lambda x: x if len(x) == 1 else {"y": x})
    assert changing([1]).tolist() == [1]
    with pytest.raises(InvalidArgument, match="returned a dict, before it returned an array; it must always"):
        changing([1, 2])
    assert changing([1]).tolist() == [1]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: x[:1], "returned 1 rows .*its inputs have 2 rows"),
        (lambda x: np.concatenate([x, x]), "returned 4 rows .*its inputs have 2 rows"),
        (lambda x: x.sum(), "returned a scalar .*its inputs have 2 rows"),
        (lambda x: {"a": x, "b": x[:0]}, 'returned 0 rows for output "b"; its inputs have 2 rows'),
        (lambda _: None, "returned None; it must return an array, a tuple or a dict of arrays"),
        (lambda _: (), "returned a tuple without arrays"),
        (lambda _: {}, "returned a dict without arrays"),
        (lambda x: {1: x}, "returned a dict with the key 1; an output is named by text"),
    ],
)
@pytest.mark.parametrize("alone", [True, False])
def test_a_wrong_result_is_an_invalid_argument_that_says_what_it_was(
    batch: Any, function: Any, message: str, alone: bool
) -> None:
    wrong = batch(function, max_batch_size=2, batch_timeout_micros=AN_HOUR)
    errors = together(wrong, *([([1, 2],)] if alone else [([1],), ([2],)]))
    for error in errors:
        assert isinstance(error, InvalidArgument)
        with pytest.raises(InvalidArgument, match=message):
            raise error


# --- errors -----------------------------------------------------------------------------------------------------------


def test_exceptions_reach_exactly_the_callers_of_that_batch(batch: Any) -> None:
    raised: list[ValueError] = []

    def check(x: Floats) -> Floats:
        if (x < 0).any():
            raised.append(ValueError(f"negative: {x.tolist()}"))
            raise raised[-1]
        return x

    checked = batch(check, max_batch_size=2, batch_timeout_micros=AN_HOUR)
    answers = together(checked, ([1.0],), ([2.0],), ([-3.0],), ([4.0],), ([5.0],), ([6.0],), ([-7.0],), ([-8.0],))
    assert [answer.tolist() for answer in answers if not isinstance(answer, BaseException)] == [[1], [2], [5], [6]]
    for place, cause in ((2, 0), (3, 0), (6, 1), (7, 1)):
        error = answers[place]
        assert isinstance(error, Unknown)
        assert (error.code, error.message) == (Code.UNKNOWN, f"ValueError: {raised[cause]}")
        assert error.__cause__ is raised[cause]


def test_an_error_of_headrace_keeps_its_code(batch: Any) -> None:
    def find(_: Floats) -> Floats:
        raise NotFound("no such word")

    found = batch(find)
    with pytest.raises(NotFound, match="no such word") as raised:
        found(ROW)
    assert raised.value.__cause__ is None


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), MemoryError("full")])
def test_whatever_is_raised_is_answered_and_the_next_call_works(batch: Any, error: BaseException) -> None:
    errors = [error]

    def fail_once(x: Floats) -> Floats:
        if errors:
            raise errors.pop()
        return x

    failing = batch(fail_once)
    with pytest.raises(Unknown) as raised:
        failing(ROW)
    assert raised.value.__cause__ is error
    assert failing(ROW).tolist() == ROW.tolist()


def test_a_full_queue_is_unavailable(batch: Any) -> None:
    waiting = batch(lambda x: x, max_batch_size=1, max_enqueued_batches=1, batch_timeout_micros=AN_HOUR)
    entered, leave = threading.Event(), threading.Event()

    def hold(x: Floats) -> Floats:
        entered.set()
        assert leave.wait(LIMIT_S)
        return x

    held = batch(hold, max_batch_size=1, max_enqueued_batches=1)
    held.submit(ROW)
    assert entered.wait(LIMIT_S)
    held.submit(ROW)
    with pytest.raises((Unavailable, ResourceExhausted)) as raised:
        held(ROW)
    assert raised.value.code == Code.UNAVAILABLE
    leave.set()
    assert waiting(ROW).tolist() == ROW.tolist()


# --- where it runs ----------------------------------------------------------------------------------------------------


def test_it_never_runs_in_the_calling_thread(batch: Any) -> None:
    where: set[int] = set()

    def look(x: Floats) -> Floats:
        where.add(threading.get_ident())
        return x

    looked = batch(look)
    for _ in range(100):
        looked(ROW)
    assert len(where) == 1
    assert threading.get_ident() not in where


def test_it_runs_one_batch_at_a_time_unless_there_are_more_threads(batch: Any) -> None:
    at_a_time: list[int] = []
    running: list[int] = []
    lock = threading.Lock()

    def count(x: Floats) -> Floats:
        with lock:
            running.append(1)
            at_a_time.append(len(running))
        threading.Event().wait(0.001)
        with lock:
            running.pop()
        return x

    counted = batch(count, max_batch_size=1)
    replies = [counted.submit(ROW) for _ in range(20)]
    for reply in replies:
        reply.result(LIMIT_S)
    assert at_a_time == [1] * 20


def test_two_threads_run_two_batches_at_a_time(batch: Any) -> None:
    both = threading.Barrier(2, timeout=LIMIT_S)

    def meet(x: Floats) -> Floats:
        both.wait()
        return x

    meeting = batch(meet, max_batch_size=1, num_batch_threads=2)
    replies = [meeting.submit(ROW) for _ in range(4)]
    assert [reply.result(LIMIT_S).tolist() for reply in replies] == [ROW.tolist()] * 4


def test_a_batch_has_the_rows_of_all_who_call_at_the_time(batch: Any) -> None:
    rows: list[int] = []

    def count(x: Floats) -> Floats:
        rows.append(len(x))
        return x

    counted = batch(count, max_batch_size=8, batch_timeout_micros=AN_HOUR)
    answers: dict[int, Any] = {}

    def ask(number: int) -> None:
        answers[number] = counted([[number, number]]).tolist()

    asking = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join(LIMIT_S)
    assert rows == [8]
    assert answers == {number: [[number, number]] for number in range(8)}
    assert counted.stats()["batches_by_rows"] == {8: 1}


def test_one_that_calls_itself_is_refused_instead_of_waiting_for_ever(batch: Any) -> None:
    def recurse(x: Floats) -> Any:
        return recursive(x)

    recursive = batch(recurse)
    with pytest.raises(FailedPrecondition, match="would wait for itself"):
        recursive(ROW)


def test_one_may_call_another(batch: Any) -> None:
    inner = batch(lambda x: x * 2)
    outer = batch(lambda x: inner(x) + 1)
    assert outer(ROW).tolist() == [[3, 5]]


# --- methods ----------------------------------------------------------------------------------------------------------


class Encoder:
    def __init__(self, scale: float) -> None:
        self.scale = scale
        self.rows: list[int] = []

    @batched(max_batch_size=2, batch_timeout_micros=AN_HOUR)
    def encode(self, x: Floats) -> Floats:
        self.rows.append(len(x))
        return x * self.scale

    @batched
    def shift(self, x: Floats, by: Floats | None = None) -> Floats:
        return x + (self.scale if by is None else by)

    @staticmethod
    @batched
    def outside(x: Floats) -> Floats:
        return x * 7

    @batched
    @staticmethod
    def inside(x: Floats) -> Floats:
        return x * 8

    @classmethod
    @batched
    def of_class(cls, x: Floats) -> Floats:
        return x * len(cls.__name__)


def test_each_instance_has_a_queue_of_its_own() -> None:
    two, three = Encoder(2.0), Encoder(3.0)
    replies = [encoder.encode.submit([1.0]) for _ in range(2) for encoder in (two, three)]
    assert [reply.result(LIMIT_S).tolist() for reply in replies] == [[2.0], [3.0]] * 2
    assert (two.rows, three.rows) == ([2], [2])
    assert two.encode.stats()["requests"] == three.encode.stats()["requests"] == 2
    assert two.encode.close(LIMIT_S)
    with pytest.raises(Unavailable):
        two.encode([1.0, 1.0])
    assert three.encode([1.0, 1.0]).tolist() == [3.0, 3.0]


def test_methods_are_called_in_every_way() -> None:
    one = Encoder(1.0)
    by = np.array([5.0])
    assert one.shift([1.0]).tolist() == [2.0]
    assert one.shift([1.0], by).tolist() == [6.0]
    assert one.shift(x=[1.0], by=by).tolist() == [6.0]
    assert one.shift.submit([1.0], by=by).result(LIMIT_S).tolist() == [6.0]
    assert asyncio.run(one.shift.predict_async([1.0])).tolist() == [2.0]
    shift = one.shift
    assert shift([1.0]).tolist() == [2.0]
    assert shift.__name__ == "shift"
    assert shift.__qualname__ == "Encoder.shift"
    with pytest.raises(TypeError):
        one.shift(by=by)  # type: ignore[call-arg]


def test_a_method_looks_like_that_of_its_instance() -> None:
    assert list(inspect.signature(Encoder(1.0).shift).parameters) == ["x", "by"]
    assert list(inspect.signature(Encoder.shift).parameters) == ["self", "x", "by"]


def test_a_method_may_be_called_on_its_class() -> None:
    one = Encoder(1.0)
    assert Encoder.shift(one, np.array([1.0])).tolist() == [2.0]
    assert Encoder.shift.submit(one, np.array([1.0])).result(LIMIT_S).tolist() == [2.0]
    assert asyncio.run(Encoder.shift.predict_async(one, np.array([1.0]))).tolist() == [2.0]
    assert one.shift.stats()["requests"] == 3
    with pytest.raises(TypeError, match="call it on an instance"):
        Encoder.shift()  # type: ignore[call-arg]
    with pytest.raises(FailedPrecondition, match="serve that of an instance"):
        Encoder.shift.served()


def test_static_and_class_methods_take_no_instance() -> None:
    one = Encoder(1.0)
    x = np.array([1.0])
    owner: Any
    for owner in (one, Encoder):
        assert owner.outside(x).tolist() == [7.0]
        assert owner.inside(x).tolist() == [8.0]
        assert owner.inside.submit(x).result(LIMIT_S).tolist() == [8.0]
        assert owner.of_class(x).tolist() == [7.0]


def test_a_queue_ends_with_its_instance() -> None:
    before = count_threads()
    one = Encoder(2.0)
    assert one.shift([1.0]).tolist() == [3.0]
    assert count_threads() > before
    gone = weakref.ref(one)
    method = one.shift
    del one
    assert gone() is not None, "a bound method keeps its object"
    assert method([1.0]).tolist() == [3.0]
    reply = method.submit([1.0])
    del method
    assert reply.result(LIMIT_S).tolist() == [3.0]
    del reply
    assert gone() is None, "nothing else does"
    assert count_threads() == before


def test_a_hundred_instances_leave_nothing_behind() -> None:
    before = count_threads()
    for number in range(100):
        assert Encoder(float(number)).shift([1.0]).tolist() == [1.0 + number]
    assert count_threads() == before
    assert Encoder.shift._bound == {}


class Slotted:
    __slots__ = ("__weakref__", "scale")

    def __init__(self, scale: float) -> None:
        self.scale = scale

    @batched
    def encode(self, x: Floats) -> Floats:
        return x * self.scale


class Cramped:
    __slots__ = ()

    @batched
    def encode(self, x: Floats) -> Floats:
        return x


class AllEqual:
    """Equal to all others, and not hashable."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, scale: float) -> None:
        self.scale = scale

    def __eq__(self, other: object) -> bool:
        return True

    @batched
    def encode(self, x: Floats) -> Floats:
        return x * self.scale


@pytest.mark.parametrize("kind", [Slotted, AllEqual])
def test_instances_may_have_slots_or_an_equality_of_their_own(kind: Any) -> None:
    two, three = kind(2.0), kind(3.0)
    assert [each.encode([1.0]).tolist() for each in (two, three, two)] == [[2.0], [3.0], [2.0]]


def test_an_instance_without_weak_references_is_refused_with_the_way_out() -> None:
    with pytest.raises(InvalidArgument, match="add __weakref__ to __slots__"):
        Cramped().encode([1.0])


def test_a_subclass_uses_its_own_method_and_that_of_its_base() -> None:
    class Shouting(Encoder):
        @batched
        def shift(self, x: Floats, by: Floats | None = None) -> Floats:
            return super().shift(x, by) * 10

    assert Shouting(1.0).shift([1.0]).tolist() == [20.0]


def test_closing_a_method_on_the_class_closes_those_of_all_instances() -> None:
    class Doubler:
        @batched
        def double(self, x: Floats) -> Floats:
            return x * 2

    one = Doubler()
    assert one.double([1.0]).tolist() == [2.0]
    assert Doubler.double.close(LIMIT_S)
    for each in (one, Doubler()):
        with pytest.raises(Unavailable, match="queue of double is closed"):
            each.double([1.0])


# --- what cannot be batched -------------------------------------------------------------------------------------------


async def asynchronous(x: Any) -> Any: ...


async def asynchronous_generator(x: Any) -> Any:
    yield x


def generator(x: Any) -> Any:
    yield x


class AsynchronousObject:
    async def __call__(self, x: Any) -> Any: ...


def no_parameters() -> Any: ...


def any_positions(*x: Any) -> Any: ...


def any_names(x: Any, **rest: Any) -> Any: ...


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (asynchronous, "asynchronous is an async function"),
        (asynchronous_generator, "is an async function"),
        (AsynchronousObject(), "AsynchronousObject is an async function"),
        (functools.partial(asynchronous), "is an async function"),
        (generator, "generator is a generator"),
        (no_parameters, "no_parameters has no parameters"),
        (any_positions, r"any_positions has \*x"),
        (any_names, r"any_names has \*\*rest"),
        (7, "a int cannot be batched"),
        (classmethod(asynchronous), "a classmethod cannot be batched; put @batched next to the function"),
    ],
)
def test_what_has_no_rows_by_name_is_refused(function: Any, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        batched(function)


def test_a_method_without_parameters_is_refused_at_its_use() -> None:
    class Empty:
        @batched
        def nothing(self) -> Any: ...

    with pytest.raises(InvalidArgument, match="nothing has no parameters"):
        Empty().nothing()


def test_options_are_those_of_batching_options() -> None:
    with pytest.raises(InvalidArgument, match="max_batch_size is 0"):
        batched(max_batch_size=0)
    with pytest.raises(TypeError, match="max_batch_sise"):
        batched(max_batch_sise=3)
    [lane] = weigh.served().lanes.values()
    assert lane.options.max_batch_size == 4


def test_objects_that_are_called_and_partial_functions_can_be_batched(batch: Any) -> None:
    class Model:
        close = submit = "its own"

        def __init__(self) -> None:
            self.submit = "its own, too"

        def __call__(self, x: Floats) -> Floats:
            return x * 2

    model = batch(Model())
    assert model(ROW).tolist() == [[2, 4]]
    assert model.submit(ROW).result(LIMIT_S).tolist() == [[2, 4]]
    assert batch(functools.partial(lambda x, scale: x * scale, scale=3))(ROW).tolist() == [[3, 6]]
    assert batch(Encoder(2.0).__class__.outside.__wrapped__)(ROW).tolist() == [[7, 14]]  # type: ignore[attr-defined]


# --- its life ---------------------------------------------------------------------------------------------------------


def test_decoration_starts_no_thread() -> None:
    before = count_threads()
    made = batched(lambda x: x)
    assert count_threads() == before
    assert made(ROW).tolist() == ROW.tolist()
    assert count_threads() > before
    del made
    assert count_threads() == before, "one that is dropped ends its threads"


def test_close_answers_what_was_accepted_and_refuses_the_rest() -> None:
    made: Batched[[Any], Any] = batched(batch_timeout_micros=AN_HOUR)(lambda x: x * 2)
    replies = [made.submit(ROW) for _ in range(5)]
    assert made.close(LIMIT_S)
    assert made.close()
    assert [reply.result(0).tolist() for reply in replies] == [[[2, 4]]] * 5
    for use in (made, made.submit, lambda x: asyncio.run(made.predict_async(x))):
        with pytest.raises(Unavailable, match="the queue of <lambda> is closed"):
            use(ROW)


def test_close_leaves_behind_what_does_not_return() -> None:
    entered, leave = threading.Event(), threading.Event()

    @batched
    def hold(x: Floats) -> Floats:
        entered.set()
        assert leave.wait(LIMIT_S)
        return x

    reply = hold.submit(ROW)
    assert entered.wait(LIMIT_S)
    assert not hold.close(0.0)
    assert isinstance(reply.exception(0), Unavailable)
    leave.set()


def test_a_thousand_of_them_leave_nothing_behind() -> None:
    def make_and_use(times: int) -> None:
        for turn in range(times):
            made = batched(lambda x: x * 2)
            assert made(ROW).tolist() == [[2, 4]]
            if turn % 2 == 0:
                made.close(LIMIT_S)  # the others are dropped

    def left() -> tuple[int, int, int]:
        return threading.active_count(), count_threads(), count_files()

    make_and_use(100)
    before, bytes_before = left(), resident_bytes()
    make_and_use(1000)
    assert left() == before
    assert resident_bytes() - bytes_before < 4 << 20


def test_it_is_pickled_by_name_as_functions_and_methods_are() -> None:
    assert pickle.loads(pickle.dumps(weigh)) is weigh
    assert pickle.loads(pickle.dumps(Encoder.shift)) is Encoder.shift
    method = pickle.loads(pickle.dumps(Encoder(4.0).shift))
    assert method([1.0]).tolist() == [5.0]


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments, "-c", program], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )


def test_nothing_heavy_is_imported_for_functions() -> None:
    ended = run("""
import asyncio, sys
import headrace

@headrace.batched
def double(x):
    return x * 2

double([1.0])
double.submit([1.0]).result()
asyncio.run(double.predict_async([1.0]))
print([name for name in ("tensorflow", "grpc") if name in sys.modules])
""")
    assert ended.stdout == "[]\n", ended.stderr


def test_ctrl_c_interrupts_a_call_within_100_ms() -> None:
    ended = run(
        """
import os, signal, threading, time
import headrace

entered = threading.Event()

@headrace.batched(max_batch_size=1)
def never(x):
    entered.set()
    threading.Event().wait()

def interrupted_after(wait):
    sent = []
    def interrupt():
        entered.wait()
        time.sleep(0.02)
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

print(min(interrupted_after(lambda: never([1.0])) for _ in range(5)))
os._exit(0)
""",
        "-u",
    )
    assert ended.returncode == 0, ended.stderr
    assert float(ended.stdout) < 0.1


def test_the_end_of_the_process_answers_who_waits() -> None:
    ended = run("""
import os, sys, threading
import headrace

entered, leave = threading.Event(), threading.Event()

@headrace.batched(max_batch_size=1)
def hold(x):
    entered.set()
    leave.wait()
    return x

def wait():
    try:
        hold([1.0])
    except headrace.Unavailable:
        os.write(1, b"told ")
        leave.set()

threading.Thread(target=wait, daemon=True).start()
assert entered.wait(30)
sys.exit(5)
""")
    assert (ended.returncode, ended.stdout, ended.stderr) == (5, "told ", "")


# --- types ------------------------------------------------------------------------------------------------------------

TYPED = """
from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

import headrace

Floats = NDArray[np.float32]


@headrace.batched
def embed(x: Floats) -> Floats:
    return x


@headrace.batched(max_batch_size=8)
def score(text: list[str], mask: Floats | None = None) -> dict[str, Floats]:
    return {}


class Model:
    @headrace.batched
    def run(self, x: Floats, *, scale: Floats) -> tuple[Floats, Floats]:
        return x, scale

    @headrace.batched(max_batch_size=2)
    def encode(self, x: Floats) -> Floats:
        return x


x = np.ones([1], np.float32)
model = Model()


async def right() -> None:
    a: Floats = embed(x)
    b: dict[str, Floats] = score(["a"], mask=x)
    c: Floats = await embed.predict_async(x)
    d: headrace.Reply[dict[str, Floats]] = score.submit(["a"])
    e: dict[str, Floats] = d.result(1.0)
    f: tuple[Floats, Floats] = model.run(x, scale=x)
    g: tuple[Floats, Floats] = await model.run.predict_async(x, scale=x)
    h: headrace.Reply[Floats] = model.encode.submit(x)
    i: tuple[Floats, Floats] = Model.run(model, x, scale=x)
    d.add_done_callback(lambda reply: reply.result()["y"].sum())


async def wrong() -> None:
    embed("x")  # E: [arg-type]
    embed(x, x)  # E: [call-arg]
    a: int = embed(x)  # E: [assignment]
    score()  # E: [call-arg]
    score(["a"], weight=x)  # E: [call-arg]
    b: Floats = await score.predict_async(["a"])  # E: [assignment]
    c: headrace.Reply[int] = embed.submit(x)  # E: [assignment]
    model.run(x)  # E: [call-arg]
    model.run("x", scale=x)  # E: [arg-type]
    d: Floats = model.run(x, scale=x)  # E: [assignment]
    model.encode.submit(3)  # E: [arg-type]
    Model.encode(x, x)  # E: [arg-type]
"""


def test_it_keeps_the_functions_types(tmp_path: Path) -> None:
    """What the lines marked with E have in common is that mypy refuses them, and no others."""
    snippet = tmp_path / "snippet.py"
    snippet.write_text(TYPED)
    root = Path(__file__).parents[2]
    ended = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", f"--cache-dir={tmp_path / 'cache'}", "--config-file=", str(snippet)],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
        env={**os.environ, "MYPYPATH": str(root / "python")},
    )
    found = {}
    for line in ended.stdout.splitlines():
        if line.startswith(str(snippet)) and ": error: " in line:
            found[int(line.split(":")[1])] = line.rpartition("  ")[2]
    wanted = {
        number: line.partition("# E: ")[2] for number, line in enumerate(TYPED.splitlines(), 1) if "# E: " in line
    }
    assert {number: code for number, code in found.items() if wanted.get(number) != code} == {}, ended.stdout
    assert found.keys() == wanted.keys(), ended.stdout + ended.stderr


@pytest.mark.parametrize("way", ["call", "submit", "predict_async"])
def test_a_run_that_would_wait_for_itself_is_refused_however_it_waits(way: str) -> None:
    @batched
    def recursive(x: Any) -> Any:
        if way == "call":
            return recursive(x)
        if way == "submit":
            return recursive.submit(x).result()
        return asyncio.run(recursive.predict_async(x))

    try:
        with pytest.raises(FailedPrecondition, match="would wait for itself"):
            recursive(np.ones(1))
    finally:
        recursive.close()
