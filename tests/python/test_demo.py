# SPDX-License-Identifier: Apache-2.0
"""The demo: its load, its numbers, its verdict, and all of it once for real."""

from __future__ import annotations

import asyncio
import io
import socket
import subprocess
import sys
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from headrace.proto import message_class
from headrace.tools import demo
from headrace.tools.closed_loop import Round, closed_loop
from headrace.tools.demo import DemoFailed, Measured
from headrace.tools.report import bar_chart, columns, size_classes, styled
from headrace.tools.served import BatchRun, Served, ServerFailed, parse_batch_line


class Terminal(io.StringIO):
    """A stream that says what it is."""

    def __init__(self, *, is_terminal: bool, encoding: str) -> None:
        super().__init__()
        self._is_terminal = is_terminal
        self._encoding = encoding

    def isatty(self) -> bool:
        return self._is_terminal

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._encoding


# --- the log ----------------------------------------------------------------------------------------------------------


def test_a_batch_line_is_read() -> None:
    line = "batch digits/serving_default rows=17 requests=16 wait_us=812 run_us=1530 reason=executor_free\n"
    assert parse_batch_line(line) == BatchRun(rows=17, requests=16, wait_us=812, run_us=1530, reason="executor_free")


def test_other_lines_are_not_batches() -> None:
    assert parse_batch_line("2026-01-01 12:00:00 serving digits version 1 on 0.0.0.0:8500") is None


def test_a_server_that_cannot_start_is_told_with_its_last_words(tmp_path: Path) -> None:
    with (
        Served(tmp_path / "nothing-here") as server,
        pytest.raises(ServerFailed, match=r"did not start.*\n.*nothing-here"),
    ):
        server.wait_ready(timeout_s=60)


# --- the report -------------------------------------------------------------------------------------------------------


def test_sizes_are_put_together_by_powers_of_two_up_to_the_largest_seen() -> None:
    assert size_classes({1: 5, 2: 1, 3: 1, 9: 4, 20: 2}) == {"1": 5, "2-3": 2, "4-7": 0, "8-15": 4, "16-20": 2}
    assert size_classes({1: 7}) == {"1": 7}
    assert size_classes({}) == {}


def test_bars_are_proportional_and_nothing_counted_is_invisible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    out = Terminal(is_terminal=False, encoding="utf-8")
    lines = bar_chart({"1": 0, "2-3": 1, "4-7": 500, "8-15": 1000}, out).splitlines()
    assert [line.count("█") for line in lines] == [0, 0, 13, 27]
    assert "▏" in lines[1]
    assert lines[3].endswith(" 1,000")
    assert max(map(len, lines)) <= 40


def test_bars_are_ascii_where_the_terminal_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    chart = bar_chart({"1": 1, "2-3": 30}, Terminal(is_terminal=True, encoding="ascii"))
    assert chart.isascii()
    assert chart.count("#") > 20


def test_colour_is_for_terminals_that_want_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert styled("fast", "1", Terminal(is_terminal=True, encoding="utf-8")) == "\x1b[1mfast\x1b[0m"
    assert styled("fast", "1", Terminal(is_terminal=False, encoding="utf-8")) == "fast"
    monkeypatch.setenv("NO_COLOR", "1")
    assert styled("fast", "1", Terminal(is_terminal=True, encoding="utf-8")) == "fast"


def test_columns_stand_under_their_headers() -> None:
    table = columns(
        ["unbatched", "batched"], [("requests/s", ["346", "2,541"]), ("latency p50", ["185.0 ms", "24.1 ms"])]
    )
    assert table.splitlines() == [
        "              unbatched   batched",
        "requests/s          346     2,541",
        "latency p50    185.0 ms   24.1 ms",
    ]


def test_quantiles_are_of_the_answered_calls() -> None:
    client = Round(latencies_s=[i / 1000 for i in range(100, 0, -1)])
    assert client.latency_ms(0.50) == pytest.approx(51)
    assert client.latency_ms(0.99) == pytest.approx(100)


# --- the load ---------------------------------------------------------------------------------------------------------

Handler = Callable[[bytes, Any], Coroutine[Any, Any, bytes]]


def drive(handler: Handler, requests: Sequence[bytes], *, in_flight: int, seconds: float) -> Round:
    """A closed loop against a server in this process."""

    async def run() -> Round:
        server = grpc.aio.server()
        method: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(handler)
        service = grpc.method_handlers_generic_handler("tensorflow.serving.PredictionService", {"Predict": method})
        server.add_generic_rpc_handlers((service,))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            return await closed_loop(f"127.0.0.1:{port}", requests, in_flight=in_flight, seconds=seconds)
        finally:
            await server.stop(None)

    return asyncio.run(run())


def test_every_request_is_sent_once_and_its_answer_kept() -> None:
    async def shout(request: bytes, _: Any) -> bytes:
        return request.upper()

    client = drive(shout, [b"a", b"b", b"c", b"d", b"e"], in_flight=2, seconds=0)
    assert client.responses == {0: [b"A"], 1: [b"B"], 2: [b"C"], 3: [b"D"], 4: [b"E"]}
    assert len(client.latencies_s) == 5
    assert client.errors == []
    assert client.requests_per_s == pytest.approx(5 / client.seconds)


def test_the_loop_keeps_as_many_in_flight_as_it_is_told() -> None:
    arrived = 0
    complete: asyncio.Event | None = None

    async def gather_eight(request: bytes, _: Any) -> bytes:
        """Answers nobody before eight have come; a loop with fewer in flight never ends."""
        nonlocal arrived, complete
        if complete is None:
            complete = asyncio.Event()
        arrived += 1
        if arrived == 8:
            complete.set()
        await asyncio.wait_for(complete.wait(), timeout=30)
        return request

    client = drive(gather_eight, [b"x"] * 8, in_flight=8, seconds=0)
    assert client.errors == []
    assert arrived == 8


