# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import asyncio
import gc
import logging
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2

from headrace import engine
from headrace.batched_function import batched
from headrace.client import AsyncClient, Client
from headrace.config import BatchingOptions
from headrace.errors import FailedPrecondition, HeadraceError, InvalidArgument, NotFound, Unavailable
from headrace.model import LoadedModel, load
from headrace.server.grpc_server import _on_loop_error
from headrace.server.server import Server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LIMIT_S = 30.0

Floats = Any  # an array of float32


@pytest.fixture(scope="module")
def half(saved_models: Path) -> LoadedModel:
    return load(saved_models / "half_plus_two")


@pytest.fixture(autouse=True, params=["grpcio", "native"])
def transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each transport: what serves gRPC where a test does not say it."""
    defaults = Server.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "grpc_transport", request.param)
    return str(request.param)


@pytest.fixture
def server(half: LoadedModel) -> Iterator[Server]:
    """As a user's fixture would be."""
    with Server({"half": half}, port=0) as running:
        yield running


def ask(server: Server, model: str = "half", value: float = 1.0) -> Any:
    """One call over the network by a client of its own."""
    with Client(server.grpc_address) as client:
        [answer] = client.predict(model, {"x": np.array([value], np.float32)}, timeout=LIMIT_S).values()
        return answer.tolist()


def double(x: Floats) -> Floats:
    return x * 2


