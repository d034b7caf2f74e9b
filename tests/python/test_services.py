# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from headrace.errors import InvalidArgument
from headrace.server.health import Health
from headrace.server.services import (
    GET_MODEL_METADATA,
    HEALTH_CHECK,
    REFLECTION,
    PerMessage,
    Unary,
    control_services,
    error_text,
    reflect,
)

LIST = reflection_pb2.ServerReflectionRequest(list_services="")


def test_the_table_has_both_kinds_of_handlers() -> None:
    table = control_services(Health([]), {})
    assert {path: type(handler) for path, handler in table.items()} == {
        GET_MODEL_METADATA: Unary,
        HEALTH_CHECK: Unary,
        REFLECTION: PerMessage,
    }
    reply = table[HEALTH_CHECK].call(health_pb2.HealthCheckRequest().SerializeToString())
    assert health_pb2.HealthCheckResponse.FromString(reply).status == health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.mark.parametrize("path", [GET_MODEL_METADATA, HEALTH_CHECK, REFLECTION])
def test_bytes_that_are_no_message_are_an_invalid_argument(path: str) -> None:
    with pytest.raises(InvalidArgument):
        control_services(Health([]), {})[path].call(b"\xff")


def test_every_listed_service_and_all_it_needs_is_described() -> None:
    listed = reflection_pb2.ServerReflectionResponse.FromString(reflect(LIST.SerializeToString()))
    names = [service.name for service in listed.list_services_response.service]
    assert "tensorflow.serving.PredictionService" in names
    for name in names:
        asked = reflection_pb2.ServerReflectionRequest(file_containing_symbol=name)
        reply = reflection_pb2.ServerReflectionResponse.FromString(reflect(asked.SerializeToString()))
        assert reply.file_descriptor_response.file_descriptor_proto, name
        assert reply.original_request == asked


def test_the_text_of_an_error_is_cut_as_tensorflow_serving_cuts_it() -> None:
    assert error_text("x" * 1024) == "x" * 1024
    assert error_text("x" * 1025) == "x" * 1024 + "...TRUNCATED"