def test_failed_calls_are_told_and_do_not_count() -> None:
    async def refuse_b(request: bytes, context: Any) -> bytes:
        if request == b"b":
            await context.abort(grpc.StatusCode.UNAVAILABLE, "queue full")
        return request

    client = drive(refuse_b, [b"a", b"b", b"c"], in_flight=2, seconds=0)
    assert client.errors == ["UNAVAILABLE: queue full"]
    assert set(client.responses) == {0, 2}
    assert len(client.latencies_s) == 2


def test_a_server_that_is_gone_ends_the_loop() -> None:
    async def refuse(request: bytes, context: Any) -> bytes:
        await context.abort(grpc.StatusCode.UNAVAILABLE, "gone")
        return request

    client = drive(refuse, [b"a"] * 1000, in_flight=4, seconds=60)
    assert 4 <= len(client.errors) <= 8
    assert client.latencies_s == []


# --- messages ---------------------------------------------------------------------------------------------------------


def test_a_request_carries_its_digit() -> None:
    digit = np.arange(64, dtype=np.float32)
    request = message_class("tensorflow.serving.PredictRequest").FromString(demo.predict_request(digit))
    assert request.model_spec.name == "digits"
    assert request.inputs["x"].dtype == 1
    assert [d.size for d in request.inputs["x"].tensor_shape.dim] == [1, 64]
    assert np.frombuffer(request.inputs["x"].tensor_content, "<f4").tolist() == digit.tolist()


def answer(digit_class: int) -> bytes:
    response = message_class("tensorflow.serving.PredictResponse")()
    response.outputs["class"].int64_val.append(digit_class)
    return bytes(response.SerializeToString())


def test_a_digit_answered_in_two_ways_is_nobodys_class() -> None:
    client = Round(responses={0: [answer(3), answer(3)], 1: [answer(4), answer(9)]})
    assert demo.predicted_classes(client).tolist() == [3, -1]


# --- the verdict ------------------------------------------------------------------------------------------------------


class NoServer:
    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __enter__(self) -> NoServer:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def wait_ready(self, timeout_s: float) -> None:
        pass


def measured(requests_per_s: float, classes: Sequence[int]) -> Measured:
    client = Round(
        seconds=len(classes) / requests_per_s,
        latencies_s=[0.01] * len(classes),
        responses={digit: [answer(c)] for digit, c in enumerate(classes)},
    )
    rows = len(classes)
    return Measured(client, [BatchRun(rows=rows, requests=rows, wait_us=0, run_us=1000, reason="full")])


def verdict(monkeypatch: pytest.MonkeyPatch, rounds: Sequence[Measured]) -> int:
    """The exit code for these rounds, unbatched and batched in turn."""
    following = iter(rounds)
    monkeypatch.setattr(demo, "train", lambda _: (np.zeros((2, 64), np.float32), np.array([3, 7])))
    monkeypatch.setattr(demo, "Served", NoServer)
    monkeypatch.setattr(demo, "measure", lambda *_: next(following))
    return demo.run()


def test_twice_the_speed_and_the_same_predictions_pass(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verdict(monkeypatch, [measured(100, [3, 7]), measured(200, [3, 7])] * 3) == 0
    assert "2.0 times the requests per second" in capsys.readouterr().out


def test_less_than_twice_the_speed_fails(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert verdict(monkeypatch, [measured(100, [3, 7]), measured(190, [3, 7])] * 3) == 1
    assert "FAILED: batched is 1.9 times as fast as unbatched" in capsys.readouterr().err


def test_one_fast_round_is_not_the_median(monkeypatch: pytest.MonkeyPatch) -> None:
    slow, fast = measured(150, [3, 7]), measured(900, [3, 7])
    unbatched = measured(100, [3, 7])
    assert verdict(monkeypatch, [unbatched, fast, unbatched, slow, unbatched, slow]) == 1


def test_a_changed_prediction_fails(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    rounds = [measured(100, [3, 7]), measured(500, [3, 7])] * 2 + [measured(100, [3, 7]), measured(500, [3, 1])]
    assert verdict(monkeypatch, rounds) == 1
    assert "FAILED: 1 predictions" in capsys.readouterr().err


def test_a_failed_request_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    async def one_failed(*_: Any, **__: Any) -> Round:
        return Round(seconds=1.0, latencies_s=[0.01], responses={0: [answer(3)]}, errors=["UNAVAILABLE: queue full"])

    monkeypatch.setattr(demo, "closed_loop", one_failed)
    server: Any = NoServer()
    server.address = "127.0.0.1:1"
    with pytest.raises(DemoFailed, match="FAILED: 1 requests were not answered, 1 of them: UNAVAILABLE: queue full"):
        demo.measure(server, [b""])


def test_a_taken_port_is_told_before_anything_is_trained(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        assert demo.run(keep=True, port=taken.getsockname()[1]) == 1
    assert "cannot serve on port" in capsys.readouterr().err


def test_the_demo_runs() -> None:
    """As a user starts it: real training, real servers, real sockets, and its own verdict."""
    finished = subprocess.run(
        [sys.executable, "-m", "headrace", "demo"], capture_output=True, text=True, timeout=300, check=False
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert "model calls per request" in finished.stdout
    assert "the same predictions" in finished.stdout
    assert "\x1b" not in finished.stdout
