# SPDX-License-Identifier: Apache-2.0
"""The messages that `headrace bench` sends, and whether those that answer them are right."""

from __future__ import annotations

import urllib.parse
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from headrace import _core, proto
from headrace.errors import Internal, InvalidArgument, Unavailable, from_status
from headrace.predictor import GET_MODEL_METADATA, PREDICT, Target
from headrace.tensor_proto import SERVED_DTYPES, STRING, array_of, numpy_dtype, write_array
from headrace.tools.bench_options import BenchOptions

# Requests with random data are sent in turn; more of them would be no different.
RANDOM_MESSAGES_MAX = 16
RANDOM_BYTES_MAX = 64 << 20

# Small enough for a vocabulary, a class or a count.
RANDOM_INTEGER_MAX = 9

# Answers one message with another.  Raises HeadraceError.
Ask = Callable[[str, bytes], bytes]


def asker(options: BenchOptions) -> Ask:
    """Sends one message alone and returns its answer."""

    def ask(path: str, message: bytes) -> bytes:
        host, port = options.address
        client = _core.BenchClient(
            host, port, path, [message], requests=1, patience=options.patience, keep_answers=True
        )
        try:
            client.start()
            while not client.wait_for(0.1):
                pass
        except _core.StatusError as error:
            raise from_status(error.code, error.message) from None
        report = client.take_report()
        for code, text in report.texts.items():
            raise from_status(code, urllib.parse.unquote(text, errors="replace"))
        if not report.answers:
            raise Unavailable(report.status[1])
        return report.answers[0][0][0]

    return ask


def messages_for(options: BenchOptions, ask: Ask) -> list[bytes]:
    """What the options say: files as they are, .npz files as PredictRequests, or random data for the signature.

    Raises HeadraceError: InvalidArgument for files that do not fit, and what the server says of the model.
    """
    if options.message:
        return [_read(path) for path in options.message]
    if options.npz:
        return [message for path in options.npz for message in _npz_messages(path, options)]
    return _random_messages(_signature_inputs(options, ask), options)


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InvalidArgument(f"{path}: {error.strerror}") from None


def predict_message(inputs: Mapping[str, NDArray[Any]], options: BenchOptions) -> bytes:
    """A PredictRequest."""
    request = proto.message_class("tensorflow.serving.PredictRequest")()
    Target(options.model_name, options.model_version, options.signature_name).write(request.model_spec, signature=True)
    for name, array in inputs.items():
        write_array(array, request.inputs[name], f'input "{name}"')
    return bytes(request.SerializeToString())


def _npz_messages(path: str, options: BenchOptions) -> list[bytes]:
    """One message of the whole file, or one for each so many rows."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            inputs = {name: arrays[name] for name in arrays.files}
    except (OSError, ValueError, AttributeError, zipfile.BadZipFile) as error:
        raise InvalidArgument(f"{path}: not an .npz file of arrays: {error}") from None
    if options.rows is None:
        return [predict_message(inputs, options)]
    rows = {array.shape[0] if array.ndim else 0 for array in inputs.values()}
    if len(rows) != 1 or min(rows) < options.rows:
        raise InvalidArgument(f"{path}: its arrays have {sorted(rows)} rows; they cannot be cut into {options.rows}")
    starts = range(0, min(rows) - options.rows + 1, options.rows)
    return [
        predict_message({name: array[start : start + options.rows] for name, array in inputs.items()}, options)
        for start in starts
    ]


# --- random data for a signature --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class InputSpec:
    """An input as the server's metadata has it; `shape` is None for an open rank, and has -1 for open dimensions."""

    name: str
    dtype: int
    shape: tuple[int, ...] | None


def _signature_inputs(options: BenchOptions, ask: Ask) -> list[InputSpec]:
    request = proto.message_class("tensorflow.serving.GetModelMetadataRequest")(metadata_field=["signature_def"])
    Target(options.model_name, options.model_version, "").write(request.model_spec, signature=False)
    answer = ask(GET_MODEL_METADATA, bytes(request.SerializeToString()))
    try:
        response = proto.message_class("tensorflow.serving.GetModelMetadataResponse").FromString(answer)
        packed = response.metadata["signature_def"].value
        definitions = proto.message_class("tensorflow.serving.SignatureDefMap").FromString(packed).signature_def
    except DecodeError:
        raise Internal("the server's answer is no GetModelMetadataResponse") from None
    name = options.signature_name or "serving_default"
    if name not in definitions:
        raise InvalidArgument(f"signature_name is {name!r}; the model has {', '.join(sorted(definitions))}")
    inputs = definitions[name].inputs
    return [_input_spec(each, inputs[each]) for each in sorted(inputs)]


def _input_spec(name: str, info: Any) -> InputSpec:
    open_rank = info.tensor_shape.unknown_rank
    return InputSpec(name, info.dtype, None if open_rank else tuple(dim.size for dim in info.tensor_shape.dim))


