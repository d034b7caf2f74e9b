# SPDX-License-Identifier: Apache-2.0
"""gRPC by native threads: Python sees the calls of `control`, and nothing of Predict and of health.

Stages 1 to 3 and 8 of a request's path are in cpp/net.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from grpc_health.v1 import health_pb2

from headrace import _core, channel_arguments
from headrace.config import GrpcOptions
from headrace.engine import EXIT_JOIN_S, at_exit
from headrace.errors import Code, HeadraceError, from_status
from headrace.server.health import Health
from headrace.server.services import HEALTH_CHECK, Handler, PerMessage
from headrace.tls import ServerKeys

logger = logging.getLogger("headrace")

CONTROL_THREADS = 4
CONTROL_WAITING_MAX = 1000

# How long the threads of control calls may take to leave once the server has stopped.
LEAVE_S = 1.0

# How long clients may take to receive their answers at the end of the process.
EXIT_SEND_S = 1.0


class NativeServer:
    """A gRPC server for the models of `router`.

    Thread safety: start(), refuse() and stop() from one thread at a time, any thread; set_tls() from any thread.
    """

    def __init__(
        self, router: _core.Router, control: Mapping[str, Handler], health: Health, options: GrpcOptions
    ) -> None:
        self._process = os.getpid()
        self._control = {path: handler for path, handler in control.items() if path != HEALTH_CHECK}
        self._health = health
        self._server = _core.GrpcServer(
            router,
            {path: isinstance(handler, PerMessage) for path, handler in self._control.items()},
            handler_calls_max=CONTROL_WAITING_MAX,
            **_limits(options),
        )
        self._stopping = threading.Lock()
        self._unwatch: list[Callable[[], None]] = []
        # Daemons: at exit nobody may wait for them before _stop_at_exit() has ended what they wait for.
        self._threads = [
            threading.Thread(target=self._answer_calls, name=f"headrace-control-{i}", daemon=True)
            for i in range(CONTROL_THREADS)
        ]

    def start(self, host: str, port: int, socket_path: str = "", tls: ServerKeys | None = None) -> int:
        """Listens and serves, on a unix socket too if there is a path; returns the port.  With keys the port talks TLS.

        Raises what check_port() and check_socket_path() raise if it cannot listen, InvalidArgument for keys, and is
        stopped then.
        """
        for service in self._health.services:
            self._unwatch.append(self._follow_health(service))
        _open_servers.add(self)
        try:
            if tls is not None:
                self.set_tls(tls)
            for thread in self._threads:
                thread.start()
            return self._server.start(host, port, socket_path)
        except BaseException as error:
            self.stop(0.0, 0.0)
            if isinstance(error, _core.StatusError):
                raise from_status(error.code, error.message) from None
            raise

    def set_tls(self, keys: ServerKeys) -> None:
        """What new connections get from now on; those there are go on as they are.  Raises InvalidArgument for keys."""
        try:
            self._server.set_tls(keys.private_key, keys.certificate, keys.client_ca, bool(keys.client_ca))
        except _core.StatusError as error:
            raise from_status(error.code, f"{keys.source}: {error.message}") from None

    def refuse(self) -> None:
        """Answers UNAVAILABLE to every request that comes from now on; those that came before go on."""
        self._server.refuse()

    def stop(self, drain_s: float, send_s: float) -> bool:
        """Stops: refuses new requests, waits for the answers of the others, and until the clients have them.

        What is not answered within `drain_s` seconds is answered UNAVAILABLE, and `send_s` seconds later clients are
        not waited for any more.  False if something was not answered in time.
        """
        with self._stopping:
            answered = self._server.stop(drain_s, send_s)
        for unwatch in self._unwatch:
            unwatch()
        self._unwatch.clear()
        until = time.monotonic() + LEAVE_S
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(0.0, until - time.monotonic()))
        _open_servers.discard(self)
        return answered

    def _follow_health(self, service: str) -> Callable[[], None]:
        """Keeps the native table as `health` is, until what this returns is called."""

        def tell(response: bytes) -> None:
            self._server.set_health(service, health_pb2.HealthCheckResponse.FromString(response).status)

        return self._health.watch(health_pb2.HealthCheckRequest(service=service).SerializeToString(), tell)

    def _answer_calls(self) -> None:
        while (call := self._server.next_call()) is not None:
            _answer(call, self._control[call.path])


def _limits(options: GrpcOptions) -> dict[str, Any]:
    """The options as _core.GrpcServer names them."""
    arguments = options.channel_arguments
    if ignored := channel_arguments.without_meaning(arguments):
        logger.warning(
            "grpc_channel_arguments: the native transport has nothing for %s; --grpc_transport=grpcio takes them all",
            ", ".join(ignored),
        )
    return {
        "loops": options.grpc_loops,
        "message_bytes_max": options.grpc_message_bytes_max,
        "header_bytes_max": options.grpc_header_bytes_max,
        "streams_max": options.grpc_streams_max,
        "connections_max": options.grpc_connections_max,
        "requests_max": options.grpc_requests_max,
        "buffered_bytes_max": options.grpc_buffered_bytes_max,
        "request": options.grpc_request_seconds,
        "idle": options.grpc_idle_seconds,
        **channel_arguments.native_limits(arguments),
    }


def _answer(call: _core.HandlerCall, handler: Handler) -> None:
    try:
        response = handler.call(call.message)
    except HeadraceError as error:
        call.fail(error.code, error.message)
    except Exception as error:
        logger.exception("%s failed", call.path)
        call.fail(Code.UNKNOWN, f"Unexpected {type(error)}: {error}")
    else:
        call.answer(response)


# Those that the end of the process must stop: their threads may not outlive what they use.
_open_servers: set[NativeServer] = set()


def _stop_at_exit() -> None:
    """Answers what is under way with UNAVAILABLE; a stop() that has begun is waited for instead."""
    for server in [each for each in list(_open_servers) if each._process == os.getpid()]:
        if server._stopping.acquire(timeout=EXIT_JOIN_S):
            server._server.stop(0.0, EXIT_SEND_S)
            server._stopping.release()


at_exit(_stop_at_exit)
