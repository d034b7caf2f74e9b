# SPDX-License-Identifier: Apache-2.0
"""A SavedModel, loaded: its signatures with their runners, checked and warm.

TensorFlow is found and loaded as a native library; its Python package is imported only by
`LoadedModel.python_callable`.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import os
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace import _core, proto
from headrace.errors import FailedPrecondition, HeadraceError, InvalidArgument, from_status
from headrace.probe import SHARED_POOL, Rows, examine
from headrace.recorded import inputs_of, read_requests
from headrace.saved_model import PYTHON_OPS, SERVE_TAG, find_version, read_graph

# Arrays by input name to arrays in the order of the signature's outputs.
PythonCallable = Callable[[Mapping[str, NDArray[Any]]], list[NDArray[Any]]]

LIBRARY = "libtensorflow_cc.so.2"
VARIABLES = "variables/variables.index"
INSTALL = "install it with: pip install tensorflow"


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
    origin: LoadedModel = field(repr=False)  # without signatures, so that neither keeps the other alive

    @property
    def model(self) -> LoadedModel:
        """Its model, with this signature alone."""
        return dataclasses.replace(self.origin, signatures={self.signature.name: self})


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
    config: bytes = field(repr=False)  # the session's ConfigProto
    signature_defs: bytes = field(repr=False)  # a serialized SignatureDefMap: what GetModelMetadata tells
    process: int = field(default_factory=os.getpid, repr=False)

    def check_process(self) -> None:
        """Raises FailedPrecondition in a forked child: TensorFlow's threads have stayed with the parent."""
        if os.getpid() != self.process:
            raise FailedPrecondition(
                f"model {self.name} was loaded by process {self.process}, and TensorFlow's threads stayed there when"
                f" process {os.getpid()} was forked: load it after the fork"
            )

    def python_callable(self, signature_name: str) -> PythonCallable:
        """The signature as a function through TensorFlow's Python package, which this imports: the reference.

        The function takes the arrays of a batch by input name and gives the outputs in the signature's order.  It
        raises HeadraceError with TensorFlow's code and message.
        """
        return _python_callable(self.path, self.config, self.signatures[signature_name].signature)


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
    `warm_up_seconds` bounds what is run before the first request, not counting the rows that decide about batching.

    Raises NotFound, PermissionDenied, InvalidArgument or FailedPrecondition with one line that says what is wrong
    with the path, the model or the installed TensorFlow.
    """
    begin = time.monotonic()
    found = find_version(path, name)
    graph = read_graph(found.directory)
    served, unserved = graph.signatures()
    where = f"{found.directory}"
    unknown = sorted(set(enable_batching_for) - {signature.name for signature in served})
    if unknown:
        raise InvalidArgument(f'{where}: batching was enabled for "{unknown[0]}", which is none of its signatures')
    for signature in served:
        refused = graph.reachable_ops(signature) & PYTHON_OPS
        if refused:
            raise FailedPrecondition(
                f'{where}: signature "{signature.name}" calls back into Python ({", ".join(sorted(refused))}:'
                " tf.py_function or tf.numpy_function), which only the process that exported it can do"
            )
    if not served:
        why = "; ".join(f'"{other.name}": {other.why}' for other in unserved) or "it has none"
        raise FailedPrecondition(f"{where}: no signature can be served: {why}")

    requests = read_requests(found.directory)
    tensorflow = _tensorflow()
    config = _config(
        per_process_gpu_memory_fraction=per_process_gpu_memory_fraction,
        intra_op_parallelism=intra_op_parallelism,
        inter_op_parallelism=inter_op_parallelism,
    )
    try:
        session = tensorflow.load_saved_model(str(found.directory), [SERVE_TAG], config)
        devices = tensorflow.list_devices(session)
    except _core.StatusError as error:
        raise _told(error, f"{where}: TensorFlow cannot load it") from None
    gpu = any(kind == "GPU" for _, kind in devices)
    pinner = _core.SlabPinner()
    seconds = time.monotonic() - begin
    lines = [
        f"{found.name} version {found.version}: {where}, TensorFlow {tensorflow.version}, loaded in {seconds:.2f} s",
        _devices_line(devices, pinner),
        *(f"{found.name}/{other.name} is not served: {other.why}" for other in unserved),
    ]

    origin = LoadedModel(
        name=found.name,
        version=found.version,
        path=found.directory,
        signatures={},
        devices=tuple(device.rpartition("device:")[2] for device, _ in devices),
        gpu=gpu,
        pinner=pinner if gpu and pinner.available else None,
        log_lines=(),
        config=config,
        signature_defs=graph.signature_defs(),
    )
    warm_until = time.monotonic() + warm_up_seconds
    signatures = {}
    for signature in served:
        try:
            findings = examine(
                signature,
                graph,
                functools.partial(_run, session, signature),
                max_batch_size=max_batch_size,
                recorded=inputs_of(requests, signature),
                choose_pool=inter_op_parallelism == 0,
                warm_until=warm_until,
            )
            runner = session.runner(signature, _run_options(findings.pool))
        except _core.StatusError as error:
            raise _told(error, f'{where}: signature "{signature.name}"') from None
        # TensorFlow loads a model whose variables were left behind, and fails only when it reads them.
        if isinstance(findings.refusal, FailedPrecondition) and not (found.directory / VARIABLES).exists():
            raise FailedPrecondition(f"{where}: broken, {VARIABLES} is missing; copy the whole directory")
        batched, why = findings.batched, findings.why
        if not batched and signature.name in enable_batching_for:
            batched, why = True, f"enable_batching_for was set, though {why}"
        signatures[signature.name] = LoadedSignature(signature, runner, batched, why, findings.warm_up, origin)
        verdict = "batched" if batched else "not batched"
        lines.append(f"{found.name}/{signature.name}: {verdict}: {why}; {findings.warm_up}")
    return dataclasses.replace(origin, signatures=signatures, log_lines=tuple(lines))


def library_path() -> Path:
    """The installed TensorFlow's library, found without importing it.  Raises FailedPrecondition."""
    spec = importlib.util.find_spec("tensorflow")
    if spec is None or not spec.submodule_search_locations:
        raise FailedPrecondition(f"TensorFlow is not installed; {INSTALL}")
    for location in spec.submodule_search_locations:
        library = Path(location, LIBRARY)
        if library.exists():
            return library
    raise FailedPrecondition(f"no {LIBRARY} in {location}; TensorFlow 2.16 or newer is needed; {INSTALL}")


