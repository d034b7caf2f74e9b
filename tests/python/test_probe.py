# SPDX-License-Identifier: Apache-2.0
"""May requests share batches, and in which pool do they run: decided over runs that these tests make up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from headrace import _core
from headrace.errors import InvalidArgument
from headrace.probe import (
    CALLER_THREAD,
    SHARED_POOL,
    Findings,
    Rows,
    choose,
    equal,
    examine,
    probe_rows,
    single_rows,
    warm,
    warm_sizes,
)
from headrace.tensor_proto import SERVED_DTYPES, numpy_dtype

FLOAT, STRING, INT64, BOOL, COMPLEX64 = 1, 7, 9, 10, 8
Answer = Callable[[NDArray[Any]], NDArray[Any]]


class Graph:
    """The part of ServingGraph that examine() asks."""

    def __init__(self, *stateful: str) -> None:
        self._stateful = list(stateful)

    def reachable_ops(self, signature: _core.Signature) -> frozenset[str]:
        assert signature.outputs
        return frozenset(self._stateful)

    def stateful(self, ops: frozenset[str]) -> list[str]:
        return sorted(ops)


class Clock:
    """Seconds that pass only in runs."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def one_to_one(
    shape: Sequence[int] | None = (-1, 4), output: Sequence[int] | None = (-1, 4), dtype: int = FLOAT
) -> _core.Signature:
    def listed(dims: Sequence[int] | None) -> list[int] | None:
        return None if dims is None else list(dims)

    return _core.Signature(
        "f",
        [_core.TensorSpec("x", dtype, listed(shape), "x:0")],
        [_core.TensorSpec("y", dtype, listed(output), "y:0")],
    )


def examined(answer: Answer, signature: _core.Signature | None = None, *stateful: str, **options: Any) -> Findings:
    def run(rows: Rows, pool: int) -> list[NDArray[Any]]:
        assert pool in (CALLER_THREAD, SHARED_POOL)
        return [answer(rows["x"])]

    options = {"max_batch_size": 64, "warm_until": float("inf"), **options}
    graph: Any = Graph(*stateful)
    return examine(signature or one_to_one(), graph, run, **options)


# --- batching ---------------------------------------------------------------------------------------------------------


def test_rows_that_agree_alone_and_together_are_batched() -> None:
    findings = examined(lambda x: x * 2)
    assert findings.batched
    assert findings.why == "rows alone and together agree"


def test_a_stateful_operation_forbids_batching_and_is_not_run() -> None:
    def answer(_: NDArray[Any]) -> NDArray[Any]:
        raise AssertionError("a run may change the model's state")

    findings = examined(answer, None, "AssignAddVariableOp", "RandomUniform")
    assert not findings.batched
    assert findings.why == "stateful: AssignAddVariableOp, RandomUniform"
    assert findings.pool == SHARED_POOL


def test_answers_that_depend_on_the_rows_beside_forbid_batching() -> None:
    findings = examined(lambda x: x - x.mean(axis=0))
    assert not findings.batched
    assert findings.why == 'output "y" of a row changes with the rows beside it'


def test_an_output_without_a_row_for_each_row_forbids_batching() -> None:
    findings = examined(lambda x: x.reshape(-1), one_to_one(output=None))
    assert not findings.batched
    assert findings.why == 'output "y" has no batch dimension: [12] for 3 rows'
    assert not examined(lambda x: x.sum(), one_to_one(output=None)).batched
    assert not examined(lambda x: x[:1], one_to_one(output=None)).batched


@pytest.mark.parametrize(
    ("shape", "output", "why"),
    [
        ([], [-1], 'input "x" has no batch dimension: []'),
        ([2, 4], [-1, 4], 'input "x" has no batch dimension: [2,4]'),
        ([-1, 4], [], 'output "y" has no batch dimension: []'),
        ([-1, 4], [1, 4], 'output "y" has no batch dimension: [1,4]'),
    ],
)
def test_a_signature_that_declares_no_batch_dimension_forbids_batching(
    shape: list[int], output: list[int], why: str
) -> None:
    findings = examined(lambda x: x, one_to_one(shape, output))
    assert not findings.batched
    assert findings.why == why


def test_a_signature_without_inputs_is_not_batched() -> None:
    signature = _core.Signature("f", [], [_core.TensorSpec("y", FLOAT, [-1], "y:0")])
    graph: Any = Graph()
    findings = examine(signature, graph, lambda _rows, _pool: [np.ones(2)], max_batch_size=8)
    assert not findings.batched
    assert findings.why == "it has no inputs"


