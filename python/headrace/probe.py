# SPDX-License-Identifier: Apache-2.0
"""What a signature is like, found by running it before its first request: may its requests share batches, on which
threads its operations run best, and warm for the sizes to come."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace import _core
from headrace.errors import HeadraceError
from headrace.saved_model import ServingGraph
from headrace.tensor_proto import numpy_dtype

# Arrays by input name.
Rows = Mapping[str, NDArray[Any]]
# Runs a signature in one of the pools below; the outputs are in its order.  Raises HeadraceError.
Run = Callable[[Rows, int], list[NDArray[Any]]]
# Seconds of a monotonic clock.
Clock = Callable[[], float]

# RunOptions.inter_op_thread_pool: a run's operations in the thread that asked for it, or in TensorFlow's pool.
CALLER_THREAD = -1
SHARED_POOL = 0

PROBE_ROWS = 3
SEED = 20
WARM_SIZES = (1, 8, 64)
TIMED_RUNS = 5

# The pool has to be this much faster to be chosen: its threads also cost the executors processor time.
POOL_GAIN_LEAST = 1.1

# How far answers may be apart, as a share of the largest: batches of different sizes take different kernels.
TOLERANCES = {
    "float16": 1e-2,
    "bfloat16": 5e-2,
    "float32": 1e-4,
    "float64": 1e-8,
    "complex64": 1e-4,
    "complex128": 1e-8,
}


@dataclass(frozen=True)
class Findings:
    """What was found out about one signature; the texts are for the log.  `refusal`: the model failed on the rows."""

    batched: bool
    why: str
    pool: int
    warm_up: str
    refusal: HeadraceError | None = None


def examine(
    signature: _core.Signature,
    graph: ServingGraph,
    run: Run,
    *,
    max_batch_size: int,
    recorded: Sequence[Rows] = (),
    choose_pool: bool = True,
    warm_until: float = 0.0,
) -> Findings:
    """Decides whether requests of `signature` may share batches, chooses its pool and warms it.

    Only a stateful operation, a missing batch dimension or unequal answers speak against batching.  `recorded` are
    requests from a warm-up file, used in place of made-up rows.  Sizes are warmed and pools compared until the
    monotonic time `warm_until`; the rows that decide about batching are run in any case.
    """
    stateful = graph.stateful(graph.reachable_ops(signature))
    if stateful:
        return Findings(
            False, f"stateful: {', '.join(stateful)}", SHARED_POOL, "not warmed: a run may change its state"
        )
    why = undivided(signature)
    rows = single_rows(recorded) or probe_rows(signature)
    batched = not why
    try:
        if batched:
            why = difference(signature, rows, run)
            batched = not why
            why = why or "rows alone and together agree"
        else:
            run(rows[0], CALLER_THREAD)
    except HeadraceError as error:
        return Findings(batched, why or f"not probed: {first_line(error)}", SHARED_POOL, "not warmed", error)
    sizes = warm_sizes(max_batch_size) if batched else (1,)
    unit = "rows" if batched else "request"
    pool, warm_up = warm(rows, sizes, run, unit=unit, choose_pool=choose_pool, until=warm_until)
    return Findings(batched, why, pool, warm_up)


def first_line(error: HeadraceError) -> str:
    """TensorFlow's messages go on with the graph's innards."""
    return error.message.splitlines()[0] if error.message else type(error).__name__


def undivided(signature: _core.Signature) -> str:
    """Why its tensors, as declared, cannot be divided into rows, or ""."""
    if not signature.inputs:
        return "it has no inputs"
    for what, specs in (("input", signature.inputs), ("output", signature.outputs)):
        for spec in specs:
            if spec.shape is not None and (not spec.shape or spec.shape[0] != -1):
                return f'{what} "{spec.name}" has no batch dimension: {shape_text(spec.shape)}'
    return ""


def shape_text(shape: Sequence[int]) -> str:
    """As TensorFlow Serving writes shapes: [?,28,28]."""
    return f"[{','.join('?' if dim < 0 else str(dim) for dim in shape)}]"


def warm_sizes(max_batch_size: int) -> tuple[int, ...]:
    """1, 8, 64 and the largest."""
    return (*(size for size in WARM_SIZES if size < max_batch_size), max_batch_size)


def probe_rows(signature: _core.Signature) -> list[Rows]:
    """Rows that any model might take: floats in [0,1), integers and bools 0 or 1, empty strings, open dimensions 1.

    Each has a batch dimension of 1, or what the signature fixes.  They are the same at every start, and differ from
    each other where their dtypes allow.
    """
    random = np.random.default_rng(SEED)
    rows: list[Rows] = []
    seen: set[bytes] = set()
    attempts = 100
    while len(rows) < PROBE_ROWS and attempts > 0:
        attempts -= 1
        row = {spec.name: _made_up(spec, random) for spec in signature.inputs}
        content = b"".join(array.tobytes() for array in row.values() if array.dtype != np.object_)
        if content in seen and attempts > 0:
            continue
        seen.add(content)
        rows.append(row)
    return rows if len(rows) > 1 else rows * 2


def _made_up(spec: _core.TensorSpec, random: np.random.Generator) -> NDArray[Any]:
    shape = [1] if spec.shape is None else [1 if dim < 0 else dim for dim in spec.shape]
    dtype = numpy_dtype(spec.dtype)
    if dtype == np.object_:
        return np.full(shape, b"", dtype)
    if dtype.kind in "iub":
        return np.asarray(random.integers(0, 2, shape)).astype(dtype)
    values = np.asarray(random.random(shape))
    return (values + 1j * random.random(shape) if dtype.kind == "c" else values).astype(dtype)


def single_rows(requests: Sequence[Rows]) -> list[Rows]:
    """The first rows of recorded requests that have the shapes of the first request's; [] if that has fewer than 2."""
    rows: list[Rows] = []
    for request in requests:
        if any(array.ndim == 0 for array in request.values()):
            continue
        for i in range(min((len(array) for array in request.values()), default=0)):
            row = {name: array[i : i + 1] for name, array in request.items()}
            alike = not rows or all(row[name].shape == rows[0][name].shape for name in row)
            if alike and not any(all(np.array_equal(row[name], old[name]) for name in row) for old in rows):
                rows.append(row)
            if len(rows) == PROBE_ROWS:
                return rows
    return rows if len(rows) > 1 else []


