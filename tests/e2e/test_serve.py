# SPDX-License-Identifier: Apache-2.0
"""`headrace serve` from its start to its end."""

from __future__ import annotations

import collections
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import grpc
import numpy as np
import pytest

import headrace
from tests.e2e.served import LIMIT_S, SERVING, Client, Served, arrays

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NOBODY = 65534

Serve = Callable[..., Served]


HEADRACE = (sys.executable, "-m", "headrace")


def failure(
    *arguments: str | Path, code: int = 1, command: Sequence[str] = HEADRACE, env: Mapping[str, str] | None = None
) -> str:
    """The one line that a command says before it ends with `code`."""
    ended = subprocess.run(
        [*command, "serve", *map(str, arguments)], capture_output=True, text=True, timeout=LIMIT_S, check=False, env=env
    )
    assert ended.returncode == code, ended.stderr
    assert ended.stdout == ""
    said = [line for line in ended.stderr.splitlines() if line.startswith("headrace: ")]
    assert "Traceback" not in ended.stderr
    assert len(said) == 1, ended.stderr
    return said[0]


@pytest.fixture
def serve(transport: str) -> Serve:
    """Starts servers on free ports."""
    return partial(Served, "--port=0", f"--grpc_transport={transport}")


def best_of_5(measure: Callable[[], float]) -> float:
    return min(measure() for _ in range(5))


def mapped(process: int) -> str:
    return Path(f"/proc/{process}/maps").read_text()


# --- starting ---------------------------------------------------------------------------------------------------------


def test_it_serves_within_1500_ms_of_the_command(serve: Serve, saved_models: Path) -> None:
    def start_s() -> float:
        begin = time.perf_counter()
        with serve(saved_models / "half_plus_two") as server:
            server.wait_line(SERVING)
            return time.perf_counter() - begin

    assert best_of_5(start_s) < 1.5


def test_tensorflow_s_python_package_is_not_imported(serve: Serve, saved_models: Path) -> None:
    with serve(saved_models / "half_plus_two") as server:
        client = Client(server.address, "half_plus_two")
        assert client.predict({"x": [2.0]})["y"].tolist() == [3.0]
        libraries = mapped(server.process.pid)
        assert "libtensorflow_cc.so" in libraries
        assert "_pywrap_tensorflow" not in libraries
        client.channel.close()


def test_the_python_executor_is_the_one_that_imports_it(serve: Serve, saved_models: Path) -> None:
    with serve(saved_models / "half_plus_two", "--executor=python") as server:
        server.wait_line(SERVING)
        assert "_pywrap_tensorflow" in mapped(server.process.pid)


def test_the_log_says_what_is_served_how_and_on_what(serve: Serve, saved_models: Path) -> None:
    with serve(saved_models / "unbatchable") as server:
        line = server.wait_line(SERVING)
        assert re.search(r"serving unbatchable version 1 on 0\.0\.0\.0:\d+$", line)
        server.wait_line(r"running on (CPU|GPU)|GPU:0")
        server.wait_line("unbatchable/serving_default: policy adaptive, a lone request never waits")
        for name, reason in (("counter", "state|stateful"), ("mean", "."), ("total", "batch dimension")):
            server.wait_line(f"unbatchable/{name}: not batched: .*({reason})")
        assert "unbatchable/counter: policy" not in server.log()


def test_the_highest_of_the_numbered_versions_is_served(serve: Serve, saved_models: Path, tmp_path: Path) -> None:
    for version in ("1", "00000012", "3", "notes"):
        shutil.copytree(saved_models / "half_plus_two" / "1", tmp_path / "half" / version)
    with serve(f"--model_base_path={tmp_path / 'half'}") as server:
        client = Client(server.address, "default")
        response = client.stub.Predict(client.request({"x": [1.0]}), timeout=LIMIT_S)
        assert (response.model_spec.name, response.model_spec.version.value) == ("default", 12)
        client.channel.close()
    with serve(tmp_path / "half" / "3") as server:
        server.wait_line("serving half version 3 on")