def test_a_probe_that_the_model_refuses_proves_nothing() -> None:
    def answer(_: NDArray[Any]) -> NDArray[Any]:
        raise InvalidArgument("Shape of x [1,1] is not [?,5].\n\t [[{{node EnsureShape}}]]")

    findings = examined(answer)
    assert findings.batched
    assert findings.why == "not probed: Shape of x [1,1] is not [?,5]."
    assert findings.pool == SHARED_POOL
    # What the signature declares is known all the same.
    assert not examined(answer, one_to_one(output=[])).batched


def test_recorded_requests_are_probed_in_place_of_made_up_rows() -> None:
    seen: list[NDArray[Any]] = []

    def answer(x: NDArray[Any]) -> NDArray[Any]:
        seen.append(x)
        return x

    recorded = [{"x": np.asarray([[5.0] * 4, [6.0] * 4], np.float32)}, {"x": np.asarray([[7.0] * 4], np.float32)}]
    assert examined(answer, recorded=recorded).batched
    assert set(np.concatenate(seen)[:, 0]) == {5.0, 6.0, 7.0}


# --- rows -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", SERVED_DTYPES)
def test_made_up_rows_are_plain_distinct_and_the_same_at_every_start(dtype: int) -> None:
    signature = one_to_one([-1, -1, 5], dtype=dtype)
    rows = [row["x"] for row in probe_rows(signature)]
    assert all(row.dtype == numpy_dtype(dtype) and row.shape == (1, 1, 5) for row in rows)
    again = [row["x"] for row in probe_rows(signature)]
    assert all(map(np.array_equal, rows, again))
    if dtype == STRING:
        assert all(value == b"" for row in rows for value in row.flat)
        return
    assert len({row.tobytes() for row in rows}) == 3
    values = np.concatenate(rows).astype(np.complex128)
    assert (values.real >= 0).all()
    assert (values.real <= 1).all()
    if numpy_dtype(dtype).kind in "iub":
        assert set(values.real.flat) == {0.0, 1.0}


def test_an_open_rank_is_probed_as_a_vector() -> None:
    assert probe_rows(one_to_one(None))[0]["x"].shape == (1,)


def test_rows_of_one_bit_are_as_distinct_as_they_can_be() -> None:
    rows = [bool(row["x"][0]) for row in probe_rows(one_to_one([-1], dtype=BOOL))]
    assert set(rows) == {False, True}


def test_single_rows_share_the_first_requests_shapes() -> None:
    requests = [{"x": np.zeros((1, 2))}, {"x": np.ones((1, 3))}, {"x": np.asarray([[0.0, 0.0], [4.0, 5.0]])}]
    assert [row["x"].tolist() for row in single_rows(requests)] == [[[0.0, 0.0]], [[4.0, 5.0]]]
    assert single_rows(requests[:2]) == []
    assert single_rows([{"x": np.asarray(3.0)}]) == []
    assert single_rows([]) == []


# --- equality ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "near", "far"),
    [
        (np.float16, 1.002, 1.1),
        (ml_dtypes.bfloat16, 1.02, 1.3),
        (np.float32, 1 + 1e-5, 1.001),
        (np.float64, 1 + 1e-10, 1 + 1e-6),
        (np.complex64, 1 + 1e-5j, 1 + 1e-2j),
        (np.int32, 1, 2),
        (np.bool_, True, False),
    ],
)
def test_answers_are_equal_within_the_tolerance_of_their_dtype(dtype: Any, near: Any, far: Any) -> None:
    one = np.asarray([1, 0]).astype(dtype)
    assert equal(one, np.asarray([near, 0]).astype(dtype))
    assert not equal(one, np.asarray([far, 0]).astype(dtype))


def test_equal_answers_may_have_nan_and_infinity_and_differ_by_noise_beside_large_values() -> None:
    one = np.asarray([np.nan, np.inf, 1000.0, 0.0], np.float32)
    assert equal(one, np.asarray([np.nan, np.inf, 1000.0, 1e-3], np.float32))
    assert not equal(one, np.asarray([0.0, np.inf, 1000.0, 0.0], np.float32))
    assert not equal(one, one[:3])


def test_strings_are_equal_only_if_they_are_the_same() -> None:
    assert equal(np.asarray([b"a"], object), np.asarray([b"a"], object))
    assert not equal(np.asarray([b"a"], object), np.asarray([b"b"], object))


# --- warming and the pool ---------------------------------------------------------------------------------------------

ROWS: list[Rows] = [{"x": np.full((1, 2), i, np.float32)} for i in range(3)]


