# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import queue
import re
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from grpc import StatusCode
from grpc_health.v1 import health_pb2, health_pb2_grpc

from headrace import _core
from headrace.config import GrpcOptions
from headrace.errors import Code, FailedPrecondition, HeadraceError, NotFound
from headrace.server.health import NOT_SERVING, SERVING, Health
from headrace.server.native import CONTROL_THREADS, NativeServer
from headrace.server.services import HEALTH_CHECK, PREDICT, Handler, PerMessage, Unary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

LIMIT_S = 30.0

ECHO: Mapping[str, Handler] = {"/s/Echo": Unary(lambda message: message)}


@contextmanager
def serving(
    control: Mapping[str, Handler] = ECHO, health: Health | None = None, **options: Any
) -> Iterator[tuple[NativeServer, Any]]:
    """A server without models, and a channel to it."""
    server = NativeServer(_core.Router(), control, health or Health([]), GrpcOptions(**options))
    port = server.start("127.0.0.1", 0)
    try:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield server, channel
    finally:
        server.stop(0.0, 1.0)


def refusal(call: Callable[[], Any]) -> tuple[StatusCode, str]:
    with pytest.raises(grpc.RpcError) as raised:
        call()
    return raised.value.code(), raised.value.details() or ""


# --- control calls ----------------------------------------------------------------------------------------------------


def test_a_handler_gets_the_message_and_gives_the_response() -> None:
    control = {"/s/Reverse": Unary(lambda message: message[::-1]), **ECHO}
    with serving(control) as (_, channel):
        assert channel.unary_unary("/s/Reverse")(b"abc", timeout=LIMIT_S) == b"cba"
        assert channel.unary_unary("/s/Echo")(b"", timeout=LIMIT_S) == b""
        large = bytes(range(256)) * 4096
        assert channel.unary_unary("/s/Reverse")(large, timeout=LIMIT_S) == large[::-1]
        assert refusal(lambda: channel.unary_unary("/s/Other")(b"", timeout=LIMIT_S))[0] is StatusCode.UNIMPLEMENTED


def test_every_message_of_a_stream_has_its_reply_in_order() -> None:
    with serving({"/s/Each": PerMessage(lambda message: message * 2)}) as (_, channel):
        replies = channel.stream_stream("/s/Each")((b"%d," % i for i in range(100)), timeout=LIMIT_S)
        assert list(replies) == [b"%d,%d," % (i, i) for i in range(100)]


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (NotFound("no modèle"), StatusCode.NOT_FOUND, "no modèle"),
        (HeadraceError(Code.ABORTED, ""), StatusCode.ABORTED, ""),
        (HeadraceError(Code.INTERNAL, "x" * 5000), StatusCode.INTERNAL, "x" * 1024 + "...TRUNCATED"),
        (KeyError("k"), StatusCode.UNKNOWN, "Unexpected <class 'KeyError'>: 'k'"),
        (NotFound("half a \ud800 pair"), StatusCode.NOT_FOUND, "half a ? pair"),
    ],
)
def test_an_error_of_a_handler_is_the_call_s_status(error: Exception, code: StatusCode, text: str) -> None:
    def fail(_: bytes) -> bytes:
        raise error

    with serving({"/s/Fail": Unary(fail), "/s/FailEach": PerMessage(fail), **ECHO}) as (_, channel):
        assert refusal(lambda: channel.unary_unary("/s/Fail")(b"", timeout=LIMIT_S)) == (code, text)
        assert refusal(lambda: list(channel.stream_stream("/s/FailEach")(iter([b""]), timeout=LIMIT_S))) == (code, text)
        assert channel.unary_unary("/s/Echo")(b"on", timeout=LIMIT_S) == b"on"


def test_busy_handlers_hold_up_neither_predict_nor_health() -> None:
    entered, leave = threading.Semaphore(0), threading.Event()

    def block(message: bytes) -> bytes:
        entered.release()
        assert leave.wait(LIMIT_S)
        return message

    with serving({"/s/Block": Unary(block)}) as (_, channel), ThreadPoolExecutor(CONTROL_THREADS + 1) as pool:
        call = channel.unary_unary("/s/Block")
        calls = [pool.submit(call, b"%d" % i, timeout=LIMIT_S) for i in range(CONTROL_THREADS + 1)]
        for _ in range(CONTROL_THREADS):
            assert entered.acquire(timeout=LIMIT_S)
        assert refusal(lambda: channel.unary_unary(PREDICT)(b"", timeout=LIMIT_S))[0] is StatusCode.INVALID_ARGUMENT
        assert channel.unary_unary(HEALTH_CHECK)(b"", timeout=LIMIT_S) == b"\x08\x02"
        leave.set()
        assert [each.result(LIMIT_S) for each in calls] == [b"%d" % i for i in range(CONTROL_THREADS + 1)]


