# SPDX-License-Identifier: Apache-2.0
"""A Python function next to a SavedModel, on one port, for clients of TensorFlow Serving.

    make demo KEEP=1                                 # trains a model and leaves it in models/digits
    python examples/serve_both.py models/digits

`digits` is the model as it is; `images` takes the pixels of 8 x 8 images, and gives the digit and how sure the model is.
Its requests are gathered first, so the model behind it is called once for each of its batches.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

import headrace

WHITE = 255


def main(path: str = "models/digits", port: str = "8500") -> None:
    logging.basicConfig(level=logging.INFO, format="%(message)s")  # what the server has to say
    model = headrace.load(path)
    digits = headrace.Batcher(model)

    @headrace.batched(max_batch_size=32)
    def images(pixels: NDArray[np.uint8]) -> dict[str, NDArray[Any]]:
        """`pixels` is uint8 [rows, 8, 8]."""
        if pixels.dtype != np.uint8 or pixels.shape[1:] != (8, 8):
            raise headrace.InvalidArgument(f"pixels: want uint8 [rows,8,8], got {pixels.dtype} {list(pixels.shape)}")
        x = pixels.reshape(-1, 64).astype(np.float32) / WHITE
        probabilities = digits.predict({"x": x})["probabilities"]
        return {"digit": probabilities.argmax(axis=1), "probability": probabilities.max(axis=1)}

    with (
        digits,
        contextlib.closing(images),
        headrace.Server({"digits": model, "images": images}, port=int(port)) as server,
        contextlib.suppress(KeyboardInterrupt),
    ):
        server.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
