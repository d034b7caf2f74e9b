# SPDX-License-Identifier: Apache-2.0
"""Predict as a client does it, whatever carries the messages: what both clients share."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import ArrayLike, NDArray

from headrace import proto
from headrace.errors import (
    DeadlineExceeded,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    ResourceExhausted,
    Unimplemented,
)
from headrace.tensor_proto import SERVED_DTYPES, array_from, array_of, write_array

# What travels beside a request, such as {"authorization": "Bearer ..."}; the keys are in lower case.
Metadata = Mapping[str, str | bytes] | Sequence[tuple[str, str | bytes]]
Pairs = tuple[tuple[str, str | bytes], ...]
# tensorflow.DataType's numbers by input name; an input whose dtype is open is not there.
Dtypes = Mapping[str, int]

SERVICE = "tensorflow.serving.PredictionService"
PREDICT = f"/{SERVICE}/Predict"
GET_MODEL_METADATA = f"/{SERVICE}/GetModelMetadata"
METHODS = (PREDICT, GET_MODEL_METADATA)

MESSAGE_BYTES_MAX = (1 << 31) - 1

# What is longer than gRPC can say is no deadline.
TIMEOUT_MAX_S = 1e8

METADATA_KEY = re.compile(r"[a-z0-9_.-]+")
METADATA_TEXT = re.compile(r"[\x20-\x7e]*")


@dataclass(frozen=True)
class Target:
    """Which signature of which model; the server's latest version where none is named."""

    model_name: str
    version: int | None
    signature_name: str

    def write(self, spec: Any, *, signature: bool) -> None:
        """Fills in a ModelSpec."""
        spec.name = self.model_name
        if self.version is not None:
            spec.version.value = self.version
        if signature:
            spec.signature_name = self.signature_name


class Call(Protocol):
    """A call under way."""

    def done(self) -> bool: ...


class Connection(Protocol):
    """One channel to the server.  Raises HeadraceError with the call's code and gRPC's text."""

    async def call(self, path: str, message: bytes, timeout: float | None, metadata: Pairs) -> bytes:
        """The answer to one message."""

    def start(self, path: str, message: bytes, metadata: Pairs) -> Call:
        """Sends a message without a deadline; any number may wait() for its answer, each as long as it likes."""

    async def wait(self, call: Any, timeout: float | None) -> bytes: ...


class Predictor:
    """Predict over a connection, and what is known about the dtypes of inputs.

    Thread safety: everything from any thread, if the connection allows it.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._known: dict[Target, Dtypes] = {}
        self._asking: dict[Target, Call] = {}
        self._starting = threading.Lock()  # guards the two above; never held while waiting

    async def predict(
        self,
        target: Target,
        inputs: Mapping[str, ArrayLike],
        output_filter: Sequence[str],
        timeout: float | None,
        metadata: Metadata | None,
    ) -> dict[str, NDArray[Any]]:
        if timeout is not None and not timeout > 0:
            raise DeadlineExceeded("Deadline Exceeded")  # gRPC's text
        until = None if timeout is None or timeout > TIMEOUT_MAX_S else time.monotonic() + timeout
        pairs = _pairs(metadata or ())
        dtypes: Dtypes = {}
        if not all(isinstance(value, np.ndarray) for value in inputs.values()):
            dtypes = await self._input_dtypes(target, until, pairs)
        message = _predict_request(target, inputs, dtypes, output_filter)
        try:
            answer = await self._connection.call(PREDICT, message, _seconds_left(until), pairs)
        except (InvalidArgument, FailedPrecondition):
            with self._starting:  # the model may have been replaced by one that takes other dtypes
                self._known.pop(target, None)
            raise
        return _outputs(answer)

    async def _input_dtypes(self, target: Target, until: float | None, metadata: Pairs) -> Dtypes:
        """Asks once for each target, however many wait for the answer."""
        with self._starting:
            known = self._known.get(target)
            if known is not None:
                return known
            call = self._asking.get(target)
            if call is None:
                call = self._connection.start(GET_MODEL_METADATA, _metadata_request(target), metadata)
                self._asking[target] = call
        try:
            known = _dtypes_in(await self._connection.wait(call, _seconds_left(until)), target)
        except Unimplemented:
            known = {}  # it still predicts, from whatever dtypes NumPy makes of the inputs
        finally:
            with self._starting:
                if known is not None:
                    self._known[target] = known
                if call.done():
                    self._asking.pop(target, None)
        return known


def _pairs(metadata: Metadata) -> Pairs:
    """Checked here, for gRPC calls a wrong key INTERNAL, and writes to stderr."""
    pairs = tuple(metadata.items()) if isinstance(metadata, Mapping) else tuple(metadata)
    for key, value in pairs:
        travels = key.endswith("-bin") or (isinstance(value, str) and METADATA_TEXT.fullmatch(value))
        if not METADATA_KEY.fullmatch(key) or not travels:
            raise InvalidArgument(
                f"metadata {key!r}: {value!r}; keys are of lower-case letters, digits and _-. and values are printable"
                " ASCII, or bytes where the key ends with -bin"
            )
    return pairs


def _seconds_left(until: float | None) -> float | None:
    return None if until is None else max(0.0, until - time.monotonic())


def _predict_request(
    target: Target, inputs: Mapping[str, ArrayLike], dtypes: Dtypes, output_filter: Sequence[str]
) -> bytes:
    request = proto.message_class("tensorflow.serving.PredictRequest")(output_filter=output_filter)
    target.write(request.model_spec, signature=True)
    bytes_left = MESSAGE_BYTES_MAX
    for name, value in inputs.items():
        what = f'input "{name}"'
        array = array_from(value, dtypes.get(name), what)
        bytes_left -= array.nbytes
        if bytes_left < 0:
            raise ResourceExhausted(f"{what}: the request is larger than a message can be ({MESSAGE_BYTES_MAX} bytes)")
        write_array(array, request.inputs[name], what)
    return bytes(request.SerializeToString())


def _outputs(answer: bytes) -> dict[str, NDArray[Any]]:
    try:
        response = proto.message_class("tensorflow.serving.PredictResponse").FromString(answer)
    except DecodeError:
        raise Internal("the server's answer is no PredictResponse") from None
    return {name: _output(name, response.outputs[name]) for name in sorted(response.outputs)}


def _output(name: str, tensor: Any) -> NDArray[Any]:
    try:
        return array_of(tensor)
    except ValueError as error:
        raise Internal(f'output "{name}": {error}') from None


def _metadata_request(target: Target) -> bytes:
    request = proto.message_class("tensorflow.serving.GetModelMetadataRequest")(metadata_field=["signature_def"])
    target.write(request.model_spec, signature=False)
    return bytes(request.SerializeToString())


def _dtypes_in(answer: bytes, target: Target) -> Dtypes:
    try:
        response = proto.message_class("tensorflow.serving.GetModelMetadataResponse").FromString(answer)
        packed = response.metadata["signature_def"].value
        definitions = proto.message_class("tensorflow.serving.SignatureDefMap").FromString(packed).signature_def
    except DecodeError:
        raise Internal("the server's answer is no GetModelMetadataResponse") from None
    inputs = definitions[target.signature_name or "serving_default"].inputs
    return {name: inputs[name].dtype for name in inputs if inputs[name].dtype in SERVED_DTYPES}
