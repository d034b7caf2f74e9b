# SPDX-License-Identifier: Apache-2.0
"""`headrace bench` against a server in a process of its own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from headrace.tools.bench_messages import predict_message
from headrace.tools.bench_options import BenchOptions
from tests.e2e.served import LIMIT_S, Served

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BENCH = (sys.executable, "-m", "headrace", "bench")


def bench(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*BENCH, *map(str, arguments)], capture_output=True, text=True, timeout=LIMIT_S, check=False)


def measured(*arguments: str | Path, code: int = 0) -> dict[str, Any]:
    ended = bench("--json", *arguments)
    assert ended.returncode == code, ended.stderr
    said: dict[str, Any] = json.loads(ended.stdout)
    return said


@pytest.fixture
def server(saved_models: Path, transport: str) -> Iterator[Served]:
    with Served(saved_models / "half_plus_two", "--port=0", "--log_batches", f"--grpc_transport={transport}") as served:
        yield served


HALF = "--model_name=half_plus_two"


def test_its_counts_are_those_of_the_server(server: Served) -> None:
    said = measured(server.address, HALF, "--requests=500", "--concurrency=16", "--connections=4", "--warm_up=0.1")
    assert (said["answered"], said["failed"], said["unanswered"]) == (500, 0, 0)
    assert said["warm_up"] > 0
    server.batches(requests=500 + said["warm_up"])


def test_a_rate_is_held_and_every_answer_is_right(server: Served) -> None:
    said = measured(server.address, HALF, "--rate=100", "--duration=2", "--warm_up=0", "--verify", "--rows=3")
    assert said["achieved_rate"] == pytest.approx(said["intended_rate"], rel=0.05)
    assert said["intended_rate"] == pytest.approx(100, rel=0.3)
    assert said["answers"]["different"] == said["answers"]["unchecked"] == 0
    assert said["answers"]["equal"] + said["answers"]["near"] == said["answered"]
    alone = 16  # --verify sends each of the random messages once before
    server.batches(requests=said["answered"] + alone)


def test_floats_of_a_batch_may_differ_a_little(saved_models: Path, transport: str) -> None:
    with Served(saved_models / "dense", "--port=0", f"--grpc_transport={transport}") as served:
        ended = bench(served.address, "--model_name=dense", "--requests=300", "--concurrency=32", "--verify")
    assert ended.returncode == 0, ended.stderr
    assert "equal byte for byte to those of the same requests sent alone" in ended.stdout


def test_the_cpu_of_the_server_is_told(server: Served) -> None:
    said = measured(
        server.address, HALF, "--duration=1", "--concurrency=8", "--warm_up=0.2", f"--server_pid={server.process.pid}"
    )
    assert 1 < said["server_cpu_us_per_request"] < 100_000


def test_requests_come_from_npz_files(server: Served, tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=np.arange(10, dtype=np.float32))
    said = measured(server.address, HALF, f"--npz={tmp_path / 'x.npz'}", "--rows=5", "--requests=20", "--warm_up=0")
    assert said["answered"] == 20
    assert {batch.rows % 5 for batch in server.batches(requests=20)} == {0}


def test_a_model_that_is_not_there_is_counted_as_not_found(server: Served, tmp_path: Path) -> None:
    message = tmp_path / "message.bin"
    options = BenchOptions("unused", model_name="nope")
    message.write_bytes(predict_message({"x": np.zeros(1, np.float32)}, options))
    said = measured(server.address, f"--message={message}", "--requests=25", "--warm_up=0", code=1)
    assert said["failed"] == said["answered"] == 25
    assert said["errors"]["NOT_FOUND"]["count"] == 25
    assert "nope" in said["errors"]["NOT_FOUND"]["first"]
    assert said["complaints"] == ["25 of 25 requests failed"]

    ended = bench(server.address, "--model_name=nope")
    assert ended.returncode == 1
    assert ended.stderr.startswith("headrace: ")
    assert "nope" in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_any_method_of_the_server_can_be_measured(server: Served, tmp_path: Path) -> None:
    message = tmp_path / "empty.bin"
    message.write_bytes(b"")
    method = "--method=/grpc.health.v1.Health/Check"
    said = measured(server.address, method, f"--message={message}", "--requests=50", "--warm_up=0", "--verify")
    assert said["answers"] == {"equal": 50, "near": 0, "different": 0, "unchecked": 0}


def test_ctrl_c_ends_the_run_and_prints_what_there_is(server: Served) -> None:
    command = [*BENCH, server.address, HALF, "--duration=600", "--warm_up=0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        server.wait_line("^batch ", count=50)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130, err
    assert "interrupted, with" in out
    assert "p99.9" in out
    assert "Traceback" not in err


def test_a_server_that_stops_ends_the_run(server: Served) -> None:
    command = [*BENCH, server.address, HALF, "--duration=600", "--warm_up=0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        server.wait_line("^batch ", count=50)
        assert server.stop() == 0
        out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 1
    assert "p99.9" in out
    assert "connect" in err
    assert "Traceback" not in err
