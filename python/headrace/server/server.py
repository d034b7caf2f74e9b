# SPDX-License-Identifier: Apache-2.0
"""Server: models and functions on a gRPC port, from start() to stop()."""

from __future__ import annotations

import dataclasses
import enum
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias

from headrace import _core
from headrace.batched_function import Batched, batched
from headrace.config import BatchingOptions, GrpcOptions, ServeOptions
from headrace.engine import Engine
from headrace.errors import FailedPrecondition, InvalidArgument
from headrace.executors import PythonExecutors
from headrace.model import LoadedModel
from headrace.server.certificate_watch import CertificateWatch, TlsFiles
from headrace.server.grpc_server import GrpcServer
from headrace.server.health import Health
from headrace.server.metadata import signature_defs
from headrace.server.native import NativeServer
from headrace.server.ports import check_port, check_socket_path, listen_address
from headrace.server.services import PREDICTION_SERVICE, Handler, control_services
from headrace.server.ssl_config import SslConfigFile
from headrace.tls import ServerTls

if TYPE_CHECKING:
    from typing_extensions import Self

Servable: TypeAlias = LoadedModel | Batched[..., Any] | Callable[..., Any]
Transport: TypeAlias = Callable[[_core.Router, Mapping[str, Handler], Health], GrpcServer | NativeServer]

logger = logging.getLogger("headrace")

# How long clients may take to receive their answers once all of them were given.
SEND_S = 5.0

# How late a signal may be heard that comes just before a wait begins: Python looks for it only between steps.
SIGNAL_S = 0.05


