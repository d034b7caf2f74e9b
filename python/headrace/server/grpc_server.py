# SPDX-License-Identifier: Apache-2.0
"""gRPC by grpc.aio: the portable transport, on an event loop in a thread of its own.

Stage 1 and 8 of a request's path: whole messages go as raw bytes to the native codec and come back as bytes, and the
loop wakes once for a whole batch of answers.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

import grpc
import grpc.aio

from headrace import _core
from headrace.errors import FailedPrecondition, HeadraceError, ResourceExhausted
from headrace.server.health import Health
from headrace.server.ports import check_port
from headrace.server.services import HEALTH_WATCH, MESSAGE_BYTES_MAX, PREDICT, Handler, Unary, error_text

if TYPE_CHECKING:
    Method = grpc.RpcMethodHandler[bytes, bytes]
    Context = grpc.aio.ServicerContext[bytes, bytes]

STATUS_CODES = {code.value[0]: code for code in grpc.StatusCode}

# Calls that gRPC may hold before the event loop takes them in.  It cancels those beyond without a word, and at random;
# its own limit of 1,000 is below that of our queues, which answer UNAVAILABLE and say what is full.
CALLS_NOT_TAKEN_IN_MAX = 1 << 16

OPTIONS = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    # Two servers on one port must not share it silently.
    ("grpc.so_reuseport", 0),
    ("grpc.server.max_pending_requests", CALLS_NOT_TAKEN_IN_MAX),
    ("grpc.server.max_pending_requests_hard_limit", CALLS_NOT_TAKEN_IN_MAX),
)

# It is quiet when no request has come for so long, and it is not waited for longer than that.
QUIET_S = 0.05
QUIET_WITHIN_S = 1.0

CONTROL_THREADS = 4
CONTROL_WAITING_MAX = 1000


class GrpcServer:
    """A gRPC server for the models of `router`.

    Thread safety: start() and stop() from one thread at a time, any thread.
    """

    def __init__(self, router: _core.Router, control: Mapping[str, Handler], health: Health) -> None:
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
        self._tokens = itertools.count(1)
        self._answers: dict[int, asyncio.Future[tuple[int, str, bytes]]] = {}
        self._arrived = asyncio.Event()
        self._end_streams: set[Callable[[], object]] = set()  # one for each stream that would go on for ever
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run_loop, name="headrace-grpc", daemon=True)

    def start(self, host: str, port: int) -> int:
        """Listens and serves; returns the port.  Raises FailedPrecondition or PermissionDenied if it cannot listen."""
        self._thread.start()
        return asyncio.run_coroutine_threadsafe(self._start(host, port), self._loop).result()

    def stop(self, grace_s: float) -> None:
        """Stops once no requests come in any more, and answers those that came for up to `grace_s` seconds.

        Close the engine first: it answers what it had accepted, and UNAVAILABLE to whoever asks from then on.
        """
        asyncio.run_coroutine_threadsafe(self._stop(grace_s), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._queue.close()
        self._control_threads.shutdown(wait=False, cancel_futures=True)

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    async def _start(self, host: str, port: int) -> int:
        self._loop.add_reader(self._queue.fileno(), self._deliver)
        self._server = grpc.aio.server(options=OPTIONS)
        self._server.add_generic_rpc_handlers((_Methods(self._handlers),))
        try:
            bound = self._server.add_insecure_port(f"{host}:{port}")
        except RuntimeError:
            check_port(host, port)
            raise FailedPrecondition(f"cannot listen on {host}:{port}") from None
        await self._server.start()
        return int(bound)

    async def _stop(self, grace_s: float) -> None:
        await self._wait_quiet()
        stopping = asyncio.ensure_future(self._server.stop(grace_s))
        for end in list(self._end_streams):
            end()
        await stopping
        self._loop.remove_reader(self._queue.fileno())

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
            context.set_code(STATUS_CODES[code])
            context.set_details(error_text(text))
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
                return _refuse(context, error)

        async def per_message(messages: AsyncIterator[bytes], context: Context) -> AsyncIterator[bytes]:
            task = asyncio.current_task()
            assert task is not None
            try:
                with self._stream(task.cancel):
                    async for message in messages:
                        yield await call(message)
            except HeadraceError as error:
                _refuse(context, error)
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


def _refuse(context: Context, error: HeadraceError) -> bytes:
    context.set_code(STATUS_CODES[error.code])
    context.set_details(error_text(error.message))
    return b""
