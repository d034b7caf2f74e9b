# SPDX-License-Identifier: Apache-2.0
"""`headrace bench`: what it sends and when, what it says of the answers, and all of it against a small gRPC server."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import grpc
import ml_dtypes
import numpy as np
import pytest

import headrace.tools.bench
from headrace import _core, cli
from headrace.errors import Code, FailedPrecondition, HeadraceError, InvalidArgument, NotFound, Unavailable
from headrace.proto import message_class
from headrace.tensor_proto import array_of, write_array
from headrace.tools import bench_report
from headrace.tools.bench import Progress, ServerCpu, measure, run
from headrace.tools.bench_arrivals import arrivals_ns
from headrace.tools.bench_messages import InputSpec, asker, messages_for, random_array, verdict_on
from headrace.tools.bench_options import BenchOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

ECHO = "/test.Service/Echo"

DT_FLOAT = 1
DT_INT64 = 9


def options_with(target: str = "127.0.0.1:1", **given: Any) -> BenchOptions:
    return BenchOptions(target, **{"model_name": "m", **given})


# --- options ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "address"),
    [
        ("localhost:9000", ("localhost", "9000")),
        ("localhost", ("localhost", "8500")),
        ("[::1]:9000", ("::1", "9000")),
        ("[::1]", ("::1", "8500")),
    ],
)
def test_a_target_is_a_host_and_a_port(target: str, address: tuple[str, str]) -> None:
    assert options_with(target).address == address


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"target": "unix:/tmp/x"}, "only TCP"),
        ({"target": "localhost:http"}, "is no HOST:PORT"),
        ({"target": "localhost:65536"}, "is no HOST:PORT"),
        ({"target": ":8500"}, "is no HOST:PORT"),
        ({"model_name": ""}, "no model to ask"),
        ({"method": "Echo", "message": ("m",)}, "/package.Service/Method"),
        ({"method": ECHO}, "method needs --message"),
        ({"npz": ("a",), "message": ("b",)}, "npz and message"),
        ({"connections": 2}, "connections is 2"),
        ({"concurrency": 2, "threads": 2}, "threads is 2"),
        ({"rate": 5.0, "concurrency": 2}, "concurrency is of a closed loop"),
        ({"rate": 5.0, "arrivals": "times.txt"}, "rate and a file"),
        ({"rate": 5.0, "cv": 2.0}, "cv is of"),
        ({"arrivals": "gamma"}, "arrivals needs --rate"),
        ({"concurrency": 0}, "concurrency is 0"),
        ({"rate": float("nan")}, "rate is nan"),
    ],
)
def test_options_that_do_not_go_together_are_refused(given: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InvalidArgument, match=complaint):
        options_with(**given)


def test_the_command_line_makes_the_options(monkeypatch: pytest.MonkeyPatch) -> None:
    got: list[BenchOptions] = []

    def take(options: BenchOptions) -> int:
        got.append(options)
        return 7

    monkeypatch.setattr(headrace.tools.bench, "run", take)
    assert cli.main(["bench", "h:1", "--model-name=m", "--npz=a", "--npz", "b", "--verify", "--rate", "5"]) == 7
    assert got == [BenchOptions("h:1", model_name="m", npz=("a", "b"), verify=True, rate=5.0)]
    assert cli.main(["bench", "h:1"]) == 2


# --- arrivals ---------------------------------------------------------------------------------------------------------


def variation(arrivals: NDArray[np.int64]) -> float:
    intervals = np.diff(arrivals)
    return float(np.std(intervals) / np.mean(intervals))


@pytest.mark.parametrize(
    ("given", "cv"),
    [
        ({}, 1.0),
        ({"arrivals": "gamma"}, 1.0),
        ({"arrivals": "gamma", "cv": 3.0}, 3.0),
        ({"arrivals": "gamma", "cv": 0.1}, 0.1),
    ],
)
def test_arrivals_have_the_rate_and_the_variation_asked_for(given: dict[str, Any], cv: float) -> None:
    options = options_with(rate=1000.0, duration=99.0, warm_up=1.0, **given)
    arrivals = arrivals_ns(options)
    assert np.all(np.diff(arrivals) >= 0)
    assert arrivals.size == pytest.approx(100_000, rel=0.03 * max(1.0, cv))
    assert arrivals[0] >= 0
    assert arrivals[-1] < 100e9
    assert variation(arrivals) == pytest.approx(cv, rel=0.1)


def test_the_seed_decides_about_arrivals() -> None:
    first = arrivals_ns(options_with(rate=100.0, duration=1.0))
    assert np.array_equal(first, arrivals_ns(options_with(rate=100.0, duration=1.0)))
    assert not np.array_equal(first[:50], arrivals_ns(options_with(rate=100.0, duration=1.0, seed=1))[:50])


def test_so_many_requests_arrive_after_the_warm_up() -> None:
    arrivals = arrivals_ns(options_with(rate=100.0, requests=77, warm_up=0.5))
    assert np.count_nonzero(arrivals >= 0.5e9) == 77
    assert np.count_nonzero(arrivals < 0.5e9) > 20


def test_a_file_of_arrivals_is_taken_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "times.txt"
    file.write_text("0.5\n0.25\n2\n")
    assert arrivals_ns(options_with(arrivals=str(file))).tolist() == [250_000_000, 500_000_000, 2_000_000_000]
    assert arrivals_ns(options_with(arrivals=str(file), duration=1.0)).tolist() == [250_000_000, 500_000_000]
    assert arrivals_ns(options_with(arrivals=str(file), requests=1)).tolist() == [250_000_000]


@pytest.mark.parametrize("text", ["", "soon\n", "-1\n", "nan\n", "1 2\n3 4\n", None])
@pytest.mark.filterwarnings("ignore:loadtxt")
def test_a_file_that_holds_no_times_is_refused(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "times.txt"
    if text is not None:
        file.write_text(text)
    with pytest.raises(InvalidArgument, match=r"times\.txt"):
        arrivals_ns(options_with(arrivals=str(file)))


def test_more_arrivals_than_fit_into_memory_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="at most 100,000,000"):
        arrivals_ns(options_with(rate=1e9))
    with pytest.raises(InvalidArgument, match="raise the duration or the rate"):
        arrivals_ns(options_with(rate=0.001, duration=0.001, warm_up=0.0))


# --- messages ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "shape", "given", "made", "most"),
    [
        (1, (-1, 4), {}, (np.float32, (1, 4)), 1.0),
        (1, (-1, 4), {"rows": 3}, (np.float32, (3, 4)), 1.0),
        (9, (-1, -1), {"open_size": 5}, (np.int64, (1, 5)), 9),
        (4, (2, 2), {}, (np.uint8, (2, 2)), 255),
        (14, (-1,), {}, (ml_dtypes.bfloat16, (1,)), 1.0),
        (10, (-1,), {}, (np.bool_, (1,)), 1),
        (8, (), {}, (np.complex64, ()), 2.0),
    ],
)
def test_random_data_is_of_the_signature_s_dtype_and_shape(
    dtype: int, shape: tuple[int, ...], given: dict[str, Any], made: tuple[Any, tuple[int, ...]], most: float
) -> None:
    array = random_array(InputSpec("x", dtype, shape), options_with(**given), np.random.default_rng(0))
    assert (array.dtype, array.shape) == (np.dtype(made[0]), made[1])
    assert np.all(np.abs(array) <= most)


def test_random_strings_are_of_letters() -> None:
    array = random_array(InputSpec("x", 7, (-1, 2)), options_with(rows=2), np.random.default_rng(0))
    assert array.shape == (2, 2)
    assert all(isinstance(text, bytes) and len(text) == 8 and text.isalpha() for text in array.reshape(-1))


@pytest.mark.parametrize(
    ("spec", "given", "complaint"),
    [
        (InputSpec("x", 1, None), {}, "takes any shape"),
        (InputSpec("x", 1, (-1, -1)), {}, "--open_size"),
        (InputSpec("x", 1, (2,)), {"rows": 2}, "leave out --rows"),
        (InputSpec("x", 0, (-1,)), {}, "--npz"),
    ],
)
def test_a_signature_that_leaves_too_much_open_says_what_to_give(
    spec: InputSpec, given: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(InvalidArgument, match=complaint):
        random_array(spec, options_with(**given), np.random.default_rng(0))


def never(_path: str, _message: bytes) -> bytes:
    raise AssertionError("the server was asked")


def inputs_of(message: bytes) -> dict[str, list[Any]]:
    request = message_class("tensorflow.serving.PredictRequest").FromString(message)
    assert request.model_spec.name == "m"
    return {name: array_of(tensor).tolist() for name, tensor in request.inputs.items()}


def test_an_npz_file_is_one_request_or_many(tmp_path: Path) -> None:
    file = tmp_path / "inputs.npz"
    np.savez(file, x=np.arange(5), y=np.arange(10.0).reshape(5, 2))
    [whole] = messages_for(options_with(npz=(str(file),)), never)
    assert inputs_of(whole) == {"x": [0, 1, 2, 3, 4], "y": np.arange(10.0).reshape(5, 2).tolist()}
    cut = messages_for(options_with(npz=(str(file), str(file)), rows=2), never)
    assert [inputs_of(message)["x"] for message in cut] == [[0, 1], [2, 3], [0, 1], [2, 3]]


@pytest.mark.parametrize(
    ("arrays", "given", "complaint"),
    [
        (None, {}, "not an .npz file"),
        ({"x": np.arange(3), "y": np.arange(4)}, {"rows": 1}, r"\[3, 4\] rows"),
        ({"x": np.arange(3)}, {"rows": 4}, "cut into 4"),
        ({"x": np.array([{}])}, {}, "not an .npz file"),
    ],
)
def test_an_npz_file_that_does_not_fit_is_refused(
    tmp_path: Path, arrays: dict[str, Any] | None, given: dict[str, Any], complaint: str
) -> None:
    file = tmp_path / "inputs.npz"
    file.write_bytes(b"PK or not")
    if arrays is not None:
        np.savez(file, **arrays)
    with pytest.raises(InvalidArgument, match=complaint):
        messages_for(options_with(npz=(str(file),), **given), never)


def test_a_message_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="No such file"):
        messages_for(options_with(message=(str(tmp_path / "none"),)), never)


# --- answers ----------------------------------------------------------------------------------------------------------


def response(**outputs: NDArray[Any]) -> bytes:
    made = message_class("tensorflow.serving.PredictResponse")()
    for name, array in outputs.items():
        write_array(array, made.outputs[name], name)
    return bytes(made.SerializeToString())


def floats(*values: float, dtype: Any = np.float32) -> NDArray[Any]:
    return np.array(values, dtype)


@pytest.mark.parametrize(
    ("answer", "wanted", "near"),
    [
        (response(y=floats(1.000001, 0)), response(y=floats(1, 0)), True),
        (response(y=floats(1.001, 0)), response(y=floats(1, 0)), False),
        (response(y=floats(1, 1e-7)), response(y=floats(1, 0)), True),
        (response(y=floats(np.nan, np.inf)), response(y=floats(np.nan, np.inf), z=floats()), False),
        (response(y=floats(np.nan, 1)), response(y=floats(np.nan, 1.000001)), True),
        (response(y=floats(-np.inf, 1)), response(y=floats(np.inf, 1)), False),
        (response(y=floats(1)), response(y=floats(1, 1)), False),
        (response(y=floats(1)), response(y=floats(1, dtype=np.float64)), False),
        (response(y=floats(1.01, dtype=ml_dtypes.bfloat16)), response(y=floats(1, dtype=ml_dtypes.bfloat16)), True),
        (response(y=floats(1.5, dtype=ml_dtypes.bfloat16)), response(y=floats(1, dtype=ml_dtypes.bfloat16)), False),
        (response(y=np.array([1, 2])), response(y=np.array([1, 3])), False),
        (b"\xff", response(y=floats(1)), False),
    ],
)
def test_answers_are_near_where_only_floats_differ_a_little(answer: bytes, wanted: bytes, near: bool) -> None:
    verdict = verdict_on([[(answer, 3)]], [wanted], options_with(), 0)
    assert (verdict.equal, verdict.near, verdict.different) == (0, 3 * near, 3 * (not near))


def test_each_message_has_its_own_right_answer() -> None:
    answers = [[(b"a", 2), (b"b", 1)], [(b"b", 4)], []]
    verdict = verdict_on(answers, [b"a", b"b", b"c"], options_with(method=ECHO, message=("f",)), 5)
    assert vars(verdict) == {"equal": 6, "near": 0, "different": 1, "unchecked": 5}


# --- against a server -------------------------------------------------------------------------------------------------


class Echo(grpc.GenericRpcHandler):
    """Answers Echo as its test says; every other method is unknown."""

    def __init__(self) -> None:
        self.answer: Callable[[bytes, grpc.ServicerContext], bytes] = lambda message, _context: message

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        if getattr(details, "method", "") != ECHO:
            return None
        handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(self.answer)
        return handler


@pytest.fixture
def echo() -> Iterator[tuple[Echo, str]]:
    handler = Echo()
    with ThreadPoolExecutor(4) as pool:
        server = grpc.server(pool, handlers=[handler])
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        yield handler, f"127.0.0.1:{port}"
        server.stop(None).wait()


@pytest.fixture
def message(tmp_path: Path) -> str:
    file = tmp_path / "message.bin"
    file.write_bytes(b"hello")
    return str(file)


def echo_options(target: str, message: str, **given: Any) -> BenchOptions:
    return options_with(target, **{"method": ECHO, "message": (message,), "warm_up": 0.0, **given})


def test_any_unary_method_can_be_measured(
    echo: tuple[Echo, str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = echo_options(echo[1], message, requests=40, concurrency=4, connections=2, verify=True, warm_up=0.1)
    assert run(options) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert f"{echo[1]}{ECHO}" in out
    assert "requests of 5 bytes, 4 under way on 2 connections" in out
    assert "requests  40 in" in out
    assert "answers   40 equal byte for byte" in out
    assert "p99.9" in out


def test_json_has_all_of_it(echo: tuple[Echo, str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(echo_options(echo[1], message, rate=200.0, requests=40, json=True, warm_up=0.1, verify=True)) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["answered"], said["failed"], said["loop"]) == (40, 0, "open")
    assert said["warm_up"] > 0
    assert said["achieved_rate"] == pytest.approx(said["intended_rate"], rel=0.06)
    assert said["answers"] == {"equal": 40, "near": 0, "different": 0, "unchecked": 0}
    assert sum(count for _, _, count in said["latency_buckets_ns"]) == 40
    marks = said["latency_ns"]
    assert 0 < marks["min"] <= marks["p50"] <= marks["p90"] <= marks["p99"] <= marks["p99.9"] <= marks["max"]
    assert round(sum(each["rate"] * said["slice_seconds"] for each in said["timeline"])) == 40
    assert said["complaints"] == []


def test_errors_are_counted_by_status_and_fail_the_run(
    echo: tuple[Echo, str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = iter(range(1000))

    def answer(request: bytes, context: grpc.ServicerContext) -> bytes:
        if next(calls) % 4 == 0:
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "voll: 100 %")
        return request

    echo[0].answer = answer
    assert run(echo_options(echo[1], message, requests=20)) == 1
    out, err = capsys.readouterr()
    assert "errors    5 RESOURCE_EXHAUSTED: voll: 100 %" in out
    assert err == "headrace bench: 5 of 20 requests failed\n"


def test_a_different_answer_fails_the_run(
    echo: tuple[Echo, str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = iter(range(1000))
    echo[0].answer = lambda request, _context: b"other" if next(calls) == 5 else request
    assert run(echo_options(echo[1], message, requests=20, verify=True)) == 1
    out, err = capsys.readouterr()
    assert "19 equal byte for byte" in out
    assert "1 different" in out
    assert "1 answers differ from that of the same request sent alone" in err


def test_a_rate_that_was_not_held_fails_the_run(
    echo: tuple[Echo, str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    never = threading.Event()

    def answer(request: bytes, _context: grpc.ServicerContext) -> bytes:
        never.wait(0.05)  # four at a time: 80 per second
        return request

    echo[0].answer = answer
    assert run(echo_options(echo[1], message, rate=1000.0, requests=40)) == 1
    out, err = capsys.readouterr()
    assert "/s intended" in out
    assert "sent late, ms" in out
    assert err.startswith("headrace bench: could not hold the rate: ")


def test_answers_that_do_not_come_fail_the_run(
    echo: tuple[Echo, str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    go_on = threading.Event()
    calls = iter(range(1000))

    def answer(request: bytes, _context: grpc.ServicerContext) -> bytes:
        if next(calls) == 3:
            go_on.wait(60)
        return request

    echo[0].answer = answer
    assert run(echo_options(echo[1], message, rate=1000.0, requests=10, patience=0.3)) == 1
    go_on.set()
    err = capsys.readouterr().err
    assert "headrace bench: 1 requests had no answer\n" in err


def test_the_timeout_travels_with_the_request(echo: tuple[Echo, str], message: str) -> None:
    left: list[float | None] = []

    def answer(request: bytes, context: grpc.ServicerContext) -> bytes:
        left.append(context.time_remaining())
        return request

    echo[0].answer = answer
    measure(echo_options(echo[1], message, requests=1, timeout=30.0), io.StringIO())
    measure(echo_options(echo[1], message, requests=1, timeout=300.0), io.StringIO())
    assert left[0] is not None
    assert left[1] is not None
    assert 0 < left[0] <= 30 < left[1] <= 300


def test_asking_alone_returns_the_answer_or_raises_its_status(echo: tuple[Echo, str], message: str) -> None:
    ask = asker(echo_options(echo[1], message))
    assert ask(ECHO, b"abc") == b"abc"
    with pytest.raises(HeadraceError, match="Method not found") as raised:
        ask("/test.Service/Other", b"")
    assert raised.value.code is Code.UNIMPLEMENTED

    def refuse(_request: bytes, context: grpc.ServicerContext) -> bytes:
        context.abort(grpc.StatusCode.NOT_FOUND, "grüße fehlen")
        raise AssertionError

    echo[0].answer = refuse
    with pytest.raises(NotFound, match="grüße fehlen"):
        ask(ECHO, b"")


def test_a_target_that_is_not_there_is_one_clear_line(message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Unavailable, match=r"cannot connect to 127\.0\.0\.1:1: Connection refused"):
        run(echo_options("127.0.0.1:1", message))
    assert cli.main(["bench", "127.0.0.1:1", "--model_name=m"]) == 1
    assert capsys.readouterr() == ("", "headrace: cannot connect to 127.0.0.1:1: Connection refused\n")


def test_ctrl_c_prints_what_there_is(
    echo: tuple[Echo, str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(client: _core.BenchClient, *_: object) -> None:
        while client.was_progress()[0] < 10:
            assert not client.wait_for(0.001)
        raise KeyboardInterrupt

    monkeypatch.setattr(headrace.tools.bench, "watch", interrupt)
    assert run(echo_options(echo[1], message, duration=60.0)) == 130
    out, err = capsys.readouterr()
    assert "interrupted, with" in out
    assert "p50" in out
    assert err == ""


def test_a_terminal_shows_progress(echo: tuple[Echo, str], message: str) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    measure(echo_options(echo[1], message, requests=5), terminal)
    shown = terminal.getvalue()
    assert "answered" in shown
    assert shown.endswith("\r\x1b[K")

    terminal = Terminal()
    progress = Progress(options_with(duration=10.0, warm_up=0.0), True, terminal)
    progress.show(1234, 5, 5.0)
    assert "5.0 s  1,234 answered, 5 failed" in terminal.getvalue()


# --- parts ------------------------------------------------------------------------------------------------------------


def test_the_cpu_time_of_a_server_counts_from_the_end_of_the_warm_up() -> None:
    cpu = ServerCpu(os.getpid())
    assert cpu.us_per_request(5) is None
    cpu.begin(10)
    begin = time.process_time()
    while time.process_time() < begin + 0.2:
        pass
    cpu.begin(1000)
    per_request = cpu.us_per_request(20)
    assert per_request is not None
    assert 0.15e5 < per_request < 1e5
    assert cpu.us_per_request(10) is None
    assert ServerCpu(None).us_per_request(10) is None
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    with pytest.raises(InvalidArgument, match="no such process"):
        ServerCpu(ended.pid)


def test_a_plot_without_matplotlib_is_an_error_before_anything_is_sent(
    message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(FailedPrecondition, match="pip install matplotlib"):
        run(echo_options("127.0.0.1:1", message, plot=str(tmp_path / "out.png")))


def test_a_plot_is_drawn(echo: tuple[Echo, str], message: str, tmp_path: Path) -> None:
    file = tmp_path / "out.png"
    assert run(echo_options(echo[1], message, requests=50, plot=str(file))) == 0
    assert file.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(FailedPrecondition, match="cannot write"):
        run(echo_options(echo[1], message, requests=1, plot=str(tmp_path / "none" / "out.png")))


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"messages": []}, "no message"),
        ({"connections": 1, "threads": 2}, "at least one connection"),
        ({"connections": 2, "concurrency": 1}, "at least one call"),
        ({"arrivals_ns": np.array([2, 1])}, "in order"),
        ({"arrivals_ns": np.array([-1, 1])}, "in order"),
        ({"arrivals_ns": np.array([1.0])}, "int64"),
        ({"arrivals_ns": np.zeros((2, 2), np.int64)}, "int64"),
        ({"arrivals_ns": np.arange(8)[::2]}, "int64"),
    ],
)
def test_the_native_client_checks_what_it_is_given(given: dict[str, Any], complaint: str) -> None:
    with pytest.raises(_core.StatusError, match=complaint) as raised:
        _core.BenchClient("127.0.0.1", "1", "/a/b", **{"messages": [b""], **given})
    assert raised.value.code == Code.INVALID_ARGUMENT


def test_other_threads_run_while_the_native_client_waits(echo: tuple[Echo, str]) -> None:
    entered = threading.Event()
    leave = threading.Event()

    def answer(request: bytes, _context: grpc.ServicerContext) -> bytes:
        entered.set()
        leave.wait(60)
        return request

    echo[0].answer = answer
    host, _, port = echo[1].rpartition(":")
    client = _core.BenchClient(host, port, ECHO, [b"x"], requests=1)
    client.start()
    assert entered.wait(60)
    assert not client.wait_for(0.01)
    leave.set()
    assert client.wait_for(60)
    assert client.take_report().by_code == {0: 1}


def test_the_histogram_tells_its_marks() -> None:
    histogram = _core.LatencyHistogram()
    for ns in range(1, 1001):
        histogram.record(ns)
    assert (histogram.count(), histogram.min_ns(), histogram.max_ns()) == (1000, 1, 1000)
    assert histogram.mean_ns() == pytest.approx(500.5)
    assert [histogram.quantile_ns(q) for q in bench_report.QUANTILES.values()] == [500, 900, 990, 999]
    assert histogram.buckets()[0] == (1, 1, 1)
