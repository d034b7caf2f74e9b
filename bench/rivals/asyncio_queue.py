# SPDX-License-Identifier: Apache-2.0
"""What one writes first under asyncio: a queue, a task that empties it, a future for each call."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from bench.callers import Array, Entrance, half_plus_two
from bench.rivals import session_callable

SETTINGS = {"tasks": [{"in_thread": False}, {"in_thread": True}]}

BATCH_SIZE = 64


class QueueBatcher:
    """Batches the calls of one event loop; `in_thread` keeps the loop free while the function runs."""

    def __init__(self, function: Callable[[Array], Array], *, in_thread: bool) -> None:
        self._function = function
        self._in_thread = in_thread
        self._queue: asyncio.Queue[tuple[Array, asyncio.Future[Array]]] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

    async def call(self, row: Array) -> Array:
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        future: asyncio.Future[Array] = asyncio.get_running_loop().create_future()
        self._queue.put_nowait((row, future))
        return await future

    async def _run(self) -> None:
        while True:
            batch = [await self._queue.get()]
            with contextlib.suppress(asyncio.QueueEmpty):
                while len(batch) < BATCH_SIZE:
                    batch.append(self._queue.get_nowait())
            rows = np.concatenate([row for row, _ in batch])
            answers = await asyncio.to_thread(self._function, rows) if self._in_thread else self._function(rows)
            for answer, (_, future) in zip(answers, batch, strict=True):
                future.set_result(answer)


def prepare(work: str, model: Path) -> Any:
    open_model = session_callable.prepare(work, model) if work == "model" else None

    @contextmanager
    def open_one(in_thread: bool) -> Iterator[Entrance]:
        if open_model is None:
            yield Entrance(call_async=QueueBatcher(half_plus_two, in_thread=in_thread).call)
            return
        with open_model(inter_op_thread_pool=-1) as opened:
            yield Entrance(call_async=QueueBatcher(opened.call, in_thread=in_thread).call)

    return open_one