def test_max_batch_size_is_lowered_to_what_fits_in_a_slab(serve: Serve, tmp_path: Path) -> None:
    from tests.models import save

    save(tmp_path / "large" / "1", {"serving_default": (lambda x: {"y": x[:, 0]}, {"x": ([None, 4 << 20], "float32")})})
    with serve(tmp_path / "large") as server:
        server.wait_line("large/serving_default: max_batch_size lowered from 64 to 16")


def test_it_serves_on_a_unix_socket_too(serve: Serve, transport: str, saved_models: Path, tmp_path: Path) -> None:
    path = tmp_path / "gr pc.sock"
    flag = f"--grpc_socket_path={path}"
    for _ in range(2):
        server = serve(saved_models / "half_plus_two", flag)
        assert server.wait_line(SERVING).endswith(f" and unix:{path}")
        with headrace.Client(f"unix:{quote(str(path))}") as client:
            assert client.predict("half_plus_two", {"x": [2.0]}, timeout=LIMIT_S)["y"].tolist() == [3.0]
        local = Client(server.address, "half_plus_two")
        assert local.predict({"x": [2.0]})["y"].tolist() == [3.0]
        local.channel.close()
        said = failure(saved_models / "half_plus_two", "--port=0", f"--grpc_transport={transport}", flag)
        assert said == f"headrace: socket path '{path}': a server listens there; choose another with --grpc_socket_path"
        server.process.kill()
        server.wait()
        assert path.is_socket()  # as a server leaves it that could not end
    with serve(saved_models / "half_plus_two", flag) as server:
        server.wait_line(SERVING)
    assert not path.exists()


def test_channel_arguments_are_taken_and_those_that_mean_nothing_warned_of(
    serve: Serve, transport: str, saved_models: Path
) -> None:
    flag = "--grpc_channel_arguments=grpc.max_connection_age_ms=2000,grpc.lb_policy_name=grpclb"
    with serve(saved_models / "half_plus_two", flag) as server:
        client = Client(server.address, "half_plus_two")
        assert client.predict({"x": [2.0]})["y"].tolist() == [3.0]
        client.channel.close()
    assert server.log().count("grpc.lb_policy_name") == (1 if transport == "native" else 0)


def test_a_message_length_among_the_channel_arguments_is_the_limit(serve: Serve, saved_models: Path) -> None:
    with serve(
        saved_models / "half_plus_two", "--grpc_channel_arguments=grpc.max_receive_message_length=1000"
    ) as server:
        client = Client(server.address, "half_plus_two")
        assert client.predict({"x": [2.0]})["y"].tolist() == [3.0]
        code, said = client.refusal(client.request({"x": np.zeros(1000, np.float32)}))
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "1000" in said
        client.channel.close()


# --- refusing to start ------------------------------------------------------------------------------------------------


