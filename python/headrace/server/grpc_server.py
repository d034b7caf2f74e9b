# SPDX-License-Identifier: Apache-2.0
"""gRPC by grpc.aio: the portable transport, on an event loop in a thread of its own.

Stage 1 and 8 of a request's path: whole messages go as raw bytes to the native codec and come back as bytes, and the
loop wakes once for a whole batch of answers.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import grpc
import grpc.aio

from headrace import _core
from headrace.config import GrpcOptions
from headrace.errors import Code, FailedPrecondition, HeadraceError, InvalidArgument, ResourceExhausted
from headrace.server.health import Health
from headrace.server.ports import check_port, check_socket_path, listen_address, socket_address
from headrace.server.services import HEALTH_WATCH, MESSAGE_BYTES_MAX, PREDICT, Handler, Unary, error_text
from headrace.tls import ServerKeys

if TYPE_CHECKING:
    Method = grpc.RpcMethodHandler[bytes, bytes]
    Context = grpc.aio.ServicerContext[bytes, bytes]

STATUS_CODES = {code.value[0]: code for code in grpc.StatusCode}

# Calls that gRPC may hold before the event loop takes them in.  It cancels those beyond without a word, and at random;
# its own limit of 1,000 is below that of our queues, which answer UNAVAILABLE and say what is full.
CALLS_NOT_TAKEN_IN_MAX = 1 << 16

OPTIONS: Mapping[str, int | str] = {
    "grpc.max_receive_message_length": MESSAGE_BYTES_MAX,
    "grpc.max_send_message_length": MESSAGE_BYTES_MAX,
    # Two servers on one port must not share it silently.
    "grpc.so_reuseport": 0,
    "grpc.server.max_pending_requests": CALLS_NOT_TAKEN_IN_MAX,
    "grpc.server.max_pending_requests_hard_limit": CALLS_NOT_TAKEN_IN_MAX,
}

# It is quiet when no request has come for so long, and it is not waited for longer than that.
QUIET_S = 0.05
QUIET_WITHIN_S = 1.0

CONTROL_THREADS = 4
CONTROL_WAITING_MAX = 1000


class GrpcServer:
    """A gRPC server for the models of `router`.

    Thread safety: start(), refuse() and stop() from one thread at a time, any thread; set_tls() from any thread.
    """

    def __init__(
        self, router: _core.Router, control: Mapping[str, Handler], health: Health, options: GrpcOptions
    ) -> None:
        self._options = tuple({**OPTIONS, **options.channel_arguments}.items())
        self._queue = _core.PredictQueue(router)
        self._health = health
        self._control_threads = ThreadPoolExecutor(CONTROL_THREADS, thread_name_prefix="headrace-control")
        self._control_waiting = 0
        self._handlers: dict[str, Method] = {
            PREDICT: grpc.unary_unary_rpc_method_handler(self._predict),
            HEALTH_WATCH: grpc.unary_stream_rpc_method_handler(self._watch),
        }
        for path, handler in control.items():
            self._handlers[path] = self._control_handler(handler)
        self._renewed: deque[ServerKeys] = deque(maxlen=1)  # what set_tls() got and gRPC has not fetched
        self._tokens = itertools.count(1)
        self._answers: dict[int, asyncio.Future[tuple[int, str, bytes]]] = {}
        self._refusing = False
        self._arrived = asyncio.Event()
        self._end_streams: set[Callable[[], object]] = set()  # one for each stream that would go on for ever
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(_on_loop_error)
        self._thread = threading.Thread(target=self._run_loop, name="headrace-grpc", daemon=True)

    def start(self, host: str, port: int, socket_path: str = "", tls: ServerKeys | None = None) -> int:
        """Listens and serves, on a unix socket too if there is a path; returns the port.  With keys the port talks TLS.

        Raises what check_port() and check_socket_path() raise if it cannot listen, InvalidArgument for keys, and is
        stopped then.
        """
        self._thread.start()
        try:
            return asyncio.run_coroutine_threadsafe(self._start(host, port, socket_path, tls), self._loop).result()
        except BaseException:
            self._end()
            raise

    def set_tls(self, keys: ServerKeys) -> None:
        """What new connections get from now on; those there are go on as they are."""
        self._renewed.append(keys)

    def refuse(self) -> None:
        """Answers UNAVAILABLE to every request that comes from now on; those that came before go on."""
        self._refusing = True

    def stop(self, drain_s: float, send_s: float) -> bool:
        """Stops: refuses new requests, waits for the answers of the others, and until the clients have them.

        What is not answered within `drain_s` seconds is answered UNAVAILABLE, and `send_s` seconds later clients are
        not waited for any more.  False if something was not answered in time.
        """
        answered = asyncio.run_coroutine_threadsafe(self._stop(drain_s, send_s), self._loop).result()
        self._end()
        return answered

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._queue.close()
        self._control_threads.shutdown(wait=False, cancel_futures=True)

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    async def _start(self, host: str, port: int, socket_path: str, tls: ServerKeys | None) -> int:
        self._loop.add_reader(self._queue.fileno(), self._deliver)
        self._server = grpc.aio.server(options=self._options)
        self._server.add_generic_rpc_handlers((_Methods(self._handlers),))
        try:
            bound = self._listen(listen_address(host, port), tls)
            if socket_path:
                check_socket_path(socket_path)  # gRPC would take it from a server that listens there
                self._server.add_insecure_port(socket_address(socket_path))
            await self._server.start()
        except BaseException as error:
            await self._server.stop(None)
            self._loop.remove_reader(self._queue.fileno())
            if isinstance(error, RuntimeError):  # gRPC does not say why
                check_port(host, port)
                if tls is not None:
                    raise InvalidArgument(f"{tls.source}: gRPC cannot use the key, the certificate or the CA") from None
                raise FailedPrecondition(f"cannot listen on {listen_address(host, port)}") from None
            raise
        return int(bound)

    def _listen(self, address: str, tls: ServerKeys | None) -> int:
        if tls is None:
            return self._server.add_insecure_port(address)
        # Not this object's own method, which gRPC would keep alive.
        fetch: Any = partial(_fetch, self._renewed)
        credentials = grpc.dynamic_ssl_server_credentials(_configuration(tls), fetch, bool(tls.client_ca))
        return self._server.add_secure_port(address, credentials)

    async def _stop(self, drain_s: float, send_s: float) -> bool:
        self._refusing = True
        answered = await self._drain(drain_s)
        await self._wait_quiet()
        stopping = asyncio.ensure_future(self._server.stop(send_s))
        for end in list(self._end_streams):
            end()
        await stopping
        self._loop.remove_reader(self._queue.fileno())
        return answered

    async def _drain(self, drain_s: float) -> bool:
        """Waits for the answers that are due, and gives up those that take longer; whether there were none."""
        due = dict(self._answers)
        if not due:
            return True
        _, late = await asyncio.wait(list(due.values()), timeout=max(0.0, drain_s))
        for token, answer in due.items():
            if answer in late:
                answer.set_result((Code.UNAVAILABLE, "the server stopped before there was an answer", b""))
                self._queue.cancel(token)
        return not late

    async def _wait_quiet(self) -> None:
        """Lets the calls in that gRPC has received and we have not: stopping would cancel them without a word."""
        until = self._loop.time() + QUIET_WITHIN_S
        while self._loop.time() < until:
            self._arrived.clear()
            try:
                await asyncio.wait_for(self._arrived.wait(), QUIET_S)
            except asyncio.TimeoutError:
                return

    async def _predict(self, message: bytes, context: Context) -> bytes:
        self._arrived.set()
        if self._refusing:
            await _refuse(context, Code.UNAVAILABLE, "the server is stopping")
        token = next(self._tokens)
        answer: asyncio.Future[tuple[int, str, bytes]] = self._loop.create_future()
        self._queue.submit(token, message, context.time_remaining())
        self._answers[token] = answer  # in time: _deliver() runs on this loop too
        try:
            code, text, response = await answer
        except asyncio.CancelledError:
            self._queue.cancel(token)
            raise
        if code != 0:
            await _refuse(context, code, text)
        return response

    def _deliver(self) -> None:
        """Answers all requests that have been answered since the last time: one wake-up, a whole batch."""
        for token, code, text, response in self._queue.take():
            answer = self._answers.pop(token)
            if not answer.done():  # the client may have gone
                answer.set_result((code, text, response))

    async def _watch(self, message: bytes, _context: Context) -> AsyncIterator[bytes]:
        replies: asyncio.Queue[bytes | None] = asyncio.Queue()

        def send(reply: bytes) -> None:
            self._loop.call_soon_threadsafe(replies.put_nowait, reply)

        unwatch = self._health.watch(message, send)
        try:
            with self._stream(lambda: replies.put_nowait(None)):
                while (reply := await replies.get()) is not None:
                    yield reply
        finally:
            unwatch()

    @contextmanager
    def _stream(self, end: Callable[[], object]) -> Iterator[None]:
        """While it lasts, stop() calls `end`."""
        self._end_streams.add(end)
        try:
            yield
        finally:
            self._end_streams.discard(end)

    def _control_handler(self, handler: Handler) -> Method:
        async def call(message: bytes) -> bytes:
            if self._control_waiting >= CONTROL_WAITING_MAX:
                raise ResourceExhausted(f"{CONTROL_WAITING_MAX} control calls are waiting already")
            self._control_waiting += 1
            try:
                return await self._loop.run_in_executor(self._control_threads, handler.call, message)
            finally:
                self._control_waiting -= 1

        async def unary(message: bytes, context: Context) -> bytes:
            try:
                return await call(message)
            except HeadraceError as error:
                await _refuse(context, error.code, error.message)

        async def per_message(messages: AsyncIterator[bytes], context: Context) -> AsyncIterator[bytes]:
            task = asyncio.current_task()
            assert task is not None
            try:
                with self._stream(task.cancel):
                    async for message in messages:
                        yield await call(message)
            except HeadraceError as error:
                await _refuse(context, error.code, error.message)
            except asyncio.CancelledError:
                pass  # the server is stopping, or the client has gone

        if isinstance(handler, Unary):
            return grpc.unary_unary_rpc_method_handler(unary)
        return grpc.stream_stream_rpc_method_handler(per_message)


class _Methods(grpc.GenericRpcHandler):
    """Which handler a method path has; gRPC answers UNIMPLEMENTED for the others."""

    def __init__(self, handlers: Mapping[str, Method]) -> None:
        self._handlers = handlers

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Method | None:
        return self._handlers.get(handler_call_details.method)


def _configuration(keys: ServerKeys) -> grpc.ServerCertificateConfiguration:
    pair = (keys.private_key.encode(), keys.certificate.encode())
    return grpc.ssl_server_certificate_configuration([pair], keys.client_ca.encode() or None)


def _fetch(renewed: deque[ServerKeys]) -> grpc.ServerCertificateConfiguration | None:
    """Called by gRPC for every new connection, on threads of its own; None where nothing has changed."""
    try:
        return _configuration(renewed.pop())
    except IndexError:
        return None


def _on_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Logs what went wrong on the loop, but not what does no harm.

    Where grpc.aio runs on several loops of a process, releases before 1.80 wake all of them for one event, and those
    that find nothing to read raise BlockingIOError: https://github.com/grpc/grpc/issues/25364.
    """
    if not isinstance(context.get("exception"), BlockingIOError):
        loop.default_exception_handler(context)


async def _refuse(context: Context, code: int, text: str) -> NoReturn:
    """Answers with an error and nothing before it: clients retry no answer that has begun."""
    await context.abort(STATUS_CODES[code], error_text(text))
