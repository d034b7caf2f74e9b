# SPDX-License-Identifier: Apache-2.0
"""No batching: the function itself, and from a task one turn of the event loop before it.  What the loops cost."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.callers import Array, Entrance, half_plus_two

SETTINGS: dict[str, list[dict[str, Any]]] = {"threads": [{}], "tasks": [{}]}


async def after_a_turn(row: Array) -> Array:
    await asyncio.sleep(0)
    return half_plus_two(row)


def prepare(_work: str, _model: Path) -> Any:
    @contextmanager
    def open_one() -> Iterator[Entrance]:
        yield Entrance(half_plus_two, after_a_turn)

    return open_one
