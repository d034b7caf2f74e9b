# SPDX-License-Identifier: Apache-2.0
"""The floor under a Batcher: the model called directly through a session of Headrace's own, unbatched."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import headrace
from bench.callers import Array, Entrance
from headrace import _core
from headrace.model import library_path
from headrace.proto import message_class

SETTINGS: dict[str, list[dict[str, Any]]] = {"threads": [{}]}


def prepare(_work: str, model: Path) -> Any:
    loaded = headrace.load(model)
    session = _core.TensorFlow(str(library_path())).load_saved_model(str(loaded.path), ["serve"], loaded.config)
    signature = loaded.signatures["serving_default"].signature
    feed, fetches = signature.inputs[0].tensor_name, [signature.outputs[0].tensor_name]
    run_options = message_class("tensorflow.RunOptions")(inter_op_thread_pool=-1).SerializeToString()

    @contextmanager
    def open_one() -> Iterator[Entrance]:
        def call(row: Array) -> Array:
            return session.run({feed: row}, fetches, run_options)[0]

        yield Entrance(call)

    return open_one
