# SPDX-License-Identifier: Apache-2.0
"""SavedModels that bench/server.py serves, beside those of the tests, and what NumPy says that they answer.

python -m bench.models ROOT NAME...     writes ROOT/NAME/1, in a process of its own for TensorFlow's sake
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.models import main, maker, save

IMAGE = (224, 224, 3)

Array = NDArray[np.float32]


@dataclass(frozen=True)
class Model:
    """`answer` computes "y" of "x", whose rows have `shape`."""

    shape: tuple[int, ...]
    answer: Callable[[Array], Array]


def mlp_weights() -> list[Array]:
    """Of 784-256-10."""
    random = np.random.default_rng(1)
    return [(random.standard_normal((a, b)) * a**-0.5).astype(np.float32) for a, b in ((784, 256), (256, 10))]


def mlp_answer(x: Array) -> Array:
    hidden, output = mlp_weights()
    scores = np.maximum(x @ hidden, 0) @ output
    exponents = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(exponents / exponents.sum(axis=1, keepdims=True), dtype=np.float32)


MODELS = {
    "half_plus_two": Model((), lambda x: x * np.float32(0.5) + np.float32(2)),
    "mlp": Model((784,), mlp_answer),
    "corner": Model(IMAGE, lambda x: x[:, 0, 0, :]),
    "image": Model(IMAGE, lambda x: x),
}


@maker
def mlp(directory: Path) -> None:
    """784-256-10 with weights in variables."""
    import tensorflow as tf

    w = [tf.Variable(each) for each in mlp_weights()]

    def call(x: Any) -> Any:
        return {"y": tf.nn.softmax(tf.nn.relu(x @ w[0]) @ w[1])}

    save(directory, {"serving_default": (call, {"x": ([None, 784], "float32")})}, w=w)


@maker
def corner(directory: Path) -> None:
    """One pixel of an image: a large request and a small reply."""
    save(directory, {"serving_default": (lambda x: {"y": x[:, 0, 0, :]}, {"x": ([None, *IMAGE], "float32")})})


@maker
def image(directory: Path) -> None:
    """An image as it came: a large request and a large reply."""
    import tensorflow as tf

    save(directory, {"serving_default": (lambda x: {"y": tf.identity(x)}, {"x": ([None, *IMAGE], "float32")})})


if __name__ == "__main__":
    main(sys.argv[1:])