def is_busy(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def ours() -> list[str]:
    """Names of the threads of Headrace, Python's and native ones, and engines that are open."""
    python = [thread.name for thread in threading.enumerate() if thread.name.startswith("headrace")]
    native = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    return sorted(
        [*python, *(name for name in native if name.startswith("headrace")), *map(repr, engine._open_engines)]
    )


def wait_for(condition: Callable[[], bool]) -> None:
    """Waits for what nothing announces."""
    until = time.monotonic() + LIMIT_S
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < until
        pause.wait(0.001)


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    before = ours()
    yield
    wait_for(lambda: ours() == before)


# --- starting ---------------------------------------------------------------------------------------------------------


def test_it_serves_from_start_to_stop(half: LoadedModel) -> None:
    server = Server({"half": half}, port=0)
    server.start()
    assert ask(server) == [2.5]
    port = int(server.grpc_address.rpartition(":")[2])
    assert server.stop()
    assert not is_busy(port)


def test_it_is_a_fixture(server: Server) -> None:
    assert ask(server) == [2.5]


def test_port_0_is_a_free_one_and_the_address_tells_which(server: Server) -> None:
    host, _, port = server.grpc_address.rpartition(":")
    assert host == "127.0.0.1"
    assert is_busy(int(port))


def test_it_listens_on_an_address_of_ipv6(half: LoadedModel) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 here")
    with Server({"half": half}, host="::1", port=0) as server:
        assert server.grpc_address.startswith("[::1]:")
        assert ask(server) == [2.5]


def test_the_name_in_the_mapping_is_the_model_s(half: LoadedModel) -> None:
    with Server({"a": half, "b": half}, port=0) as server:
        assert ask(server, "a") == ask(server, "b") == [2.5]
        with pytest.raises(NotFound, match="half_plus_two"):
            ask(server, "half_plus_two")
        assert [name for name, _ in server.lanes()] == ["a/serving_default", "b/serving_default"]


def test_two_servers_of_one_model_live_beside_each_other(half: LoadedModel) -> None:
    with Server({"a": half}, port=0) as one, Server({"b": half}, port=0) as other:
        assert one.grpc_address != other.grpc_address
        assert ask(one, "a") == ask(other, "b") == [2.5]
        assert one.stop()
        assert ask(other, "b") == [2.5]


def test_it_starts_again_after_it_stopped(half: LoadedModel) -> None:
    server = Server({"half": half, "double": double}, port=0)
    for _ in range(3):
        with server:
            assert ask(server) == [2.5]
            assert ask(server, "double") == [2.0]


def test_a_running_server_does_not_start_again(server: Server) -> None:
    with pytest.raises(FailedPrecondition, match="running already"):
        server.start()
    assert ask(server) == [2.5]


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_taken_port_is_said_and_nothing_is_left_running(half: LoadedModel, host: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = Server({"half": half}, host=host, port=port)
        with pytest.raises(FailedPrecondition) as raised:
            server.start()
        assert str(raised.value) == f"port {port}: address already in use; choose another with port="
        assert server.stop()
    with server:
        assert ask(server) == [2.5]


def test_a_port_that_is_taken_at_the_last_moment_is_said(half: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.server.server.check_port", lambda *_: None)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(FailedPrecondition, match=f"port {port}: address already in use"):
            Server({"half": half}, port=port).start()


@pytest.mark.parametrize("step", ["engine.Engine.add", "server.server.control_services"])
def test_a_failure_while_it_starts_is_raised_and_leaves_nothing(
    half: LoadedModel, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise MemoryError("no more")

    server = Server({"double": double, "half": half}, port=0)
    with monkeypatch.context() as patched:
        patched.setattr(f"headrace.{step}", fail)
        with pytest.raises(MemoryError, match="no more"):
            server.start()
    assert server.wait(0.0)
    with server:
        assert ask(server) == [2.5]


@pytest.mark.parametrize(
    ("models", "said"),
    [
        ({}, "no models to serve"),
        ({"x": 3}, 'model "x" is of type int; it must be a LoadedModel, .* or a callable'),
        ({"x": "models/x"}, 'model "x" is of type str'),
        ({"": double}, "a model's name is ''"),
        ({3: double}, "a model's name is 3"),
    ],
)
def test_what_cannot_be_served_is_said(models: Any, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        Server(models)


@pytest.mark.parametrize(
    "options", [{"port": -1}, {"port": 65536}, {"port": "8500"}, {"executor": "other"}, {"grpc_transport": "x"}]
)
def test_a_bad_option_is_said(options: Any) -> None:
    [name] = options
    with pytest.raises(InvalidArgument, match=f"^{name} is "):
        Server({"double": double}, **options)


def test_without_a_start_there_is_nothing_to_stop_or_to_wait_for(half: LoadedModel) -> None:
    server = Server({"half": half}, port=0)
    assert server.stop()
    for use in (server.wait, lambda: server.grpc_address, server.lanes):
        with pytest.raises(FailedPrecondition, match="start"):
            use()


def test_a_stopped_server_has_no_address(half: LoadedModel) -> None:
    with Server({"half": half}, port=0) as server:
        pass
    with pytest.raises(FailedPrecondition, match="not running"):
        _ = server.grpc_address


def test_it_takes_no_signals_and_sets_up_no_logging(half: LoadedModel) -> None:
    def state() -> Any:
        handlers = [signal.getsignal(number) for number in signal.valid_signals()]
        loggers = (logging.getLogger(), logging.getLogger("headrace"))
        return handlers, [(logger.level, list(logger.handlers)) for logger in loggers], sys.getswitchinterval()

    before = state()
    with Server({"half": half}, port=0) as server:
        assert ask(server) == [2.5]
        assert state() == before
    assert state() == before


def test_the_log_says_what_is_served_how_and_where(half: LoadedModel, caplog: pytest.LogCaptureFixture) -> None:
    with Server({"a": half, "double": double}, port=0) as server:
        address = server.grpc_address
    assert "a/serving_default: policy adaptive, a lone request never waits" in caplog.text
    assert "double/serving_default: policy adaptive" in caplog.text
    assert f"serving a version 1, double version 1 on {address}" in caplog.text


class Scale:
    def __init__(self, factor: float) -> None:
        self.factor = factor

    @batched
    def scale(self, x: Floats) -> Floats:
        return x * self.factor


def test_what_is_served_lives_as_long_as_the_server() -> None:
    with Server({"double": batched(double), "scale": Scale(3.0).scale}, port=0) as server:
        gc.collect()
        assert ask(server, "double") == [2.0]
        assert ask(server, "scale") == [3.0]
    del server
    gc.collect()


def test_a_function_that_cannot_be_served_is_said_and_leaves_nothing(half: LoadedModel) -> None:
    closed = batched(double)
    closed.close()
    cases: list[tuple[Any, type[HeadraceError], str]] = [
        (closed, Unavailable, "closed"),
        (Scale.scale, FailedPrecondition, "method"),
        (lambda: 1, InvalidArgument, "no parameters"),
    ]
    for function, error, said in cases:
        with pytest.raises(error, match=said):
            Server({"half": half, "x": function}, port=0).start()


# --- stopping ---------------------------------------------------------------------------------------------------------


def test_stop_may_be_called_again_and_by_many_threads(half: LoadedModel) -> None:
    server = Server({"half": half}, port=0)
    server.start()
    outcomes = []
    threads = [threading.Thread(target=lambda: outcomes.append(server.stop())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    assert outcomes == [True] * 8
    assert server.stop()


def test_starting_and_stopping_again_and_again_costs_no_descriptors(half: LoadedModel) -> None:
    def descriptors() -> int:
        gc.collect()
        return len(list(Path("/proc/self/fd").iterdir()))

    server = Server({"half": half, "double": double}, port=0)
    counts = []
    for _ in range(6):
        with server:
            assert ask(server) == [2.5]
        counts.append(descriptors())
    assert counts[1:] == [counts[1]] * 5


@pytest.mark.parametrize("timeout", [-1.0, 0, math.inf])
def test_any_length_of_time_will_do(half: LoadedModel, timeout: float) -> None:
    server = Server({"half": half, "double": double, "other": batched(double)}, port=0)
    server.start()
    assert server.stop(timeout)


def test_no_length_of_time_is_refused_and_it_runs_on(server: Server) -> None:
    with pytest.raises(TypeError):
        server.stop(None)  # type: ignore[arg-type]
    assert ask(server) == [2.5]


def test_whoever_waits_hears_of_the_stop(half: LoadedModel) -> None:
    with Server({"half": half}, port=0) as server:
        assert not server.wait(0.01)
        stopper = threading.Thread(target=server.stop)
        stopper.start()
        assert server.wait(LIMIT_S)
        assert server.wait()
        stopper.join(LIMIT_S)


class Interrupted(Exception):
    """What a signal handler of the tests raises."""


@pytest.fixture
def on_signal() -> Iterator[Callable[[Callable[[], object]], None]]:
    """Sets what SIGUSR1 does."""
    before = signal.getsignal(signal.SIGUSR1)

    def handle(action: Callable[[], object]) -> None:
        signal.signal(signal.SIGUSR1, lambda _number, _frame: action())

    yield handle
    signal.signal(signal.SIGUSR1, before)


def send_signal() -> None:
    os.kill(os.getpid(), signal.SIGUSR1)


def test_a_signal_handler_may_stop_it(half: LoadedModel, on_signal: Any) -> None:
    outcomes: list[bool] = []
    with Server({"half": half}, port=0) as server:
        on_signal(lambda: outcomes.append(server.stop()))
        threading.Timer(0.01, send_signal).start()
        assert server.wait(LIMIT_S)
        assert outcomes == [True]
        with pytest.raises(FailedPrecondition, match="not running"):
            _ = server.grpc_address


def test_a_callback_of_a_reply_may_stop_it() -> None:
    function = batched(double)
    server = Server({"double": function}, port=0)
    server.start()
    outcomes: list[bool] = []
    function.submit(np.ones([1], np.float32)).add_done_callback(lambda _: outcomes.append(server.stop()))
    assert server.wait(LIMIT_S)
    wait_for(lambda: outcomes == [True])
    assert function.close()


def while_starting(monkeypatch: pytest.MonkeyPatch, action: Callable[[], object]) -> None:
    """Lets a server do something in the middle of its start."""
    add = engine.Engine.add

    def add_and_act(*arguments: Any, **options: Any) -> Any:
        action()
        return add(*arguments, **options)

    monkeypatch.setattr(engine.Engine, "add", add_and_act)


def test_a_signal_handler_may_stop_it_while_it_starts(
    half: LoadedModel, on_signal: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server({"half": half}, port=0)
    outcomes: list[bool] = []
    handled = threading.Event()

    def stop() -> None:
        handled.set()
        outcomes.append(server.stop())

    def interrupt() -> None:
        send_signal()
        assert handled.wait(LIMIT_S)

    on_signal(stop)
    while_starting(monkeypatch, interrupt)
    server.start()
    assert outcomes == [True]
    assert server.wait(0.0)


def test_ctrl_c_while_it_starts_leaves_nothing(
    half: LoadedModel, on_signal: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server({"half": half}, port=0)
    handled = threading.Event()

    def give_up() -> None:
        handled.set()
        raise Interrupted

    def interrupt() -> None:
        send_signal()
        assert handled.wait(LIMIT_S)

    on_signal(give_up)
    while_starting(monkeypatch, interrupt)
    with pytest.raises(Interrupted):
        server.start()
    assert server.wait(0.0)


def test_ctrl_c_interrupts_the_wait_within_100_ms(server: Server) -> None:
    def interrupted_after_s() -> float:
        sent: list[float] = []

        def interrupt() -> None:
            sent.append(time.perf_counter())
            os.kill(os.getpid(), signal.SIGINT)

        threading.Timer(0.01, interrupt).start()
        with pytest.raises(KeyboardInterrupt):
            server.wait()
        return time.perf_counter() - sent[0]

    assert min(interrupted_after_s() for _ in range(5)) < 0.1
    assert ask(server) == [2.5]


def test_health_says_serving_until_it_stops(half: LoadedModel) -> None:
    with Server({"half": half}, port=0) as server, grpc.insecure_channel(server.grpc_address) as channel:
        watch = channel.unary_stream(
            "/grpc.health.v1.Health/Watch",
            health_pb2.HealthCheckRequest.SerializeToString,
            health_pb2.HealthCheckResponse.FromString,
        )
        states = watch(health_pb2.HealthCheckRequest(service="tensorflow.serving.PredictionService"), timeout=LIMIT_S)
        assert next(states).status == health_pb2.HealthCheckResponse.SERVING
        assert server.stop()
        assert [state.status for state in states] == [health_pb2.HealthCheckResponse.NOT_SERVING]


def test_what_was_accepted_is_answered_and_what_comes_later_is_refused(half: LoadedModel) -> None:
    options = BatchingOptions(batch_timeout_micros=3_600_000_000)
    with Server({"half": half}, port=0, options=options) as server, Client(server.grpc_address) as client:
        [(_, lane)] = server.lanes()
        answers: list[Any] = []

        def call() -> None:
            answers.append(client.predict("half", {"x": np.ones([1], np.float32)}, timeout=LIMIT_S)["y"].tolist())

        threads = [threading.Thread(target=call) for _ in range(5)]
        for thread in threads:
            thread.start()
        wait_for(lambda: lane.stats()["waiting_rows"] == 5)
        assert server.stop()
        for thread in threads:
            thread.join(LIMIT_S)
        assert answers == [[2.5]] * 5
        with pytest.raises(Unavailable):
            client.predict("half", {"x": np.ones([1], np.float32)}, timeout=LIMIT_S)


# --- in other surroundings --------------------------------------------------------------------------------------------


def test_it_runs_beside_an_event_loop(half: LoadedModel) -> None:
    async def run() -> list[Any]:
        with Server({"half": half}, port=0) as server:
            async with AsyncClient(server.grpc_address) as client:
                rows = [np.array([i], np.float32) for i in range(50)]
                answers = await asyncio.gather(*(client.predict("half", {"x": x}, timeout=LIMIT_S) for x in rows))
        return [answer["y"].tolist() for answer in answers]

    for _ in range(2):
        assert asyncio.run(run()) == [[i / 2 + 2] for i in range(50)]


def test_its_loop_tells_of_failures_but_not_of_what_grpc_wakes_it_for_in_vain(caplog: pytest.LogCaptureFixture) -> None:
    def fail(error: Exception) -> None:
        raise error

    loop = asyncio.new_event_loop()
    loop.set_exception_handler(_on_loop_error)
    for error in (BlockingIOError("in vain"), ValueError("a failure")):
        loop.call_soon(fail, error)
    loop.call_soon(loop.stop)
    loop.run_forever()
    loop.close()
    assert "a failure" in caplog.text
    assert "in vain" not in caplog.text


PROGRAM = """
import os, sys, threading
import numpy as np
import headrace.model
from headrace.client import Client
from headrace.errors import FailedPrecondition
from headrace.server.server import Server

server = Server({"half": headrace.model.load(sys.argv[1])}, port=0, grpc_transport=sys.argv[2])
server.start()

def ask():
    with Client(server.grpc_address) as client:
        print(client.predict("half", {"x": np.ones([1], np.float32)}, timeout=30)["y"].tolist(), flush=True)

ask()
"""


def output(saved_models: Path, transport: str, program: str) -> str:
    """What the program prints; it must end well and within the limit."""
    command = [sys.executable, "-c", PROGRAM + program, str(saved_models / "half_plus_two"), transport]
    env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False, env=env)
    assert ended.returncode == 0, ended.stderr
    assert "Traceback" not in ended.stderr
    return ended.stdout


def test_a_process_may_end_without_stopping_it(saved_models: Path, transport: str) -> None:
    assert output(saved_models, transport, "") == "[2.5]\n"


def test_a_process_may_end_while_it_is_waited_for(saved_models: Path, transport: str) -> None:
    program = "waiter = threading.Thread(target=server.wait, daemon=True)\nwaiter.start()\n"
    assert output(saved_models, transport, program) == "[2.5]\n"


def test_a_forked_child_has_no_server_and_the_parent_keeps_its_own(saved_models: Path, transport: str) -> None:
    program = """
import warnings
warnings.simplefilter("ignore")
child = os.fork()
if child == 0:
    assert server.stop()
    for use in (server.start, server.wait, lambda: server.grpc_address, server.lanes):
        try:
            use()
        except FailedPrecondition as error:
            assert "was forked" in str(error), error
        else:
            os._exit(3)
    os._exit(0)
_, status = os.waitpid(child, 0)
assert status == 0, status
ask()
assert server.stop()
"""
    assert output(saved_models, transport, program) == "[2.5]\n[2.5]\n"


def test_a_forked_child_that_lives_on_keeps_nothing_of_what_the_parent_closes(
    saved_models: Path, transport: str
) -> None:
    program = """
import warnings
warnings.simplefilter("ignore")
reader, writer = os.pipe()
with Client(server.grpc_address) as client:
    client.predict("half", {"x": np.ones([1], np.float32)}, timeout=30)
    child = os.fork()
    if child == 0:
        os.close(writer)
        os.read(reader, 1)
        os._exit(0)
# The child has the connection's descriptor too, and then the listening socket's.
for _ in range(20):
    ask()
assert server.stop()
os.close(writer)
_, status = os.waitpid(child, 0)
assert status == 0, status
"""
    assert output(saved_models, transport, program) == "[2.5]\n" * 21
