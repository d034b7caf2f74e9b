# SPDX-License-Identifier: Apache-2.0
"""The RPCs around Predict, as a table that any transport can serve: full method path -> handler over bytes.

A handler takes one message and returns one, raises HeadraceError to answer with its status, and may block: transports
call it on threads of their own, never on an event loop.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, cast

from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from headrace import proto
from headrace.errors import InvalidArgument
from headrace.server.health import Health
from headrace.server.metadata import Catalogue, Metadata

if TYPE_CHECKING:
    import grpc

PREDICTION_SERVICE = "tensorflow.serving.PredictionService"
PREDICT = f"/{PREDICTION_SERVICE}/Predict"
GET_MODEL_METADATA = f"/{PREDICTION_SERVICE}/GetModelMetadata"
HEALTH_SERVICE = "grpc.health.v1.Health"
HEALTH_CHECK = f"/{HEALTH_SERVICE}/Check"
HEALTH_WATCH = f"/{HEALTH_SERVICE}/Watch"
REFLECTION = f"/{reflection.SERVICE_NAME}/ServerReflectionInfo"

# As TensorFlow Serving: the limit on messages both ways, and on the text of an error.
MESSAGE_BYTES_MAX = (1 << 31) - 1
ERROR_TEXT_MAX = 1024


@dataclass(frozen=True)
class Unary:
    """One message in, one out."""

    call: Callable[[bytes], bytes]


@dataclass(frozen=True)
class PerMessage:
    """A stream of messages in, one reply to each."""

    call: Callable[[bytes], bytes]


Handler = Unary | PerMessage


def control_services(health: Health, catalogue: Catalogue) -> dict[str, Handler]:
    """Every RPC but Predict, and but Health/Watch, whose replies answer no message."""
    return {
        GET_MODEL_METADATA: Unary(decoding(Metadata(catalogue).get)),
        HEALTH_CHECK: Unary(decoding(health.check)),
        REFLECTION: PerMessage(decoding(reflect)),
    }


def decoding(call: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    """`call`, with InvalidArgument for a message that is not one."""

    def checked(message: bytes) -> bytes:
        try:
            return call(message)
        except DecodeError as error:
            raise InvalidArgument(f"not a message of this method: {error}") from None

    return checked


def error_text(message: str) -> str:
    """The text of an error as it travels."""
    return message if len(message) <= ERROR_TEXT_MAX else message[:ERROR_TEXT_MAX] + "...TRUNCATED"


def reflect(message: bytes) -> bytes:
    """ServerReflectionInfo: the reply to one message of its stream."""
    request = reflection_pb2.ServerReflectionRequest.FromString(message)
    no_context = cast("grpc.ServicerContext", None)  # which the standard servicer does not look at
    [reply] = _reflection().ServerReflectionInfo(iter([request]), no_context)
    reply.original_request.CopyFrom(request)  # which older releases of the package leave out
    return bytes(reply.SerializeToString())


@cache
def _reflection() -> reflection.ReflectionServicer:
    pool = proto.pool()
    for standard in (health_pb2.DESCRIPTOR, reflection_pb2.DESCRIPTOR):
        pool.AddSerializedFile(standard.serialized_pb)
    return reflection.ReflectionServicer([PREDICTION_SERVICE, HEALTH_SERVICE, reflection.SERVICE_NAME], pool)
