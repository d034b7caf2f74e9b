# SPDX-License-Identifier: Apache-2.0
"""Headrace as embed.py measures it: a Batcher over the model, @batched over the function.  No setting is chosen for it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import headrace
from bench.callers import Array, Entrance, half_plus_two

SETTINGS: dict[str, list[dict[str, Any]]] = {"threads": [{}], "tasks": [{}]}


def prepare(work: str, model: Path) -> Any:
    return _model(model) if work == "model" else _function()


def _model(path: Path) -> Any:
    loaded = headrace.load(path)

    @contextmanager
    def open_one() -> Iterator[Entrance]:
        with headrace.Batcher(loaded) as batcher:
            predict, predict_async = batcher.predict, batcher.predict_async

            def call(row: Array) -> Array:
                return predict({"x": row})["y"]

            async def call_async(row: Array) -> Array:
                return (await predict_async({"x": row}))["y"]

            def counters() -> dict[str, float]:
                stats = batcher.stats()
                return {"rows_per_batch": stats["batch_rows"] / stats["batches"]}

            yield Entrance(call, call_async, counters)
        assert "tensorflow" not in sys.modules

    return open_one


def _function() -> Any:
    @contextmanager
    def open_one() -> Iterator[Entrance]:
        batched = headrace.batched(max_batch_size=64)(half_plus_two)
        try:
            yield Entrance(batched, batched.predict_async)
        finally:
            batched.close()

    return open_one
