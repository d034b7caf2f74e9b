# SPDX-License-Identifier: Apache-2.0
"""Health and reflection, by the standard clients."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from grpc import StatusCode
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from tests.e2e.served import LIMIT_S, Served

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICE_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


def check(channel: grpc.Channel, serialize: Any = health_pb2.HealthCheckRequest.SerializeToString) -> Any:
    return channel.unary_unary("/grpc.health.v1.Health/Check", serialize, health_pb2.HealthCheckResponse.FromString)


def watch(channel: grpc.Channel) -> Any:
    return channel.unary_stream(
        "/grpc.health.v1.Health/Watch",
        health_pb2.HealthCheckRequest.SerializeToString,
        health_pb2.HealthCheckResponse.FromString,
    )


def reflect(channel: grpc.Channel) -> Any:
    return channel.stream_stream(
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
        reflection_pb2.ServerReflectionRequest.SerializeToString,
        reflection_pb2.ServerReflectionResponse.FromString,
    )


@pytest.fixture
def server(saved_models: Path, transport: str) -> Iterator[Served]:
    with Served(saved_models / "half_plus_two", "--port=0", f"--grpc_transport={transport}") as served:
        yield served


@pytest.fixture
def channel(server: Served) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(server.address) as made:
        yield made


@pytest.mark.parametrize("service", ["", "tensorflow.serving.PredictionService", "PredictionService"])
def test_health_says_serving(channel: grpc.Channel, service: str) -> None:
    assert check(channel)(health_pb2.HealthCheckRequest(service=service), timeout=LIMIT_S).status == SERVING


def test_health_of_an_unknown_service_is_not_found(channel: grpc.Channel) -> None:
    with pytest.raises(grpc.RpcError) as raised:
        check(channel)(health_pb2.HealthCheckRequest(service="foo"), timeout=LIMIT_S)
    assert raised.value.code() is StatusCode.NOT_FOUND
    unknown = watch(channel)(health_pb2.HealthCheckRequest(service="foo"), timeout=LIMIT_S)
    assert next(iter(unknown)).status == SERVICE_UNKNOWN
    unknown.cancel()


def test_bytes_that_are_no_health_request_are_refused(channel: grpc.Channel) -> None:
    with pytest.raises(grpc.RpcError) as raised:
        check(channel, bytes)(b"\xff", timeout=LIMIT_S)
    assert raised.value.code() is StatusCode.INVALID_ARGUMENT


def test_whoever_watches_health_hears_of_the_shutdown_and_does_not_delay_it(
    server: Served, channel: grpc.Channel
) -> None:
    watched = watch(channel)(health_pb2.HealthCheckRequest(), timeout=LIMIT_S)
    replies = iter(watched)
    assert next(replies).status == SERVING
    stopped = threading.Event()

    def one_request() -> Iterator[reflection_pb2.ServerReflectionRequest]:
        yield reflection_pb2.ServerReflectionRequest(list_services="")
        stopped.wait(LIMIT_S)

    reflection = reflect(channel)(one_request())
    assert next(iter(reflection)).HasField("list_services_response")
    assert server.stop() == 0
    assert next(replies).status == NOT_SERVING
    assert list(replies) == []
    stopped.set()


def test_reflection_describes_every_service(channel: grpc.Channel) -> None:
    database = ProtoReflectionDescriptorDatabase(channel)
    assert set(database.get_services()) == {
        "tensorflow.serving.PredictionService",
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
    }
    pool = DescriptorPool(database)
    for service in database.get_services():
        assert pool.FindServiceByName(service).methods
    predict: Any = pool.FindServiceByName("tensorflow.serving.PredictionService").methods_by_name["Predict"]
    inputs = predict.input_type.fields_by_name["inputs"].message_type.fields_by_name["value"].message_type
    assert inputs.full_name == "tensorflow.TensorProto"
    assert inputs.fields_by_name["float_val"].number == 5


def test_reflection_answers_each_message_of_its_stream(channel: grpc.Channel) -> None:
    requests = [
        reflection_pb2.ServerReflectionRequest(list_services=""),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol="no.such.thing"),
        reflection_pb2.ServerReflectionRequest(file_by_filename=health_pb2.DESCRIPTOR.name),
    ]
    replies = list(reflect(channel)(iter(requests), timeout=LIMIT_S))
    assert [reply.WhichOneof("message_response") for reply in replies] == [
        "list_services_response",
        "error_response",
        "file_descriptor_response",
    ]
    assert replies[1].error_response.error_code == StatusCode.NOT_FOUND.value[0]