def test_calls_beyond_those_that_may_wait_are_refused() -> None:
    server = _core.GrpcServer(_core.Router(), {"/s/Echo": False}, handler_calls_max=2)
    port = server.start("127.0.0.1", 0)
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        call: Any = channel.unary_unary("/s/Echo")
        ended: queue.SimpleQueue[Any] = queue.SimpleQueue()
        for i in range(3):
            call.future(b"%d" % i, timeout=LIMIT_S).add_done_callback(ended.put)
        refused = ended.get(timeout=LIMIT_S)
        assert refused.code() is StatusCode.RESOURCE_EXHAUSTED
        assert refused.details() == "2 control calls are waiting already"
        for _ in range(2):
            taken = server.next_call()
            assert taken is not None
            assert taken.path == "/s/Echo"
            taken.answer(taken.message)
            assert ended.get(timeout=LIMIT_S).result() == taken.message
    assert server.stop(1.0, 1.0)


def test_a_call_that_is_dropped_is_answered() -> None:
    server = _core.GrpcServer(_core.Router(), {"/s/Echo": False})
    port = server.start("127.0.0.1", 0)
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        method: Any = channel.unary_unary("/s/Echo")
        waiting = method.future(b"", timeout=LIMIT_S)
        call = server.next_call()
        assert call is not None
        for code in (0, -1, 17):
            with pytest.raises(_core.StatusError, match="from 1 to 16"):
                call.fail(code, "")
        del call
        assert waiting.code() is StatusCode.INTERNAL
        assert "/s/Echo" in waiting.details()
    assert server.stop(1.0, 1.0)
    assert server.next_call() is None


# --- health -----------------------------------------------------------------------------------------------------------


def test_health_is_what_health_says() -> None:
    health = Health(["a"])
    with serving(health=health) as (_, channel):
        stub: Any = health_pb2_grpc.HealthStub(channel)
        states = stub.Watch(health_pb2.HealthCheckRequest(service="a"), timeout=LIMIT_S)
        assert next(states).status == NOT_SERVING
        health.serve()
        assert next(states).status == SERVING
        for service in ("", "a"):
            assert stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=LIMIT_S).status == SERVING
        asked = health_pb2.HealthCheckRequest(service="b")
        assert refusal(lambda: stub.Check(asked, timeout=LIMIT_S)) == (StatusCode.NOT_FOUND, 'no service "b" here')
        health.stop()
        assert next(states).status == NOT_SERVING


def test_health_has_four_states() -> None:
    server = _core.GrpcServer(_core.Router(), {})
    for serving_status in range(4):
        server.set_health("", serving_status)
    for serving_status in (-1, 4):
        with pytest.raises(_core.StatusError, match="0 to 3"):
            server.set_health("", serving_status)


# --- TLS --------------------------------------------------------------------------------------------------------------


def test_a_certificate_that_is_none_is_refused_and_changes_nothing() -> None:
    server = _core.GrpcServer(_core.Router(), {})
    server.set_health("", SERVING)
    with pytest.raises(_core.StatusError, match=r"^private_key: no key can be read") as raised:
        server.set_tls(private_key="", certificate="", client_ca="", verify_client=False)
    assert raised.value.code == Code.INVALID_ARGUMENT
    port = server.start("127.0.0.1", 0)
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        check: Any = channel.unary_unary(HEALTH_CHECK)
        assert check(b"", timeout=LIMIT_S) == b"\x08\x01"
    assert server.stop(1.0, 1.0)


# --- limits -----------------------------------------------------------------------------------------------------------


def test_a_message_over_the_limit_is_refused() -> None:
    with serving(grpc_message_bytes_max=1000) as (_, channel):
        call = channel.unary_unary("/s/Echo")
        assert len(call(bytes(1000), timeout=LIMIT_S)) == 1000
        assert refusal(lambda: call(bytes(1001), timeout=LIMIT_S))[0] is StatusCode.RESOURCE_EXHAUSTED
        zipped = {"timeout": LIMIT_S, "compression": grpc.Compression.Gzip}
        assert len(call(bytes(1000), **zipped)) == 1000
        assert refusal(lambda: call(bytes(1001), **zipped))[0] is StatusCode.RESOURCE_EXHAUSTED


