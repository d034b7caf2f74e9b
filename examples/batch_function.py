# SPDX-License-Identifier: Apache-2.0
"""A Python function under asyncio: a thousand tasks look up one vector each, and the function gets them in batches.

Run it as it is: python examples/batch_function.py
"""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
from numpy.typing import NDArray

import headrace

SEARCHES = 1_000

random = np.random.default_rng(seed=1)
known = random.standard_normal((10_000, 128), np.float32)
known /= np.linalg.norm(known, axis=1, keepdims=True)


@headrace.batched(max_batch_size=256)
def nearest(vector: NDArray[np.float32]) -> dict[str, NDArray[Any]]:
    """The known vectors that are most alike; `vector` is [rows, 128], the rows of all who ask at the time."""
    cosines = vector @ known.T  # one product of two matrices, where every search alone would read all of `known`
    best = cosines.argmax(axis=1)
    return {"index": best, "cosine": cosines.max(axis=1)}


async def find(index: int) -> bool:
    """Whether a known vector is found again that noise was added to."""
    noise = random.standard_normal((1, 128), np.float32) * 0.05
    answer = await nearest.predict_async(known[index : index + 1] + noise)
    return bool(answer["index"][0] == index)


async def main() -> None:
    found = await asyncio.gather(*(find(index) for index in range(SEARCHES)))
    print(f"{sum(found)} of {SEARCHES} found, in {nearest.stats()['batches']} calls of the function")


if __name__ == "__main__":
    asyncio.run(main())
    nearest.close()