def test_a_taken_port_is_said_at_once(saved_models: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = failure(saved_models / "half_plus_two", f"--port={port}")
    assert said == f"headrace: port {port}: address already in use; choose another with --port"


def test_two_servers_do_not_share_a_port(serve: Serve, transport: str, saved_models: Path) -> None:
    with serve(saved_models / "half_plus_two") as server:
        flags = (f"--port={server.port}", f"--grpc_transport={transport}")
        assert "address already in use" in failure(saved_models / "half_plus_two", *flags)


def test_a_missing_model_is_said(tmp_path: Path) -> None:
    assert str(tmp_path / "none") in failure(tmp_path / "none", "--port=0")


def test_a_directory_without_a_model_is_said(tmp_path: Path) -> None:
    assert str(tmp_path) in failure(tmp_path, "--port=0")


def test_a_broken_model_is_said(saved_models: Path, tmp_path: Path) -> None:
    shutil.copytree(saved_models / "half_plus_two", tmp_path / "half")
    (tmp_path / "half" / "1" / "saved_model.pb").write_bytes(b"\xff\xff")
    assert str(tmp_path / "half" / "1") in failure(tmp_path / "half", "--port=0")


# Another user may not be able to read this Python: it becomes that user when it has read all it needs.
AS_NOBODY = f"""
import encodings.idna, os, shutil, sys, headrace.cli, headrace.model, headrace.server.serve, headrace.server.server
os.setuid({NOBODY})
sys.exit(headrace.cli.main(sys.argv[1:]))
"""


def test_an_unreadable_model_is_said_with_the_user_and_what_is_needed(saved_models: Path) -> None:
    with tempfile.TemporaryDirectory() as readable:
        Path(readable).chmod(0o755)
        model = Path(readable, "half")
        shutil.copytree(saved_models / "half_plus_two", model)
        model.chmod(0)
        try:
            if os.getuid() == 0:
                uid, said = NOBODY, failure(model, "--port=0", command=[sys.executable, "-c", AS_NOBODY])
            else:
                uid, said = os.getuid(), failure(model, "--port=0")
        finally:
            model.chmod(0o700)
    assert said == f"headrace: {model}: permission denied for uid {uid}; needs read and execute"


def test_without_tensorflow_the_pip_command_is_printed(saved_models: Path, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.machinery\n"
        "found = importlib.machinery.PathFinder.find_spec\n"
        "def find_spec(name, path=None, target=None):\n"
        "    return None if name.partition('.')[0] == 'tensorflow' else found(name, path, target)\n"
        "importlib.machinery.PathFinder.find_spec = find_spec\n"
    )
    paths = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    said = failure(saved_models / "half_plus_two", "--port=0", env={**os.environ, "PYTHONPATH": paths})
    assert "pip install" in said
    assert "tensorflow" in said


def test_a_bad_flag_is_said_and_exits_with_2() -> None:
    assert "--max_batch_sise" in failure("model", "--max_batch_sise=3", code=2)
    said = failure("model", "--grpc_channel_arguments=grpc.max_connection_age_ms", code=2)
    assert said == "headrace: grpc_channel_arguments has 'grpc.max_connection_age_ms'; it must be k=v,k=v"


# --- ending -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_an_idle_server_with_0(serve: Serve, saved_models: Path, number: signal.Signals) -> None:
    server = serve(saved_models / "half_plus_two")
    server.wait_line(SERVING)
    assert server.stop(number) == 0
    assert "Traceback" not in server.log()


def test_a_signal_while_it_starts_ends_it_with_0(serve: Serve, saved_models: Path) -> None:
    server = serve(saved_models / "half_plus_two", "--executor=python")
    server.wait_line("half_plus_two version 1")
    assert server.stop() == 0


def test_requests_that_wait_for_their_window_are_answered_when_it_stops(serve: Serve, saved_models: Path) -> None:
    server = serve(saved_models / "half_plus_two", "--batch_timeout_micros=3600000000", "--log_batches")
    client = Client(server.address, "half_plus_two")
    calls = [client.stub.Predict.future(client.request({"x": [float(i)]}), timeout=LIMIT_S) for i in range(20)]
    client.wait_received()
    assert server.stop() == 0
    assert [arrays(call.result())["y"].tolist() for call in calls] == [[i / 2 + 2] for i in range(20)]
    [batch] = server.batches(requests=20)
    assert (batch.rows, batch.reason) == (20, "shutdown")
    client.channel.close()


def test_under_load_every_request_is_answered_or_refused_as_unavailable(serve: Serve, saved_models: Path) -> None:
    server = serve(saved_models / "dense")
    address = server.address
    outcomes: collections.Counter[str] = collections.Counter()
    loaded = threading.Semaphore(0)

    def load() -> None:
        client = Client(address, "dense")
        request = client.request({"x": np.ones([1, 64], np.float32)})
        refused = False
        while not refused:
            calls = [client.stub.Predict.future(request, timeout=LIMIT_S) for _ in range(16)]
            for call in calls:
                error = call.exception()
                outcomes["OK" if error is None else error.code().name] += 1
                refused = refused or error is not None
            loaded.release()
        client.channel.close()

    threads = [threading.Thread(target=load) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(12):
        assert loaded.acquire(timeout=LIMIT_S)
    assert server.stop() == 0, server.log()
    for thread in threads:
        thread.join(LIMIT_S)
    assert set(outcomes) <= {"OK", "UNAVAILABLE"}, outcomes
    assert outcomes["OK"] >= 12 * 16
    assert "left behind" not in server.log()


def test_a_running_request_is_answered_when_it_stops(serve: Serve, slow_model: Path) -> None:
    server = serve(slow_model, "--log_batches")
    client = Client(server.address, "slow")
    client.predict({"x": [1.0]})
    call = client.stub.Predict.future(client.request({"x": [1000.0]}), timeout=LIMIT_S)
    client.wait_received()
    assert server.stop() == 0
    assert arrays(call.result())["y"].tolist() == [1000.0]
    client.channel.close()


def test_a_second_signal_ends_it_at_once(serve: Serve, slow_model: Path) -> None:
    server = serve(slow_model)
    client = Client(server.address, "slow")
    call = client.stub.Predict.future(client.request({"x": [1e7]}), timeout=LIMIT_S)
    client.wait_received()
    server.process.send_signal(signal.SIGTERM)
    server.wait_line("stopping")
    assert server.stop(signal.SIGINT) == 1
    with pytest.raises(grpc.RpcError):
        call.result()
    client.channel.close()


NAMESPACE = ["unshare", "--pid", "--fork", "--kill-child"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_reach_it_as_process_1(serve: Serve, saved_models: Path, number: signal.Signals) -> None:
    if shutil.which("unshare") is None or subprocess.run([*NAMESPACE, "true"], check=False).returncode != 0:
        pytest.skip("no right to make a PID namespace")
    with serve(saved_models / "half_plus_two", prefix=NAMESPACE) as server:
        server.wait_line(SERVING)
        [first] = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split()
        os.kill(int(first), number)
        assert server.wait() == 0
        assert re.search(r" stopped$", server.log())


def test_a_reader_of_the_log_who_goes_away_is_no_reason_to_stop(
    serve: Serve, transport: str, saved_models: Path
) -> None:
    with serve(saved_models / "half_plus_two") as server:
        client = Client(server.address, "half_plus_two")
        client.predict({"x": [2.0]})
        client.channel.close()
    command = [
        sys.executable,
        "-m",
        "headrace",
        "serve",
        str(saved_models / "half_plus_two"),
        "--port=0",
        f"--grpc_transport={transport}",
        "--log_batches",
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        found = next(match for line in process.stderr if (match := SERVING.search(line.rstrip())))
        process.stderr.close()
        client = Client(f"127.0.0.1:{found[1]}", "half_plus_two")
        for _ in range(3):
            assert client.predict({"x": [2.0]})["y"].tolist() == [3.0]
        client.channel.close()
        process.terminate()
        assert process.wait(LIMIT_S) == 0


# --- running ----------------------------------------------------------------------------------------------------------


def test_the_log_has_a_line_for_an_interval_with_work_and_none_without(serve: Serve, saved_models: Path) -> None:
    with serve(saved_models / "half_plus_two") as server:
        client = Client(server.address, "half_plus_two")
        for _ in range(10):
            client.predict({"x": [1.0, 2.0]})
        client.channel.close()
        server.wait_line(
            r"half_plus_two/serving_default: 10 requests in 10 batches, mean 2\.0 rows, mean wait .+, mean run "
        )
    assert server.log().count("mean wait") == 1


def test_the_log_tells_of_the_requests_up_to_the_end(serve: Serve, saved_models: Path) -> None:
    with serve(saved_models / "half_plus_two") as server:
        client = Client(server.address, "half_plus_two")
        for _ in range(3):
            client.predict({"x": [1.0, 2.0]})
        client.channel.close()
    assert re.search(r"half_plus_two/serving_default: 3 requests in 3 batches, mean 2\.0 rows", server.log())


def switches(process: int) -> int:
    """Context switches of all threads of a process so far."""
    total = 0
    for status in Path(f"/proc/{process}/task").glob("*/status"):
        counts = re.findall(r"^(?:non)?voluntary_ctxt_switches:\s+(\d+)$", status.read_text(), re.MULTILINE)
        total += sum(map(int, counts))
    return total


def test_an_idle_server_sleeps(serve: Serve, saved_models: Path) -> None:
    with serve(saved_models / "half_plus_two") as server:
        client = Client(server.address, "half_plus_two")
        client.predict({"x": [1.0]})
        client.channel.close()

        def per_second() -> float:
            before = switches(server.process.pid)
            ended = threading.Event()
            ended.wait(2.0)
            return (switches(server.process.pid) - before) / 2.0

        assert best_of_5(per_second) < 20
