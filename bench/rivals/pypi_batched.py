# SPDX-License-Identifier: Apache-2.0
"""The package `batched`: a thread, or a task, that sleeps for a fixed time, then runs what has come.

Its items are arrays of one row; the function joins them, which is less work for it than its `inference` variant.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import batched
import numpy as np

from bench.callers import Array, Entrance, half_plus_two

BATCH_SIZE = 64
TIMEOUTS_MS = (5.0, 1.0, 0.1, 0.0)  # 5 is its default; with 0 it looks without pause

SETTINGS = {
    "threads": [{"kind": "thread", "timeout_ms": timeout} for timeout in TIMEOUTS_MS],
    "tasks": [
        {"kind": kind, "timeout_ms": timeout} for kind, timeout in itertools.product(("thread", "aio"), TIMEOUTS_MS)
    ],
}


def joined(rows: list[Array]) -> list[Array]:
    return list(half_plus_two(np.concatenate(rows)))


async def joined_async(rows: list[Array]) -> list[Array]:
    return joined(rows)


def prepare(_work: str, _model: Path) -> Any:
    @contextmanager
    def open_one(kind: str, timeout_ms: float) -> Iterator[Entrance]:
        if kind == "aio":
            # As a coroutine function, or it would pay for a thread of its own in every batch.
            yield Entrance(
                call_async=batched.aio.dynamically(joined_async, batch_size=BATCH_SIZE, timeout_ms=timeout_ms)
            )
            return
        processor = batched.dynamically(joined, batch_size=BATCH_SIZE, timeout_ms=timeout_ms)
        try:
            yield Entrance(processor, processor.acall)
        finally:
            processor.shutdown()

    return open_one
