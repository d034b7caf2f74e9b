# SPDX-License-Identifier: Apache-2.0
"""Clients of a TensorFlow Serving or Headrace server, over gRPC: Client blocks, AsyncClient is for asyncio.

Both are the coroutines of predictor.py over a connection of their kind.  Client's connection blocks and never suspends
a coroutine, so that one step runs it to its end.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Coroutine, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar

import grpc
import grpc.aio
from numpy.typing import ArrayLike, NDArray

from headrace.errors import (
    Cancelled,
    DeadlineExceeded,
    FailedPrecondition,
    HeadraceError,
    InvalidArgument,
    Unavailable,
    from_status,
)
from headrace.predictor import MESSAGE_BYTES_MAX, METHODS, Metadata, Pairs, Predictor, Target
from headrace.tls import ClientTls

T = TypeVar("T")

# How gRPC says why there is no connection, in its releases from 1.60 on.
NOT_CONNECTED = "failed to connect"
UNTRUSTED = re.compile("CERTIFICATE_VERIFY_FAILED(?:: ([^:]+))?")
OTHER_NAME = re.compile("Hostname Verification Check failed|is not in peer certificate")
NO_TLS = "WRONG_VERSION_NUMBER"
HUNG_UP = re.compile("Socket closed|Connection reset|Unwrap failed")

# gRPC makes at most 5 attempts at a call.
RETRIES_MAX = 4

# How long a client goes without a new attempt to connect; gRPC's own limit is two minutes.
RECONNECT_MS_MAX = 1000


class Client:
    """Calls the models of a server; any number of threads may share one, and its one connection.

        with headrace.Client("localhost:8500") as client:
            y = client.predict("digits", {"x": rows}, timeout=0.5)["y"]

    `address` is "host:port" or anything else that gRPC takes for a target, such as "unix:/path".  It is connected to at
    the first call.  Up to 4 `retries` are made of a call that the server, or its absence, answers with UNAVAILABLE, with
    pauses that double from 0.1 s to 1 s, within the call's timeout; retry only what may run twice.  With `tls`, even
    ClientTls() with nothing in it, the connection is encrypted, and made only to a server whose certificate is trusted.

    Raises InvalidArgument for another number of retries, and for the files of `tls` where they cannot be used.
    """

    def __init__(self, address: str, *, retries: int = 0, tls: ClientTls | None = None) -> None:
        self._connection = _BlockingConnection(_Server(address, retries, tls))
        self._predictor = Predictor(self._connection)

    def predict(
        self,
        model_name: str,
        inputs: Mapping[str, ArrayLike],
        *,
        signature_name: str = "",
        version: int | None = None,
        output_filter: Sequence[str] = (),
        timeout: float | None = None,
        metadata: Metadata | None = None,
    ) -> dict[str, NDArray[Any]]:
        """The outputs of a model by name: contiguous, writable arrays of the caller's own; strings are bytes objects.

        `inputs` are arrays whose first dimension is the batch, or nested lists and numbers, which take the dtypes of
        the signature: the server is asked for them at the first such call (if it cannot tell, NumPy's own dtypes are
        taken).  An array is sent as it is; the server refuses another dtype than the signature's.  Strings are lists or
        object arrays of bytes or str (sent as UTF-8), or `S` or `U` arrays; bfloat16 is ml_dtypes.bfloat16.

        `signature_name` is serving_default by default, and `version` the latest.  With an `output_filter` only those
        outputs are computed and returned.  `timeout` is in seconds and becomes the request's deadline; without one the
        call waits for as long as the server does.  `metadata` travels with the request.

        Raises HeadraceError, with the server's code and message: NotFound for a model or version that it does not
        serve, FailedPrecondition for a signature, InvalidArgument for wrong inputs, Unavailable if it cannot be reached
        or has too much to do, or if the client is closed, DeadlineExceeded after `timeout`, and Cancelled if the client
        is closed meanwhile.
        """
        target = Target(model_name, version, signature_name)
        return _run(self._predictor.predict(target, inputs, output_filter, timeout, metadata))

    def close(self) -> None:
        """Ends the connection, and the calls that still wait with Cancelled."""
        self._connection.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncClient:
    """Client for asyncio: any number of tasks of one event loop may share it, and its one connection.

        async with headrace.AsyncClient("localhost:8500") as client:
            y = (await client.predict("digits", {"x": rows}, timeout=0.5))["y"]

    The parameters are Client's.  The event loop is that of the first call.
    """

    def __init__(self, address: str, *, retries: int = 0, tls: ClientTls | None = None) -> None:
        self._connection = _AsyncConnection(_Server(address, retries, tls))
        self._predictor = Predictor(self._connection)

    async def predict(
        self,
        model_name: str,
        inputs: Mapping[str, ArrayLike],
        *,
        signature_name: str = "",
        version: int | None = None,
        output_filter: Sequence[str] = (),
        timeout: float | None = None,
        metadata: Metadata | None = None,
    ) -> dict[str, NDArray[Any]]:
        """As Client.predict().  Cancelling the task cancels the request.

        Raises what that raises, and FailedPrecondition in another event loop than that of the first call.
        """
        target = Target(model_name, version, signature_name)
        return await self._predictor.predict(target, inputs, output_filter, timeout, metadata)

    async def close(self) -> None:
        """Ends the connection, and the calls that still wait with Cancelled."""
        await self._connection.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class _Server:
    """Where a connection leads to, and how it is made."""

    def __init__(self, address: str, retries: int, tls: ClientTls | None) -> None:
        self.address = address
        self.options = _channel_options(retries)
        self.credentials: grpc.ChannelCredentials | None = None
        self._tls = tls
        if tls is None:
            return
        if not isinstance(tls, ClientTls):
            raise InvalidArgument(f"tls is {tls!r}; it must be a ClientTls, or None for a connection without TLS")
        keys = tls.read()
        self.credentials = grpc.ssl_channel_credentials(keys.ca, keys.private_key, keys.certificate)
        if tls.server_name is not None:
            self.options.append(("grpc.ssl_target_name_override", tls.server_name))

    def error(self, code: grpc.StatusCode, details: str | None) -> HeadraceError:
        """The error of a call that ended so; where TLS is the reason it says what to do about it."""
        text = details or ""
        if code is not grpc.StatusCode.UNAVAILABLE:
            return from_status(code.value[0], text)
        if untrusted := UNTRUSTED.search(text):
            reason = f" ({untrusted[1]})" if untrusted[1] else ""
            text = (
                f"{self.address}: the server's certificate is not trusted{reason}; ClientTls(ca_file=...) names the CAs"
                " that are"
            )
        elif OTHER_NAME.search(text):
            name = self._tls.server_name if self._tls else None
            text = (
                f"{self.address}: the server's certificate is not for"
                f" {'the host of this address' if name is None else repr(name)}; ClientTls(server_name=...) is the name"
                " that it must have"
            )
        elif NO_TLS in text:
            text = f"{self.address}: the server does not speak TLS; make the client without tls=ClientTls(...)"
        elif NOT_CONNECTED in text and HUNG_UP.search(text):
            text += self._advice()
        return Unavailable(text)

    def _advice(self) -> str:
        """What may be wrong where a server hangs up before the first call; it does not say why."""
        if self._tls is None:
            return "; a server that speaks TLS needs a client with tls=ClientTls(...)"
        if self._tls.certificate_file is None:
            return "; a server that asks for a client's certificate needs ClientTls(key_file=..., certificate_file=...)"
        return "; a server that asks for a client's certificate must trust the CA of ClientTls's certificate_file"


class _BlockingConnection:
    """Blocks the thread that calls, and suspends no coroutine."""

    def __init__(self, server: _Server) -> None:
        self._server = server
        if server.credentials is None:
            self._channel = grpc.insecure_channel(server.address, server.options)
        else:
            self._channel = grpc.secure_channel(server.address, server.credentials, server.options)
        self._methods: dict[str, Any] = {path: self._channel.unary_unary(path) for path in METHODS}

    async def call(self, path: str, message: bytes, timeout: float | None, metadata: Pairs) -> bytes:
        try:
            return bytes(self._methods[path](message, timeout=timeout, metadata=metadata))
        except grpc.RpcError as error:
            raise self._server.error(error.code(), error.details()) from None
        except ValueError:  # that is how gRPC says that the channel is closed
            raise _closed() from None

    def start(self, path: str, message: bytes, metadata: Pairs) -> Any:
        try:
            return self._methods[path].future(message, metadata=metadata)
        except ValueError:
            raise _closed() from None

    async def wait(self, call: Any, timeout: float | None) -> bytes:
        try:
            return bytes(call.result(timeout))
        except grpc.FutureTimeoutError:
            raise _too_late() from None
        except grpc.FutureCancelledError:
            raise Cancelled(call.details()) from None
        except grpc.RpcError as error:
            raise self._server.error(error.code(), error.details()) from None

    def close(self) -> None:
        self._channel.close()


class _AsyncConnection:
    """Suspends the coroutine that calls.  The channel is made in the event loop that it belongs to."""

    def __init__(self, server: _Server) -> None:
        self._server = server
        self._loop: asyncio.AbstractEventLoop | None = None
        self._channel: grpc.aio.Channel | None = None
        self._methods: dict[str, Any] = {}
        self._closed = False

    async def call(self, path: str, message: bytes, timeout: float | None, metadata: Pairs) -> bytes:
        call = self._start(path, message, timeout, metadata)
        try:
            return await self.wait(call, None)
        except asyncio.CancelledError:
            call.cancel()
            raise

    def start(self, path: str, message: bytes, metadata: Pairs) -> Any:
        return self._start(path, message, None, metadata)

    async def wait(self, call: Any, timeout: float | None) -> bytes:
        # To wait for the call itself would cancel it together with whoever waits, and the other way round.
        ended = asyncio.get_running_loop().create_future()

        def tell(_call: object) -> None:
            if not ended.done():
                ended.set_result(None)

        call.add_done_callback(tell)
        await asyncio.wait((ended,), timeout=timeout)
        if not ended.done():
            raise _too_late()
        code = await call.code()
        if code is not grpc.StatusCode.OK:
            raise self._server.error(code, await call.details())
        return bytes(await call)

    async def close(self) -> None:
        self._closed = True
        if self._channel is not None:
            await self._channel.close()

    def _start(self, path: str, message: bytes, timeout: float | None, metadata: Pairs) -> Any:
        loop = asyncio.get_running_loop()
        if self._closed:
            raise _closed()
        if self._channel is None:
            self._loop = loop
            server = self._server
            if server.credentials is None:
                self._channel = grpc.aio.insecure_channel(server.address, server.options)
            else:
                self._channel = grpc.aio.secure_channel(server.address, server.credentials, server.options)
            self._methods = {path: self._channel.unary_unary(path) for path in METHODS}
        if self._loop is not loop:
            raise FailedPrecondition("this client belongs to another event loop: make one in each")
        return self._methods[path](message, timeout=timeout, metadata=metadata)


def _run(coroutine: Coroutine[Any, Any, T]) -> T:
    """What a coroutine returns that nothing suspends."""
    try:
        coroutine.send(None)
    except StopIteration as returned:
        result: T = returned.value
        return result
    raise AssertionError("a blocking connection has suspended its coroutine")


def _channel_options(retries: int) -> list[tuple[str, Any]]:
    if not isinstance(retries, int) or not 0 <= retries <= RETRIES_MAX:
        raise InvalidArgument(f"retries is {retries!r}; it must be 0 to {RETRIES_MAX}")
    options: list[tuple[str, Any]] = [
        ("grpc.max_receive_message_length", -1),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_reconnect_backoff_ms", RECONNECT_MS_MAX),
    ]
    if retries:
        policy = {
            "maxAttempts": 1 + retries,
            "initialBackoff": "0.1s",
            "maxBackoff": "1s",
            "backoffMultiplier": 2,
            "retryableStatusCodes": ["UNAVAILABLE"],
        }
        options += [
            ("grpc.service_config", json.dumps({"methodConfig": [{"name": [{}], "retryPolicy": policy}]})),
            # A request that does not fit in here is not retried.
            ("grpc.per_rpc_retry_buffer_size", MESSAGE_BYTES_MAX),
        ]
    return options


def _too_late() -> DeadlineExceeded:
    return DeadlineExceeded("Deadline Exceeded")  # gRPC's text


def _closed() -> Unavailable:
    return Unavailable("the client is closed")
