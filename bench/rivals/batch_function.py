# SPDX-License-Identifier: Apache-2.0
"""TensorFlow's own batching: tf.nondifferentiable_batch_function, called as rivals/session_callable.py calls a model.

It is spared the calls of functions that a saved signature has: its graph is a placeholder, the BatchFunction, and inside
that the two operations of the model.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.callers import Array, Entrance
from bench.rivals.session_callable import callable_of

SETTINGS = {
    "threads": [
        {"num_batch_threads": threads, "batch_timeout_micros": wait_us, "inter_op_thread_pool": pool}
        for threads, wait_us, pool in itertools.product((1, 2, 4), (0, 1000), (-1, 0))
    ]
}

MAX_BATCH_SIZE = 64
MAX_ENQUEUED_BATCHES = 64  # 4,096 rows, as Headrace's default


def prepare(_work: str, _model: Path) -> Any:
    import tensorflow as tf

    @contextmanager
    def open_one(num_batch_threads: int, batch_timeout_micros: int, inter_op_thread_pool: int) -> Iterator[Entrance]:
        with tf.Graph().as_default() as graph:
            x = tf.compat.v1.placeholder(tf.float32, [None], name="x")
            batched: Callable[..., Any] = tf.nondifferentiable_batch_function(
                num_batch_threads, MAX_BATCH_SIZE, batch_timeout_micros, max_enqueued_batches=MAX_ENQUEUED_BATCHES
            )(lambda rows: rows * 0.5 + 2.0)
            y = batched(x)
        with tf.compat.v1.Session(graph=graph) as session:
            call = callable_of(session, x.name, y.name, inter_op_thread_pool)

            def answer(row: Array) -> Array:
                result: Array = call(row)[0]
                return result

            yield Entrance(answer)

    return open_one