class Server:
    """Serves models and functions over gRPC, as TensorFlow Serving does, while it is entered or started.

    `models` says what is served under which name.  A LoadedModel is served with all its signatures.  A function that
    is `@batched` shares its queue and its executors with its callers in this process, and stays open when the server
    stops; any other callable becomes one for as long as the server runs.  Their inputs are the parameters, their
    outputs the keys of the dict that the function returns ("output" for an array, "output_0", "output_1" ... for a
    tuple), their signature is serving_default, and their version 1.  The same model may be in several servers.

    `host` and `port` are where it listens; port 0 takes a free one; a name listens on all addresses it has.  With a
    `grpc_socket_path` it listens on a unix socket there as well, which clients call "unix:PATH".  `options` are for the
    LoadedModels and for the callables that are not batched yet.  `executor` is "native", or "python" for TensorFlow's
    Python package.
    `grpc_transport` is what serves gRPC: "native", threads without Python, for which `grpc_options` are, or "grpcio".
    With `tls` all connections to the port are encrypted, and others are not taken; those to the socket stay plain.

    It installs no signal handlers and sets up no logging: what it has to say goes to the logger "headrace".

    Thread safety: everything from any thread; stop() from a signal handler, too.  After a fork the child has no
    server: stop() and leaving the block do nothing there, all else raises FailedPrecondition.

    Raises InvalidArgument if there is nothing to serve, or something that cannot be.
    """

    def __init__(
        self,
        models: Mapping[str, Servable],
        *,
        host: str = "127.0.0.1",
        port: int = 8500,
        grpc_socket_path: str = "",
        options: BatchingOptions | None = None,
        executor: str = "native",
        grpc_transport: str = "native",
        grpc_options: GrpcOptions | None = None,
        tls: ServerTls | SslConfigFile | None = None,
    ) -> None:
        if not models:
            raise InvalidArgument("no models to serve")
        for name, model in models.items():
            if not isinstance(name, str) or not name:
                raise InvalidArgument(f"a model's name is {name!r}; it must be text")
            if not isinstance(model, LoadedModel) and not callable(model):
                raise InvalidArgument(
                    f'model "{name}" is of type {type(model).__name__}; it must be a LoadedModel, as load() returns'
                    " them, or a callable"
                )
        ServeOptions(  # checks them
            port=port, grpc_socket_path=grpc_socket_path, executor=executor, grpc_transport=grpc_transport
        )
        if not isinstance(tls, ServerTls | SslConfigFile | None):
            raise InvalidArgument(f"tls is of type {type(tls).__name__}; it must be a ServerTls or an SslConfigFile")
        self._models = dict(models)
        self._host = host
        self._port = port
        self._socket_path = grpc_socket_path
        self._options = options or BatchingOptions()
        self._executor = executor
        self._transport = _transport(grpc_transport, grpc_options or GrpcOptions())
        self._tls = tls
        self._process = os.getpid()
        # Over an RLock: a signal handler that calls stop() may have interrupted whoever holds it.
        self._changed = threading.Condition()
        self._life: _Life | None = None  # guarded by _changed

    def start(self) -> None:
        """Serves from the moment this returns; again after stop(), then with new counters.

        Raises FailedPrecondition if the port or the socket path is taken or the server runs already, PermissionDenied
        for one that needs a right, InvalidArgument for a host that is no address of this machine, a path that can be
        none, and for the files of `tls` where they cannot be used.  Nothing is left running then.
        """
        self._check_process()
        life = _Life(self._changed)
        # A thread of its own for everything between start() and stop(): Ctrl-C in the caller cuts no step short, and
        # a signal handler that calls stop() waits for nothing that it has interrupted.
        where = (self._host, self._port, self._socket_path, self._tls)
        opening = (self._models, *where, self._options, self._executor, self._transport)
        thread = threading.Thread(target=life.live, args=opening, name="headrace-server", daemon=True)
        with self._changed:
            if self._life is not None and self._life.state is not State.STOPPED:
                raise FailedPrecondition("the server is running already; stop() it first")
            self._life = life
            try:
                thread.start()
                self._wait_for(lambda: life.state not in (State.NEW, State.STARTING))
            except BaseException:  # Ctrl-C, or no more threads
                self.stop(0.0)
                raise
            error, life.error = life.error, None
        if error is not None:
            raise error

    def stop(self, timeout: float = 30.0) -> bool:
        """Stops: health says NOT_SERVING, new requests get UNAVAILABLE, and those accepted are answered.

        What has no answer after `timeout` seconds gets UNAVAILABLE; False if there was any such, or if a run of a
        model had not returned and was left behind.  Returns when nothing of the server is left, a few seconds after
        `timeout` at the latest; Ctrl-C interrupts that, and it goes on stopping.  Once it has stopped, or if it never
        started, there is nothing to do.  Where several call it, the first one's `timeout` holds.  A function that
        stops its own server does not wait, for it would wait for itself, and gets False.
        """
        if os.getpid() != self._process:
            return True
        with self._changed:
            life = self._life
            if life is None:
                return True
            life.end(max(0.0, float(timeout)))
            if life.waits_for_caller():
                return False
            self._wait_for(lambda: life.state is State.STOPPED)
            return life.ended_well

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until it has stopped, for at most `timeout` seconds; whether it has.

        Ctrl-C interrupts it.  Raises FailedPrecondition if it was never started.
        """
        self._check_process()
        with self._changed:
            life = self._life
            if life is None:
                raise FailedPrecondition("the server was never started; call start() first")
            return self._wait_for(lambda: life.state is State.STOPPED, timeout)

    @property
    def grpc_address(self) -> str:
        """Where it serves, "127.0.0.1:8500".  Raises FailedPrecondition while it does not."""
        return listen_address(self._host, self._serving().port)

    def lanes(self) -> Iterator[tuple[str, _core.Lane]]:
        """Every lane with its name, "digits/serving_default".  Raises FailedPrecondition while it does not serve."""
        return iter(self._serving().lanes)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _serving(self) -> _Life:
        self._check_process()
        with self._changed:
            life = self._life
            if life is None or life.state is not State.SERVING:
                raise FailedPrecondition("the server is not running; call start() first")
            return life

    def _wait_for(self, condition: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Waits until `condition`, which depends on what _changed guards; signal handlers run meanwhile."""
        if threading.current_thread() is not threading.main_thread():
            return self._changed.wait_for(condition, timeout_s)
        until = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while not condition():
            left_s = until - time.monotonic()
            if left_s <= 0.0:
                return False
            self._changed.wait(min(left_s, SIGNAL_S))
        return True

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise FailedPrecondition(
                f"this server belongs to process {self._process}, and its threads stayed there when process"
                f" {os.getpid()} was forked: make one after the fork"
            )


def _transport(name: str, options: GrpcOptions) -> Transport:
    return partial(GrpcServer if name == "grpcio" else NativeServer, options=options)


class State(enum.Enum):
    """Where a server is between start() and stop()."""

    NEW = enum.auto()
    STARTING = enum.auto()
    SERVING = enum.auto()
    STOPPED = enum.auto()


