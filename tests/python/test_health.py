# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2

from headrace.errors import NotFound
from headrace.server.health import NOT_SERVING, SERVING, Health

ANY = health_pb2.HealthCheckRequest().SerializeToString()
A = health_pb2.HealthCheckRequest(service="a").SerializeToString()


def status(reply: bytes) -> int:
    return health_pb2.HealthCheckResponse.FromString(reply).status


@pytest.mark.parametrize("request_bytes", [ANY, A])
def test_nothing_is_served_before_serve_nor_after_stop(request_bytes: bytes) -> None:
    health = Health(["a"])
    assert status(health.check(request_bytes)) == NOT_SERVING
    health.serve()
    assert status(health.check(request_bytes)) == SERVING
    health.stop()
    assert status(health.check(request_bytes)) == NOT_SERVING
    health.serve()
    assert status(health.check(request_bytes)) == NOT_SERVING


def test_an_unknown_service_is_not_found() -> None:
    with pytest.raises(NotFound, match='no service "b" here'):
        Health(["a"]).check(health_pb2.HealthCheckRequest(service="b").SerializeToString())


def test_bytes_that_are_no_request_are_told_apart() -> None:
    with pytest.raises(DecodeError):
        Health([]).check(b"\xff")


def test_a_watcher_hears_every_change_until_it_ends() -> None:
    health = Health(["a"])
    heard: list[bytes] = []
    end = health.watch(A, heard.append)
    health.serve()
    end()
    health.stop()
    assert [status(reply) for reply in heard] == [NOT_SERVING, SERVING]