@functools.cache
def _tensorflow() -> _core.TensorFlow:
    path = library_path()
    try:
        return _core.TensorFlow(str(path))
    except _core.StatusError as error:
        raise from_status(error.code, error.message) from None


def _config(*, per_process_gpu_memory_fraction: float, intra_op_parallelism: int, inter_op_parallelism: int) -> bytes:
    """The ConfigProto, as TensorFlow Serving's flags make it."""
    config = proto.message_class("tensorflow.ConfigProto")(
        intra_op_parallelism_threads=intra_op_parallelism,
        inter_op_parallelism_threads=inter_op_parallelism,
        allow_soft_placement=True,
    )
    config.gpu_options.allow_growth = True
    config.gpu_options.per_process_gpu_memory_fraction = per_process_gpu_memory_fraction
    return bytes(config.SerializeToString())


@functools.cache
def _run_options(pool: int) -> bytes:
    options = proto.message_class("tensorflow.RunOptions")(inter_op_thread_pool=pool)
    return bytes(options.SerializeToString())


def _run(session: _core.Session, signature: _core.Signature, rows: Rows, pool: int) -> list[NDArray[Any]]:
    feeds = {spec.tensor_name: rows[spec.name] for spec in signature.inputs}
    fetches = [spec.tensor_name for spec in signature.outputs]
    try:
        return session.run(feeds, fetches, _run_options(pool))
    except _core.StatusError as error:
        raise from_status(error.code, error.message) from None


def _told(error: _core.StatusError, what: str) -> HeadraceError:
    """The error in one line; TensorFlow's messages go on with the graph's innards."""
    return from_status(error.code, f"{what}: {error.message.partition(chr(10))[0]}")


def _devices_line(devices: list[tuple[str, str]], pinner: _core.SlabPinner) -> str:
    gpus = [name.rpartition("device:")[2] for name, kind in devices if kind == "GPU"]
    if gpus:
        pinned = "slabs are pinned" if pinner.available else f"slabs are not pinned ({pinner.reason})"
        return f"running on {', '.join(gpus)}; {pinned}"
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        reason = "CUDA_VISIBLE_DEVICES hides them"
    elif not pinner.available:
        reason = pinner.reason
    else:
        reason = "TensorFlow's CUDA libraries are missing: pip install tensorflow[and-cuda]"
    return f"no GPU found: running on CPU ({reason})"


def _python_callable(path: Path, config: bytes, signature: _core.Signature) -> PythonCallable:
    import tensorflow as tf
    from tensorflow.core.protobuf import config_pb2

    session = _python_session(path, config)
    inputs = {spec.tensor_name: spec.name for spec in signature.inputs}
    # A tensor that is fed cannot be fetched as well.
    fetches = list(dict.fromkeys(spec.tensor_name for spec in signature.outputs if spec.tensor_name not in inputs))
    options = config_pb2.CallableOptions(feed=list(inputs), fetch=fetches)
    options.run_options.inter_op_thread_pool = SHARED_POOL
    call = session._make_callable_from_options(options)

    def run(arrays: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
        try:
            answers = call(*(arrays[name] for name in inputs.values())) if fetches else []
        except tf.errors.OpError as error:
            raise from_status(error.error_code, error.message) from None
        by_tensor = dict(zip(fetches, answers, strict=True))
        return [
            np.asarray(
                by_tensor[spec.tensor_name] if spec.tensor_name in by_tensor else arrays[inputs[spec.tensor_name]]
            )
            for spec in signature.outputs
        ]

    return run


@functools.lru_cache(maxsize=1)
def _python_session(path: Path, config: bytes) -> Any:
    import tensorflow as tf

    parsed = tf.compat.v1.ConfigProto.FromString(config)
    session = tf.compat.v1.Session(graph=tf.Graph(), config=parsed)
    with session.graph.as_default():
        tf.compat.v1.saved_model.load(session, [SERVE_TAG], str(path))
    return session