def _random_messages(inputs: Sequence[InputSpec], options: BenchOptions) -> list[bytes]:
    random = np.random.default_rng(options.seed)
    messages: list[bytes] = []
    while len(messages) < RANDOM_MESSAGES_MAX:
        arrays = {spec.name: random_array(spec, options, random) for spec in inputs}
        messages.append(predict_message(arrays, options))
        if (len(messages) + 1) * len(messages[-1]) > RANDOM_BYTES_MAX:
            break
    return messages


def random_array(spec: InputSpec, options: BenchOptions, random: np.random.Generator) -> NDArray[Any]:
    """Of the input's dtype and shape: floats from 0 to 1, integers from 0 to 9 (uint8: to 255), strings of 8 letters."""
    shape = _shape(spec, options)
    if spec.dtype not in SERVED_DTYPES:
        raise InvalidArgument(f'input "{spec.name}" takes any dtype or one that is not served; give --npz=FILE')
    dtype = numpy_dtype(spec.dtype)
    if spec.dtype == STRING:
        letters = random.integers(ord("a"), ord("z") + 1, size=(*shape, 8), dtype=np.uint8)
        return letters.view("S8").reshape(shape).astype(np.object_)
    if dtype.kind == "b":
        return random.integers(0, 2, size=shape).astype(dtype)
    if dtype.kind in "iu":
        most = 255 if dtype == np.uint8 else RANDOM_INTEGER_MAX
        return random.integers(0, most + 1, size=shape).astype(dtype)
    if dtype.kind == "c":
        return (random.random(shape) + 1j * random.random(shape)).astype(dtype)
    return random.random(shape).astype(dtype)


def _shape(spec: InputSpec, options: BenchOptions) -> tuple[int, ...]:
    if spec.shape is None:
        raise InvalidArgument(f'input "{spec.name}" takes any shape; give --npz=FILE')
    sizes = list(spec.shape)
    if sizes and sizes[0] < 0:
        sizes[0] = options.rows or 1
    elif options.rows is not None:
        raise InvalidArgument(f'input "{spec.name}" has the fixed shape {sizes}; leave out --rows')
    if options.open_size is not None:
        sizes = [options.open_size if size < 0 else size for size in sizes]
    if min(sizes, default=0) < 0:
        raise InvalidArgument(f'input "{spec.name}" has the shape {sizes}; give --open_size=N for -1, or --npz=FILE')
    return tuple(sizes)


# --- answers ----------------------------------------------------------------------------------------------------------


@dataclass
class Verdict:
    """How many answers were the same as that to the same message sent alone."""

    equal: int = 0  # byte for byte
    near: int = 0  # floats within the tolerance, for a batch may be computed in another order
    different: int = 0
    unchecked: int = 0  # for want of room to keep them


def verdict_on(
    answers: Sequence[Sequence[tuple[bytes, int]]], expected: Sequence[bytes], options: BenchOptions, dropped: int
) -> Verdict:
    """Compares what came with what was expected, message by message."""
    verdict = Verdict(unchecked=dropped)
    is_predict = (options.method or PREDICT) == PREDICT
    for seen, wanted in zip(answers, expected, strict=False):  # the last messages may not have had their turn
        for answer, times in seen:
            if answer == wanted:
                verdict.equal += times
            elif is_predict and _near(answer, wanted, options.tolerance):
                verdict.near += times
            else:
                verdict.different += times
    return verdict


def _near(answer: bytes, wanted: bytes, tolerance: float) -> bool:
    response = proto.message_class("tensorflow.serving.PredictResponse")
    try:
        one, other = response.FromString(answer), response.FromString(wanted)
        if one.model_spec != other.model_spec or set(one.outputs) != set(other.outputs):
            return False
        return all(_arrays_near(array_of(one.outputs[n]), array_of(other.outputs[n]), tolerance) for n in one.outputs)
    except (DecodeError, ValueError):
        return False


def _arrays_near(array: NDArray[Any], wanted: NDArray[Any], tolerance: float) -> bool:
    if array.dtype != wanted.dtype or array.shape != wanted.shape:
        return False
    if array.dtype.kind not in "fcV" or array.size == 0:
        return bool(np.array_equal(array, wanted))
    import ml_dtypes  # not above: it takes long to import

    eps = float(ml_dtypes.finfo(array.dtype).eps)  # type: ignore[no-untyped-call]
    tolerance = max(tolerance, 4 * eps)
    wide = np.complex128 if array.dtype.kind == "c" else np.float64
    array, wanted = array.astype(wide), wanted.astype(wide)
    finite = np.abs(wanted[np.isfinite(wanted)])
    largest = float(np.max(finite, initial=0.0))
    return bool(np.allclose(array, wanted, rtol=0.0, atol=tolerance * largest, equal_nan=True))
