# SPDX-License-Identifier: Apache-2.0
"""Measures `headrace serve` beside servers that do nothing, keeps what was measured and writes the table in
bench/README.md from it.

    python -m bench.server                    measure, keep under bench/results, write the table
    python -m bench.server --table [FILE]     the table alone, from a kept result (the newest)
    python -m bench.server --only lone        some of the measures: printed, not kept

In each round the contestants of a case take turns, each in a new process, in one order and in the next round in the
other; the load generator runs on the same two cores.  Figures are medians over the rounds, and ratios are medians of
the ratios of each round.

The run fails unless every request was answered: h2load counts the answers and their bytes, the server counts the
requests that it has served, and before the load one call shows that the answer is right.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from bench.h2load import Load, latencies_us, mean_us, prefixed, requests_per_s, version
from bench.models import MODELS, Array
from bench.record import ROOT, keep, newest, where, write_table
from bench.rounds import SUBJECT, Expectation, Results, expected_table, ratios, results_of, us
from bench.server_process import ServerProcess
from headrace import proto
from headrace.predictor import PREDICT
from headrace.tensor_proto import array_of, write_array

KIND = "server"
CORES = 2

# What rivals answer: the message itself, or as many bytes as Headrace.
ECHO, SMALL_REPLY = "echo", "small reply"

# The programs of bench/rivals.
PROGRAMS = {
    "nghttp2_echo": "http2_echo",
    "grpc_sync": "grpc_sync_echo",
    "grpc_sync_bare": "grpc_sync_echo",
    "grpc_callback": "grpc_callback_echo",
    "grpc_async": "grpc_async_echo",
}
TRANSPORTS = {SUBJECT: "native", "headrace_grpcio": "grpcio"}
ECHOES = ("nghttp2_echo", "grpc_sync", "grpc_callback", "grpc_async")

IDLE_CONNECTIONS = 100

# How long a server is warmed, after a first few requests that tell how many that is.
WARM_UP_S = 0.3
FIRST_TURNS = 8

CALL_S = 30.0
TOLERANCE = 1e-5


@dataclass(frozen=True)
class Case:
    """A model, how it is loaded, and who takes part."""

    name: str
    model: str
    connections: int
    streams: int
    contestants: tuple[str, ...]
    rivals_answer: str = ECHO
    measures_latency: bool = False


CASES = (
    Case("small", "half_plus_two", 8, 32, (SUBJECT, *ECHOES)),
    Case("mlp", "mlp", 4, 16, tuple(TRANSPORTS)),
    Case("lone", "half_plus_two", 1, 1, (SUBJECT, *ECHOES), measures_latency=True),
    Case("large_requests", "corner", 4, 4, (SUBJECT, *ECHOES, "grpc_sync_bare"), rivals_answer=SMALL_REPLY),
    Case("large_replies", "image", 4, 4, (SUBJECT, *ECHOES)),
    Case("idle", "half_plus_two", IDLE_CONNECTIONS, 0, (SUBJECT,)),
)


def main() -> int:
    names = [case.name for case in CASES]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", nargs="?", const="newest", metavar="FILE", help="only write the table")
    parser.add_argument("--rounds", type=int, default=5, help="default: %(default)s")
    parser.add_argument("--seconds", type=float, default=2.0, help="for each measurement; default: %(default)s")
    parser.add_argument(
        "--only", action="append", choices=names, metavar="NAME", help=f"may be repeated: {', '.join(names)}"
    )
    arguments = parser.parse_args()
    if arguments.only:
        cases = [case for case in CASES if case.name in arguments.only]
        print(table(run(cases, arguments.rounds, arguments.seconds), None))
        return 0
    if arguments.table is None:
        kept = keep(run(CASES, arguments.rounds, arguments.seconds), KIND)
        print(f"kept {kept.relative_to(ROOT)}\n")
    else:
        kept = newest(KIND) if arguments.table == "newest" else Path(arguments.table)
    text = table(json.loads(kept.read_text()), kept.name)
    write_table(text, "server.py")
    print(text)
    return 0


# --- measuring --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Prepared:
    """A case with its files: the model, a request, and what Headrace answers to it."""

    case: Case
    model: Path
    message: bytes
    message_file: Path  # with gRPC's prefix
    answer: Array
    reply_bytes: int

    def command(self, contestant: str) -> list[str]:
        if contestant in TRANSPORTS:
            transport = f"--grpc_transport={TRANSPORTS[contestant]}"
            return [sys.executable, "-m", "headrace", "serve", str(self.model), "--port=0", transport]
        command = [str(ROOT / "build" / "bench" / PROGRAMS[contestant])]
        if self.case.rivals_answer == SMALL_REPLY:
            command.append(f"--reply_bytes={self.reply_bytes}")
            if contestant != "grpc_sync_bare":  # which never looks at the message
                command.append("--one_piece")
        return command

    def check(self, contestant: str, reply: bytes) -> int:
        """The size of a right answer.  Ends the run if it is a wrong one."""
        if contestant in TRANSPORTS:
            response = proto.message_class("tensorflow.serving.PredictResponse").FromString(reply)
            is_right = np.allclose(array_of(response.outputs["y"]), self.answer, rtol=0, atol=TOLERANCE)
        else:
            is_right = reply == (self.message if self.case.rivals_answer == ECHO else bytes(self.reply_bytes))
        if not is_right:
            raise SystemExit(
                f"{self.case.name}: {contestant} gave a wrong answer of {len(reply)} bytes: {reply[:100]!r}"
            )
        return len(reply)


def run(cases: Sequence[Case], rounds: int, seconds: float) -> dict[str, Any]:
    build_rivals()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])  # of every process that is started here, too
    with tempfile.TemporaryDirectory() as directory:
        prepared = prepare(cases, Path(directory))
        measured = []
        for number in range(rounds):
            entries = []
            for one in prepared:
                contestants = one.case.contestants[:: 1 if number % 2 == 0 else -1]
                for contestant in contestants:
                    print(f"round {number + 1} of {rounds}: {one.case.name}/{contestant}", flush=True)
                    figures = measure(one, contestant, seconds)
                    entries.append({"case": one.case.name, "contestant": contestant, **figures})
            measured.append(entries)
    return {**where(), "versions": versions(), "seconds": seconds, "rounds": measured}


def build_rivals() -> None:
    subprocess.run(["cmake", "--preset", "bench"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    subprocess.run(
        ["cmake", "--build", "--preset", "bench", "--target", *sorted(set(PROGRAMS.values()))], cwd=ROOT, check=True
    )


def versions() -> dict[str, str]:
    def installed(library: str) -> str:
        asked = ["pkg-config", "--modversion", library]
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()

    return {"nghttp2": installed("libnghttp2"), "gRPC C++": installed("grpc++"), "load": version()}


def prepare(cases: Sequence[Case], directory: Path) -> list[Prepared]:
    names = sorted({case.model for case in cases})
    subprocess.run(
        [sys.executable, "-m", "bench.models", directory, *names], cwd=ROOT, check=True, stderr=subprocess.DEVNULL
    )
    random = np.random.default_rng(0)
    prepared = []
    for case in cases:
        model = MODELS[case.model]
        x = random.random((1, *model.shape), dtype=np.float32)
        request = proto.message_class("tensorflow.serving.PredictRequest")()
        request.model_spec.name = case.model
        write_array(x, request.inputs["x"], 'input "x"')
        message = request.SerializeToString()
        file = directory / f"{case.name}.message"
        file.write_bytes(prefixed(message))
        one = Prepared(case, directory / case.model, message, file, model.answer(x), 0)
        prepared.append(Prepared(**{**vars(one), "reply_bytes": reply_bytes_of(one)}))
    return prepared


def reply_bytes_of(one: Prepared) -> int:
    """What Headrace's answers have, for rivals to answer with as much."""
    with ServerProcess(one.command(SUBJECT)) as server:
        return one.check(SUBJECT, call(server.wait_ready(), one.message))


