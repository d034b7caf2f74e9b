# SPDX-License-Identifier: Apache-2.0
"""Closed loops of 1-row calls in one process: threads or asyncio tasks that call again as soon as they are answered.

Every answer is checked.  What the loops themselves cost is in every figure, and is what a `floor` contestant measures.
"""

from __future__ import annotations

import asyncio
import itertools
import resource
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

WARM_UP_S = 0.3
ROWS_OF_A_CALLER = 16


@dataclass(frozen=True)
class Entrance:
    """How a contestant is called: with an array of shape (1,), which it answers with one of shape (1,) or a scalar."""

    call: Callable[[Array], Array] | None = None
    call_async: Callable[[Array], Awaitable[Array]] | None = None
    counters: Callable[[], Mapping[str, float]] = field(default=dict)  # what else it can tell, since it was opened


def half_plus_two(x: Array) -> Array:
    """The function that is batched, the same as the model of this name."""
    result: Array = x * np.float32(0.5) + np.float32(2.0)
    return result


def measure(entrance: Entrance, callers: str, count: int, seconds: float) -> dict[str, float]:
    """Calls from `count` "threads" or "tasks" for so long, after a warm-up.  Raises ValueError for a wrong answer."""
    if callers == "threads":
        assert entrance.call is not None
        _from_threads(entrance.call, count, WARM_UP_S)
        return _from_threads(entrance.call, count, seconds)
    assert entrance.call_async is not None
    return asyncio.run(_warm_and_measured(entrance.call_async, count, seconds))


def _from_threads(call: Callable[[Array], Array], count: int, seconds: float) -> dict[str, float]:
    latencies_s: list[list[float]] = [[] for _ in range(count)]
    errors: list[BaseException] = []
    everybody = threading.Barrier(count + 1)
    until = 0.0

    def run(caller: int) -> None:
        rows = itertools.cycle(_rows(caller))
        mine = latencies_s[caller]
        everybody.wait()
        try:
            begin = time.perf_counter()
            for row, expected in rows:
                answer = call(row)
                if answer.item() != expected:
                    raise ValueError(f"{row} was answered with {answer}, not {expected}")
                end = time.perf_counter()
                mine.append(end - begin)
                if end >= until:
                    break
                begin = end
        except BaseException as error:  # noqa: BLE001  of a thread: raised again below
            errors.append(error)

    threads = [threading.Thread(target=run, args=(caller,), daemon=True) for caller in range(count)]
    for thread in threads:
        thread.start()
    before = _used()
    begin = time.perf_counter()
    until = begin + seconds
    everybody.wait()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return _figures(latencies_s, time.perf_counter() - begin, before, _used())


async def _warm_and_measured(call: Callable[[Array], Awaitable[Array]], count: int, seconds: float) -> dict[str, float]:
    await _from_tasks(call, count, WARM_UP_S)
    return await _from_tasks(call, count, seconds)


async def _from_tasks(call: Callable[[Array], Awaitable[Array]], count: int, seconds: float) -> dict[str, float]:
    latencies_s: list[list[float]] = [[] for _ in range(count)]
    before = _used()
    start = time.perf_counter()
    until = start + seconds

    async def run(caller: int) -> None:
        rows = itertools.cycle(_rows(caller))
        mine = latencies_s[caller]
        begin = time.perf_counter()
        for row, expected in rows:
            answer = await call(row)
            if answer.item() != expected:
                raise ValueError(f"{row} was answered with {answer}, not {expected}")
            end = time.perf_counter()
            mine.append(end - begin)
            if end >= until:
                break
            begin = end

    await asyncio.gather(*(run(caller) for caller in range(count)))
    return _figures(latencies_s, time.perf_counter() - start, before, _used())


def _rows(caller: int) -> list[tuple[Array, float]]:
    """Rows that no other caller has, with their answers."""
    numbers = [float(caller * ROWS_OF_A_CALLER + i) for i in range(ROWS_OF_A_CALLER)]
    return [(np.array([number], np.float32), number * 0.5 + 2.0) for number in numbers]


def _used() -> resource.struct_rusage:
    return resource.getrusage(resource.RUSAGE_SELF)


def _figures(
    latencies_s: list[list[float]], seconds: float, before: resource.struct_rusage, after: resource.struct_rusage
) -> dict[str, float]:
    ordered_us = 1e6 * np.sort(np.concatenate([np.array(mine) for mine in latencies_s]))
    calls = len(ordered_us)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    switches = after.ru_nvcsw + after.ru_nivcsw - before.ru_nvcsw - before.ru_nivcsw
    return {
        "calls": calls,
        "calls_per_s": calls / seconds,
        "p50_us": float(ordered_us[calls // 2]),
        "p99_us": float(ordered_us[int(0.99 * calls)]),
        "max_us": float(ordered_us[-1]),
        "cpu_us_per_call": 1e6 * cpu_s / calls,
        "switches_per_call": switches / calls,
    }
