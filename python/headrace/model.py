# SPDX-License-Identifier: Apache-2.0
"""A SavedModel, loaded: its signatures with their runners, checked and warm.

TensorFlow is found and loaded as a native library; its Python package is imported only by `python_callable` and
`LoadedModel.python_callable`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from headrace import _core

# Arrays by input name to arrays in the order of the signature's outputs.
PythonCallable = Callable[[Mapping[str, NDArray[Any]]], list[NDArray[Any]]]


@dataclass(frozen=True)
class LoadedSignature:
    """One signature that can be served.

    `batched` says whether requests may share a batch and `why` gives the reason in words, for the log and the
    metrics; `warm_up` says in words what was run before the first request.
    """

    signature: _core.Signature
    runner: _core.Runner
    batched: bool
    why: str
    warm_up: str


@dataclass(frozen=True)
class LoadedModel:
    """One version of a model.  `log_lines` tell in words what loading found, for the start-up log."""

    name: str
    version: int
    path: Path
    signatures: Mapping[str, LoadedSignature]
    devices: tuple[str, ...]  # "CPU:0", "GPU:0"
    gpu: bool
    pinner: _core.SlabPinner | None  # for its lanes; only with a GPU
    log_lines: tuple[str, ...]

    def python_callable(self, signature_name: str) -> PythonCallable:
        """The signature as a function through TensorFlow's Python package, which this imports: the reference.

        The function takes the arrays of a batch by input name and gives the outputs in the signature's order.  It
        raises HeadraceError with TensorFlow's code and message.
        """
        raise NotImplementedError


def load(
    path: str | os.PathLike[str],
    *,
    name: str | None = None,
    max_batch_size: int = 64,
    per_process_gpu_memory_fraction: float = 0.0,
    intra_op_parallelism: int = 0,
    inter_op_parallelism: int = 0,
    enable_batching_for: Collection[str] = (),
    warm_up_seconds: float = 0.4,
) -> LoadedModel:
    """Loads a version directory, or the highest of the numbered versions in `path`, and readies it for requests.

    `name` defaults to the last directory in `path` that is not a number.  `max_batch_size` is the largest size to
    warm.  The parallelism and memory options go to TensorFlow as they are; an `inter_op_parallelism` of 0 lets every
    signature choose.  Signatures in `enable_batching_for` are batched whatever was found out about them.
    `warm_up_seconds` bounds what is run before the first request, not counting a first run of each signature.

    Raises NotFound, PermissionDenied, InvalidArgument or FailedPrecondition with one line that says what is wrong
    with the path, the model or the installed TensorFlow.
    """
    raise NotImplementedError
