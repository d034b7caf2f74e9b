# SPDX-License-Identifier: Apache-2.0
"""grpc.health.v1 by its standard package, without a transport: messages in, messages out.

Thread safety: everything from any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import cast

import grpc
from grpc_health.v1 import health, health_pb2

from headrace.errors import NotFound

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class _Call:
    """What the standard servicer wants of a call's context."""

    def __init__(self) -> None:
        self.code: grpc.StatusCode | None = None
        self.end: Callable[[], None] = lambda: None

    def set_code(self, code: grpc.StatusCode) -> None:
        self.code = code

    def add_callback(self, callback: Callable[[], None]) -> None:
        self.end = callback


class Health:
    """Who is being served.  NOT_SERVING until serve(), and for good after stop()."""

    def __init__(self, services: Iterable[str]) -> None:
        self.services = ("", *services)
        self._servicer = health.HealthServicer()
        for service in self.services:
            self._servicer.set(service, NOT_SERVING)

    def serve(self) -> None:
        for service in self.services:
            self._servicer.set(service, SERVING)

    def stop(self) -> None:
        self._servicer.enter_graceful_shutdown()

    def check(self, message: bytes) -> bytes:
        """Health/Check.  Raises NotFound for a service that is not there."""
        request = health_pb2.HealthCheckRequest.FromString(message)
        call = _Call()
        response = self._servicer.Check(request, cast("grpc.ServicerContext", call))
        if call.code is not None:
            raise NotFound(f'no service "{request.service}" here')
        return bytes(response.SerializeToString())

    def watch(self, message: bytes, send: Callable[[bytes], None]) -> Callable[[], None]:
        """Health/Watch: calls `send` now and at every change, from whatever thread makes it.  Returns what ends it."""

        def forward(response: health_pb2.HealthCheckResponse | None) -> None:
            if response is not None:
                send(bytes(response.SerializeToString()))

        request = health_pb2.HealthCheckRequest.FromString(message)
        call = _Call()
        self._servicer.Watch(request, cast("grpc.ServicerContext", call), forward)
        return call.end