def call(port: int, message: bytes) -> bytes:
    """By another client than the one that measures."""
    with channel(port) as opened:
        return predict(opened, message)


def channel(port: int) -> grpc.Channel:
    """A connection of its own."""
    options = [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
    return grpc.insecure_channel(f"127.0.0.1:{port}", options=options)


def predict(opened: grpc.Channel, message: bytes) -> bytes:
    method: grpc.UnaryUnaryMultiCallable[bytes, bytes] = opened.unary_unary(PREDICT)
    return method(message, timeout=CALL_S, wait_for_ready=True)


def measure(one: Prepared, contestant: str, seconds: float) -> dict[str, float]:
    """The figures of one contestant, from its start to its end.  Ends the run where it has served another number."""
    with ServerProcess(one.command(contestant)) as server:
        port = server.wait_ready()
        if one.case.name == "idle":
            sent, figures = measure_idle(one, server, port, seconds)
        else:
            reply_bytes = one.check(contestant, call(port, one.message))
            load = Load(one.message_file, reply_bytes, one.case.connections, one.case.streams)
            sent, figures = measure_load(load, server, port, seconds, latency=one.case.measures_latency)
            sent += 1
        served, batches = server.stop()
        if served != sent:
            raise server.failure(f"it has served {served} requests, {sent} were sent")
    return figures if batches is None else {**figures, "rows_per_batch": served / batches}


def measure_load(
    load: Load, server: ServerProcess, port: int, seconds: float, *, latency: bool
) -> tuple[int, dict[str, float]]:
    """The requests sent in all, and the figures of those that were measured."""

    def turns(rate: float, wanted_s: float) -> int:
        return load.in_flight * max(FIRST_TURNS, round(rate * wanted_s / load.in_flight))

    first = load.in_flight * FIRST_TURNS
    warm_up = turns(requests_per_s(load, port, first), WARM_UP_S)
    requests = turns(requests_per_s(load, port, warm_up), seconds)
    before_s = server.cpu_s()
    figures: dict[str, float] = {}
    if latency:
        durations = latencies_us(load, port, requests)
        figures = {"latency_us": mean_us(durations), "p99_us": float(np.quantile(durations, 0.99))}
    else:
        figures = {"requests_per_s": requests_per_s(load, port, requests)}
    figures |= {"requests": requests, "cpu_us_per_request": 1e6 * (server.cpu_s() - before_s) / requests}
    return first + warm_up + requests, figures


def measure_idle(one: Prepared, server: ServerProcess, port: int, seconds: float) -> tuple[int, dict[str, float]]:
    """Connections that have been used and are open."""
    with ExitStack() as stack:
        for _ in range(one.case.connections):
            one.check(SUBJECT, predict(stack.enter_context(channel(port)), one.message))
        before_s = server.cpu_s()
        time.sleep(seconds)
        return one.case.connections, {"cpu_ms_per_s": 1e3 * (server.cpu_s() - before_s) / seconds}


# --- the table --------------------------------------------------------------------------------------------------------


def cpu_share(case: str, rival: str) -> Callable[[Results], list[float]]:
    return lambda results: ratios(results, case, rival, "cpu_us_per_request")


def times_the_rate(case: str, rival: str) -> Callable[[Results], list[float]]:
    return lambda results: ratios(results, case, rival, "requests_per_s")


def at_most(text: str, values: Callable[[Results], list[float]], limit: float, unit: str = "") -> Expectation:
    return Expectation(text, values, limit, at_least=False, unit=unit)


def at_least(text: str, values: Callable[[Results], list[float]], limit: float) -> Expectation:
    return Expectation(text, values, limit, at_least=True, unit="")


EXPECTED = {
    "small": (
        at_most(
            "half_plus_two, 8 connections x 32 streams: CPU per request at most 1.8 times the nghttp2 echo's",
            cpu_share("small", "nghttp2_echo"), 1.8,
        ),
        at_most("and 0.12 times the sync gRPC C++ echo's", cpu_share("small", "grpc_sync"), 0.12),
        at_least("requests/s at least 0.6 times the nghttp2 echo's", times_the_rate("small", "nghttp2_echo"), 0.6),
    ),
    "mlp": (
        at_least(
            "MLP 784-256-10, 4 x 16: requests/s at least 12 times those of --grpc_transport=grpcio",
            times_the_rate("mlp", "headrace_grpcio"), 12,
        ),
    ),
    "lone": (
        at_most(
            "half_plus_two, 1 x 1: mean latency at most 2.5 times the nghttp2 echo's",
            lambda results: ratios(results, "lone", "nghttp2_echo", "latency_us"), 2.5,
        ),
    ),
    "large_requests": (
        at_most(
            "602 KB requests, 4 x 4: CPU per request at most 0.8 times the sync gRPC C++ echo's",
            cpu_share("large_requests", "grpc_sync"), 0.8,
        ),
        at_least("and at least 1.2 times its requests/s", times_the_rate("large_requests", "grpc_sync"), 1.2),
    ),
    "large_replies": (),
    "idle": (
        at_most(
            f"{IDLE_CONNECTIONS} connections that are idle: less than 1 ms of CPU in a second",
            lambda results: results["idle", SUBJECT].figures["cpu_ms_per_s"], 1, " ms",
        ),
    ),
}  # fmt: skip


def table(kept: dict[str, Any], file_name: str | None) -> str:
    """The result in Markdown: what was expected, then every case."""
    results = results_of(kept["rounds"])
    measured = [case for case in CASES if (case.name, SUBJECT) in results]
    raw = f" ([raw](results/{file_name}))" if file_name else ""
    said = ", ".join(f"{name} {number}" for name, number in kept["versions"].items())
    lines = [
        f"{kept['cpu']}, {kept['cores']} cores, {said}, {kept['date'][:10]},",
        f"medians of {len(kept['rounds'])} rounds{raw}.",
        "",
        *expected_table([each for case in measured for each in EXPECTED[case.name]], results),
        "",
        "| | requests/s | Headrace's, times these | CPU per request | Headrace's, times this | mean latency | p99 | |",
        "|---|---:|---:|---:|---:|---:|---:|---|",
    ]
    for case in measured:
        if case.name != "idle":
            lines += [line_of(results, case, contestant) for contestant in case.contestants]
    return "\n".join(lines)


def line_of(results: Results, case: Case, contestant: str) -> str:
    one = results[case.name, contestant]
    cells = []
    for figure, shown in (("requests_per_s", "{:,.0f}".format), ("cpu_us_per_request", us)):
        is_rival = contestant != SUBJECT and figure in one.figures
        cells.append(shown(one.median(figure)) if figure in one.figures else "")
        cells.append(f"{statistics.median(ratios(results, case.name, contestant, figure)):.2g}" if is_rival else "")
    cells += [us(one.median(figure)) if figure in one.figures else "" for figure in ("latency_us", "p99_us")]
    cells.append(f"rows_per_batch {one.median('rows_per_batch'):.1f}" if "rows_per_batch" in one.figures else "")
    return f"| {case.name}/{contestant} | {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())