class _Life:
    """A server from one start() to its stop(): everything that is open meanwhile, and the one sequence of both.

    `changed` guards what is public and is notified when it changes.
    """

    def __init__(self, changed: threading.Condition) -> None:
        self._changed = changed
        self.state = State.NEW
        self.error: BaseException | None = None  # what start() raises
        self.port = 0
        self.lanes: list[tuple[str, _core.Lane]] = []
        self.ended_well = True
        self._stop_s: float | None = None  # it is to end, and has so long for its answers
        self._health = Health([PREDICTION_SERVICE, PREDICTION_SERVICE.rpartition(".")[2]])
        self._engine: Engine | None = None
        self._executors: list[PythonExecutors] = []
        self._wrapped: list[Batched[..., Any]] = []  # ours to close
        self._catalogue: dict[str, dict[int, bytes]] = {}
        self._grpc: GrpcServer | NativeServer | None = None
        self._certificates: CertificateWatch | None = None

    def end(self, timeout_s: float) -> None:
        """Ends it, with `timeout_s` seconds for its answers, unless it is ending already.

        One that has not begun never will: its thread may not be there, and whoever makes it may be who calls this.
        """
        with self._changed:
            if self.state is State.NEW:
                self._move(State.STOPPED)
            elif self._stop_s is None:
                self._stop_s = timeout_s
                self._changed.notify_all()

    def waits_for_caller(self) -> bool:
        """Whether it has not ended, and cannot before the calling thread has returned from the function that it runs."""
        return any(executors.is_current() for executors in self._executors)

    def live(
        self,
        models: Mapping[str, Servable],
        host: str,
        port: int,
        socket_path: str,
        tls: TlsFiles | None,
        options: BatchingOptions,
        executor: str,
        transport: Transport,
    ) -> None:
        """All of it, from the first step to the last."""
        with self._changed:
            if self.state is not State.NEW:
                return
            self._move(State.STARTING)
        try:
            try:
                # Before anything is started that would have to be stopped again.
                check_port(host, port)
                if socket_path:
                    check_socket_path(socket_path)
                certificates = None if tls is None else CertificateWatch(tls)
                self._engine = Engine()
                for name, model in models.items():
                    self._add(self._engine, name, model, options, executor)
                control = control_services(self._health, self._catalogue)
                grpc = transport(self._engine.router, control, self._health)
                self.port = grpc.start(host, port, socket_path, None if certificates is None else certificates.keys)
                self._grpc = grpc
                if certificates is not None:
                    certificates.start(grpc.set_tls)
                    self._certificates = certificates
            except BaseException as error:  # noqa: BLE001  start() raises it
                self.error = error
            else:
                self._health.serve()
                where = listen_address(host, self.port) + (f" and unix:{socket_path}" if socket_path else "")
                logger.info("serving %s on %s", self._served_text(), where)
                self._move(State.SERVING)
                with self._changed:
                    self._changed.wait_for(lambda: self._stop_s is not None)
            self.ended_well = self._close(self._stop_s or 0.0)
        finally:
            # A server that is kept for another start keeps nothing of this one.
            self._engine = self._grpc = self._certificates = None
            self._executors, self._wrapped, self.lanes = [], [], []
            self._move(State.STOPPED)

    def _add(self, engine: Engine, name: str, model: Servable, options: BatchingOptions, executor: str) -> None:
        """Serves one model under its name."""
        if isinstance(model, LoadedModel):
            for line in model.log_lines:
                logger.info("%s", line)
            served = engine.add(dataclasses.replace(model, name=name), options, executor=executor)
            definitions = model.signature_defs
        else:
            if isinstance(model, Batched):
                function = model
            else:
                function = batched(**dataclasses.asdict(options))(model)
                self._wrapped.append(function)
            served = function.served()
            engine.router.add(served.native, name=name)
            definitions = signature_defs({key: lane.signature for key, lane in served.lanes.items()})
        for line in served.lines:
            logger.info("%s", line)
        if served.executors is not None:
            self._executors.append(served.executors)
        self.lanes += [(f"{name}/{key}", lane) for key, lane in served.lanes.items()]
        self._catalogue[name] = {served.native.version: definitions}

    def _served_text(self) -> str:
        return ", ".join(f"{name} version {max(versions)}" for name, versions in self._catalogue.items())

    def _close(self, timeout_s: float) -> bool:
        """Stops what was opened, all of it or not; False if a request was given up or a run left behind."""
        until = time.monotonic() + timeout_s

        def left_s() -> float:
            return max(0.0, until - time.monotonic())

        ended: list[bool] = []
        self._health.stop()
        if self._certificates is not None:
            self._certificates.stop()
        if self._grpc is not None:
            self._grpc.refuse()
        if self._engine is not None:
            ended.append(self._engine.close(left_s()))
        ended += [function.close(left_s()) for function in self._wrapped]
        if self._grpc is not None:
            # Last, for the answers must get out; and for those of functions that stay open it waits itself.
            ended.append(self._grpc.stop(left_s(), SEND_S))
        return all(ended)

    def _move(self, state: State) -> None:
        with self._changed:
            self.state = state
            self._changed.notify_all()
