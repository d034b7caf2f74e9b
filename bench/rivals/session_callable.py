# SPDX-License-Identifier: Apache-2.0
"""No batching: the model through TensorFlow's Session callable, as Headrace's Python executors call it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.callers import Array, Entrance

SETTINGS: dict[str, list[dict[str, Any]]] = {
    "threads": [{"inter_op_thread_pool": -1}, {"inter_op_thread_pool": 0}],
}


def callable_of(session: Any, feed: str, fetch: str, inter_op_thread_pool: int) -> Callable[[Array], list[Array]]:
    """A session's tensors by name, as a function."""
    from tensorflow.core.protobuf import config_pb2

    options = config_pb2.CallableOptions(feed=[feed], fetch=[fetch])
    options.run_options.inter_op_thread_pool = inter_op_thread_pool
    call: Callable[[Array], list[Array]] = session._make_callable_from_options(options)
    return call


def prepare(_work: str, model: Path) -> Any:
    import tensorflow as tf

    session = tf.compat.v1.Session(graph=tf.Graph())
    with session.graph.as_default():
        meta_graph = tf.compat.v1.saved_model.load(session, ["serve"], str(model))
    signature = meta_graph.signature_def["serving_default"]

    @contextmanager
    def open_one(inter_op_thread_pool: int) -> Iterator[Entrance]:
        call = callable_of(session, signature.inputs["x"].name, signature.outputs["y"].name, inter_op_thread_pool)

        def answer(row: Array) -> Array:
            return call(row)[0]

        yield Entrance(answer)

    return open_one