def test_headers_over_the_limit_are_refused() -> None:
    with serving(grpc_header_bytes_max=2000) as (_, channel):
        call = channel.unary_unary("/s/Echo")
        assert call(b"x", timeout=LIMIT_S, metadata=[("k", "v" * 1000)]) == b"x"
        code, _ = refusal(lambda: call(b"x", timeout=LIMIT_S, metadata=[("k", "v" * 3000)]))
        assert code is StatusCode.RESOURCE_EXHAUSTED
        assert call(b"x", timeout=LIMIT_S) == b"x"


def test_messages_that_do_not_fit_in_memory_are_refused() -> None:
    with serving(grpc_buffered_bytes_max=1 << 20) as (_, channel):
        call = channel.unary_unary("/s/Echo")
        assert refusal(lambda: call(bytes((1 << 20) + 1), timeout=LIMIT_S))[0] is StatusCode.RESOURCE_EXHAUSTED
        for _ in range(100):  # what is answered makes room again
            assert len(call(bytes(1 << 16), timeout=LIMIT_S)) == 1 << 16


def test_connections_beyond_the_limit_are_closed_and_others_served() -> None:
    with serving(grpc_connections_max=1) as (_, channel):
        assert channel.unary_unary("/s/Echo")(b"x", timeout=LIMIT_S) == b"x"
        port = int(channel._channel.target().decode().rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), LIMIT_S) as second:
            assert second.recv(1 << 16) == b""
        assert channel.unary_unary("/s/Echo")(b"x", timeout=LIMIT_S) == b"x"


@pytest.mark.parametrize("loops", [1, 3])
def test_calls_beyond_the_streams_of_a_connection_wait_their_turn(loops: int) -> None:
    with serving(grpc_streams_max=2, grpc_loops=loops) as (_, channel):
        call = channel.unary_unary("/s/Echo")
        calls = [call.future(b"%d" % i, timeout=LIMIT_S) for i in range(50)]
        assert [each.result() for each in calls] == [b"%d" % i for i in range(50)]


def test_requests_beyond_the_limit_of_all_connections_are_refused() -> None:
    entered, leave = threading.Semaphore(0), threading.Event()

    def block(message: bytes) -> bytes:
        entered.release()
        assert leave.wait(LIMIT_S)
        return message

    with serving({"/s/Block": Unary(block)}, grpc_requests_max=2) as (_, channel):
        call = channel.unary_unary("/s/Block")
        calls = [call.future(b"%d" % i, timeout=LIMIT_S) for i in range(2)]
        for _ in calls:
            assert entered.acquire(timeout=LIMIT_S)
        assert refusal(lambda: channel.unary_unary(PREDICT)(b"", timeout=LIMIT_S)) == (
            StatusCode.RESOURCE_EXHAUSTED,
            "the server has 2 requests under way, and takes no more (--grpc_requests_max)",
        )
        leave.set()
        assert [each.result() for each in calls] == [b"0", b"1"]
        assert call(b"2", timeout=LIMIT_S) == b"2"


@pytest.mark.parametrize("option", ["grpc_request_seconds", "grpc_idle_seconds"])
def test_a_connection_that_says_nothing_is_closed_in_time_and_not_before(option: str) -> None:
    options: dict[str, Any] = {option: 0.2}
    with serving(**options) as (_, channel):
        assert channel.unary_unary("/s/Echo")(b"x", timeout=LIMIT_S) == b"x"
        port = int(channel._channel.target().decode().rpartition(":")[2])
        began = time.monotonic()
        with socket.create_connection(("127.0.0.1", port), LIMIT_S) as silent:
            while silent.recv(1 << 16):
                pass
        assert time.monotonic() - began >= 0.2


# --- channel arguments ------------------------------------------------------------------------------------------------


def test_channel_arguments_are_limits_and_the_others_are_warned_of_in_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    text = "grpc.max_receive_message_length=1000,grpc.lb_policy_name=grpclb,grpc.so_reuseport=1"
    with serving(grpc_channel_arguments=text, grpc_message_bytes_max=5000) as (_, channel):
        call = channel.unary_unary("/s/Echo")
        assert len(call(bytes(1000), timeout=LIMIT_S)) == 1000
        assert refusal(lambda: call(bytes(1001), timeout=LIMIT_S))[0] is StatusCode.RESOURCE_EXHAUSTED
    [record] = caplog.records
    ignored = "grpc_channel_arguments: the native transport has nothing for grpc.lb_policy_name, grpc.so_reuseport;"
    assert record.getMessage() == f"{ignored} --grpc_transport=grpcio takes them all"


def test_calls_go_on_while_their_connections_grow_old() -> None:
    with serving(grpc_channel_arguments="grpc.max_connection_age_ms=100") as (_, channel):
        call = channel.unary_unary("/s/Echo")
        began = time.monotonic()
        while time.monotonic() - began < 1.5:
            assert call(b"x", timeout=LIMIT_S, wait_for_ready=True) == b"x"