def repeated(rows: Sequence[Rows], size: int) -> Rows:
    """A batch of `size` rows, over and over the same."""
    return {
        name: np.concatenate([rows[i % len(rows)][name] for i in range(size)]) if rows[0][name].ndim else array
        for name, array in rows[0].items()
    }


def difference(signature: _core.Signature, rows: Sequence[Rows], run: Run) -> str:
    """How the answers to rows together are not those to each alone, or ""."""
    alone = [run(row, CALLER_THREAD) for row in rows]
    together = run(repeated(rows, len(rows)), CALLER_THREAD)
    for i, spec in enumerate(signature.outputs):
        for answer, count in ((together[i], len(rows)), *((answers[i], 1) for answers in alone)):
            if answer.ndim == 0 or len(answer) != count:
                shape = shape_text(answer.shape)
                return f'output "{spec.name}" has no batch dimension: {shape} for {count} row{"s" * (count > 1)}'
        for k, answers in enumerate(alone):
            if not equal(answers[i], together[i][k : k + 1]):
                return f'output "{spec.name}" of a row changes with the rows beside it'
    return ""


def equal(a: NDArray[Any], b: NDArray[Any]) -> bool:
    """Whether two answers are the same within their dtype's tolerance."""
    if a.shape != b.shape:
        return False
    tolerance = TOLERANCES.get(a.dtype.name)
    if tolerance is None or a.size == 0:
        return bool(np.array_equal(a, b))
    wide = np.complex128 if a.dtype.kind == "c" else np.float64
    a, b = a.astype(wide), b.astype(wide)
    finite = np.abs(a[np.isfinite(a)])
    largest = float(finite.max()) if finite.size else 0.0
    return bool(np.allclose(a, b, rtol=tolerance, atol=tolerance * largest, equal_nan=True))


def warm(
    rows: Sequence[Rows],
    sizes: Sequence[int],
    run: Run,
    *,
    unit: str = "rows",
    choose_pool: bool,
    until: float,
    clock: Clock = time.monotonic,
) -> tuple[int, str]:
    """Runs the sizes in turn while there is time, then compares the pools; returns the pool and the text."""
    begin = clock()
    warmed: list[int] = []
    last_seconds = 0.0
    pool = CALLER_THREAD if choose_pool else SHARED_POOL
    try:
        for size in sizes:
            # A larger batch takes at most as many times longer as it is larger.
            expected = last_seconds * size / warmed[-1] if warmed else 0.0
            if warmed and clock() + expected > until:
                break
            started = clock()
            run(repeated(rows, size), pool)
            last_seconds = clock() - started
            warmed.append(size)
    except HeadraceError as error:
        return SHARED_POOL, f"not warmed with {size} {unit}: {first_line(error)}"
    skipped = [str(size) for size in sizes if size not in warmed]
    chosen, how = (
        choose(rows, sorted({warmed[0], warmed[-1]}), run, until=until, clock=clock)
        if choose_pool
        else (SHARED_POOL, "as configured")
    )
    text = f"warmed with {', '.join(map(str, warmed))} {unit} in {1e3 * (clock() - begin):.0f} ms"
    if skipped:
        text += f", out of time for {', '.join(skipped)}"
    threads = "the executor's thread" if chosen == CALLER_THREAD else "TensorFlow's pool"
    return chosen, f"{text}; operations run in {threads} ({how})"


def choose(
    rows: Sequence[Rows], sizes: Sequence[int], run: Run, *, until: float, clock: Clock = time.monotonic
) -> tuple[int, str]:
    """The pool that is faster at these sizes together, and how it was found.

    The caller's thread saves switching threads, the pool lets branches of a wide graph run at a time.
    """
    gain = 1.0
    texts = []
    for size in sizes:
        batch = repeated(rows, size)
        best = {CALLER_THREAD: float("inf"), SHARED_POOL: float("inf")}
        answers: dict[int, list[NDArray[Any]]] = {}
        for i in range(TIMED_RUNS):
            begin = clock()
            for pool, fastest in best.items():
                started = clock()
                answers[pool] = run(batch, pool)
                best[pool] = min(fastest, clock() - started)
            now = clock()
            if i > 0 and now + (now - begin) > until:
                break
        if not all(map(equal, answers[CALLER_THREAD], answers[SHARED_POOL])):
            return SHARED_POOL, "the answers differ in the executor's thread"
        gain *= best[CALLER_THREAD] / best[SHARED_POOL]
        micros = {pool: f"{1e6 * seconds:.0f}" for pool, seconds in best.items()}
        texts.append(f"{micros[CALLER_THREAD]} against {micros[SHARED_POOL]} us at {size}")
    return SHARED_POOL if gain > POOL_GAIN_LEAST else CALLER_THREAD, ", ".join(texts)