class Timed:
    """Runs that take `seconds(pool, rows)` of a clock."""

    def __init__(self, seconds: Callable[[int, int], float]) -> None:
        self.clock = Clock()
        self.sizes: list[int] = []
        self._seconds = seconds

    def __call__(self, rows: Rows, pool: int) -> list[NDArray[Any]]:
        size = len(rows["x"])
        self.sizes.append(size)
        self.clock.now += self._seconds(pool, size)
        return [rows["x"]]

    def warm(self, sizes: Sequence[int], until: float, *, choose_pool: bool = True) -> tuple[int, str]:
        return warm(ROWS, sizes, self, choose_pool=choose_pool, until=until, clock=self.clock)


def test_a_narrow_graph_runs_in_the_executors_thread() -> None:
    run = Timed(lambda pool, _: 1.0 if pool == CALLER_THREAD else 3.0)
    assert run.warm((1, 64), 1000.0)[0] == CALLER_THREAD


def test_a_wide_graph_runs_in_tensorflows_pool() -> None:
    run = Timed(lambda pool, _: 9.0 if pool == CALLER_THREAD else 3.0)
    pool, text = run.warm((1, 64), 1000.0)
    assert pool == SHARED_POOL
    assert "9000000 against 3000000 us at 1" in text


def test_the_pool_is_chosen_over_the_smallest_and_the_largest_size() -> None:
    def seconds(pool: int, size: int) -> float:
        if size == 1:
            return 1.0 if pool == CALLER_THREAD else 1.5
        return 8.0 if pool == CALLER_THREAD else 2.0

    assert Timed(seconds).warm((1, 8, 64), 1000.0)[0] == SHARED_POOL
    assert Timed(seconds).warm((1,), 1000.0)[0] == CALLER_THREAD


def test_answers_that_differ_between_the_pools_leave_tensorflows() -> None:
    def run(rows: Rows, pool: int) -> list[NDArray[Any]]:
        return [rows["x"] + (pool == CALLER_THREAD)]

    pool, text = choose(ROWS, (1,), run, until=1000.0, clock=Clock())
    assert pool == SHARED_POOL
    assert text == "the answers differ in the executor's thread"


def test_a_configured_pool_is_left_alone() -> None:
    run = Timed(lambda pool, _: 1.0 if pool == CALLER_THREAD else 3.0)
    pool, text = run.warm((1, 8), 1000.0, choose_pool=False)
    assert pool == SHARED_POOL
    assert "as configured" in text
    assert run.sizes == [1, 8]


def test_sizes_that_would_not_fit_in_the_time_are_left_out_and_named() -> None:
    run = Timed(lambda _, size: float(size))
    _, text = run.warm((1, 8, 64), 20.0)
    assert 64 not in run.sizes
    assert text.startswith("warmed with 1, 8 rows")
    assert "out of time for 64" in text


def test_the_first_size_is_run_though_the_time_is_up() -> None:
    run = Timed(lambda _, size: float(size))
    _, text = run.warm((1, 8), 0.0)
    assert text.startswith("warmed with 1 rows")


def test_a_size_that_fails_ends_the_warm_up() -> None:
    def run(rows: Rows, _: int) -> list[NDArray[Any]]:
        if len(rows["x"]) > 1:
            raise InvalidArgument("too many rows\nin detail")
        return [rows["x"]]

    pool, text = warm(ROWS, (1, 8), run, choose_pool=True, until=1000.0, clock=Clock())
    assert pool == SHARED_POOL
    assert text == "not warmed with 8 rows: too many rows"


@pytest.mark.parametrize(
    ("largest", "sizes"), [(1, (1,)), (4, (1, 4)), (8, (1, 8)), (64, (1, 8, 64)), (100, (1, 8, 64, 100))]
)
def test_warm_sizes_end_with_the_largest(largest: int, sizes: tuple[int, ...]) -> None:
    assert warm_sizes(largest) == sizes


def test_an_unbatched_signature_is_warmed_with_a_request_of_its_own_size() -> None:
    sizes = []

    def answer(x: NDArray[Any]) -> NDArray[Any]:
        sizes.append(len(x))
        return x

    findings = examined(answer, one_to_one([2, 4]))
    assert set(sizes) == {2}
    assert findings.warm_up.startswith("warmed with 1 request in")


def test_complex_inputs_are_made_up_with_both_parts() -> None:
    row = probe_rows(one_to_one(dtype=COMPLEX64))[0]["x"]
    assert (row.real > 0).all()
    assert (row.imag > 0).all()


def test_a_model_of_numbers_and_text_has_distinct_rows() -> None:
    signature = _core.Signature(
        "f",
        [_core.TensorSpec("text", STRING, [-1], "t:0"), _core.TensorSpec("id", INT64, [-1, 4], "i:0")],
        [_core.TensorSpec("y", FLOAT, [-1], "y:0")],
    )
    assert len({row["id"].tobytes() for row in probe_rows(signature)}) == 3