# --- beginning and end ------------------------------------------------------------------------------------------------


def test_a_taken_port_is_said_and_nothing_is_left() -> None:
    server = NativeServer(_core.Router(), ECHO, Health([]), GrpcOptions())
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(FailedPrecondition) as raised:
            server.start("127.0.0.1", port)
    assert str(raised.value) == f"port {port}: address already in use; choose another with port="
    assert not any(thread.is_alive() for thread in server._threads)


def test_what_is_not_answered_in_time_is_given_up() -> None:
    entered, leave = threading.Event(), threading.Event()

    def block(message: bytes) -> bytes:
        entered.set()
        assert leave.wait(LIMIT_S)
        return message

    with serving({"/s/Block": Unary(block)}) as (server, channel):
        call = channel.unary_unary("/s/Block").future(b"", timeout=LIMIT_S)
        assert entered.wait(LIMIT_S)
        assert not server.stop(0.05, 1.0)
        assert (call.code(), call.details()) == (
            StatusCode.UNAVAILABLE,
            "the server stopped before there was an answer",
        )
        leave.set()


def test_no_call_is_taken_after_refuse_and_those_before_are_answered() -> None:
    entered, leave = threading.Event(), threading.Event()

    def block(message: bytes) -> bytes:
        entered.set()
        assert leave.wait(LIMIT_S)
        return message

    with serving({"/s/Block": Unary(block)}) as (server, channel):
        call = channel.unary_unary("/s/Block").future(b"before", timeout=LIMIT_S)
        assert entered.wait(LIMIT_S)
        server.refuse()
        said = refusal(lambda: channel.unary_unary(PREDICT)(b"", timeout=LIMIT_S))
        assert said == (StatusCode.UNAVAILABLE, "the server is stopping")
        leave.set()
        assert call.result() == b"before"
        assert server.stop(LIMIT_S, LIMIT_S)


PROGRAM = """
import os, sys, threading
from headrace import _core
from headrace.config import GrpcOptions
from headrace.server.health import Health
from headrace.server.native import NativeServer
from headrace.server.services import Unary

entered = threading.Event()

def block(message):
    entered.set()
    threading.Event().wait()

server = NativeServer(_core.Router(), {"/s/Echo": Unary(bytes), "/s/Block": Unary(block)}, Health([]), GrpcOptions())
print(server.start("127.0.0.1", 0), flush=True)
"""


@contextmanager
def program(text: str) -> Iterator[Any]:
    """A process with a server, and a channel to it; it must end well and within the limit."""
    command = [sys.executable, "-c", PROGRAM + text]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        with grpc.insecure_channel(f"127.0.0.1:{int(process.stdout.readline())}") as channel:
            yield channel
            _, said = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, said
    assert said == ""


@pytest.mark.parametrize("dropped", ["", "del server"])
def test_a_process_may_end_while_calls_are_under_way(dropped: str) -> None:
    with program(f"entered.wait()\n{dropped}") as channel:
        assert channel.unary_unary("/s/Echo")(b"x", timeout=LIMIT_S) == b"x"
        said = refusal(lambda: channel.unary_unary("/s/Block")(b"", timeout=LIMIT_S))
        assert said == (StatusCode.UNAVAILABLE, "the server stopped before there was an answer")


def test_a_forked_child_has_no_server_and_the_parent_keeps_its_own() -> None:
    text = """
child = os.fork()
if child == 0:
    for use in (lambda: server.stop(0.0, 0.0), server.refuse, lambda: server.start("127.0.0.1", 0)):
        try:
            use()
        except _core.StatusError as error:
            assert "made before fork()" in str(error), error
        else:
            os._exit(3)
    sys.exit(0)  # which finds what is the parent's, and leaves it alone
_, status = os.waitpid(child, 0)
assert status == 0, status
entered.wait()
assert not server.stop(0.0, 30.0)
"""
    with program(text) as channel:
        assert channel.unary_unary("/s/Echo")(b"x", timeout=LIMIT_S) == b"x"
        code, _ = refusal(lambda: channel.unary_unary("/s/Block")(b"", timeout=LIMIT_S))
        assert code is StatusCode.UNAVAILABLE


def test_the_module_brings_its_own_zlib() -> None:
    """A process that has imported tensorflow exports zlib's names, with TensorFlow's zlib behind them."""
    wanted = subprocess.run(
        ["nm", "-D", "--undefined-only", str(_core.__file__)], capture_output=True, text=True, check=True
    )
    assert not re.search(r"\b(inflate|deflate|crc32|adler32)", wanted.stdout)
