# SPDX-License-Identifier: Apache-2.0
"""What Python does in the process of a native server holds up no Predict."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from tests.e2e.served import LIMIT_S, Client

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# A server with handlers that keep Python busy for as long as a test wants.
PROGRAM = """
import json, sys, threading
from headrace.model import load
from headrace.server import server
from headrace.server.services import Unary

path, transport = sys.argv[1:]
document = json.dumps([{"key": [i, str(i), None, i / 7]} for i in range(200_000)])  # holds the GIL for about 0.2 s
begun, ended = threading.Semaphore(0), threading.Event()

def busy(work):
    def handle(_message):
        ended.clear()
        work()
        begun.release()
        while not ended.is_set():
            work()
        return b""
    return Unary(handle)

def answer_once_begun(_message):
    begun.acquire()
    return b""

def end(_message):
    ended.set()
    return b""

handlers = {
    "/busy/loop": busy(lambda: sum(i * i for i in range(1_000_000))),
    "/busy/json": busy(lambda: json.loads(document)),
    "/busy/load": busy(lambda: load(path)),
    "/busy/begun": Unary(answer_once_begun),
    "/busy/end": Unary(end),
}
control = server.control_services
server.control_services = lambda *arguments: {**control(*arguments), **handlers}
with server.Server({"half_plus_two": load(path)}, port=0, grpc_transport=transport) as serving:
    print(serving.grpc_address, flush=True)
    sys.stdin.read()
"""

# A Predict that waits for Python waits for all of the document: more than a hundred times as long as one that does not.
RATIO_MAX = 12.0
REQUESTS = 300


@pytest.fixture(scope="module")
def client(saved_models: Path) -> Iterator[Client]:
    command = [sys.executable, "-c", PROGRAM, str(saved_models / "half_plus_two"), "native"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        made = Client(process.stdout.readline().strip(), "half_plus_two")
        yield made
        made.channel.close()
        process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0


def p99_s(client: Client) -> float:
    """Of requests one after the other."""
    request = client.request({"x": [2.0]})
    latencies = []
    for _ in range(REQUESTS):
        begin = time.perf_counter()
        client.stub.Predict(request, timeout=LIMIT_S)
        latencies.append(time.perf_counter() - begin)
    return sorted(latencies)[REQUESTS * 99 // 100]


def ratio(client: Client, work: str) -> float:
    """How many times as long Predict takes beside that work."""

    def method(name: str) -> Any:
        return client.channel.unary_unary(f"/busy/{name}")

    alone_s = p99_s(client)
    working = method(work).future(b"", timeout=LIMIT_S)
    method("begun")(b"", timeout=LIMIT_S)
    beside_s = p99_s(client)
    assert not working.done()
    method("end")(b"", timeout=LIMIT_S)
    assert working.code() is grpc.StatusCode.OK
    return beside_s / alone_s


@pytest.mark.parametrize("work", ["loop", "json", "load"])
def test_predict_does_not_wait_for_python(client: Client, work: str) -> None:
    ratios: list[float] = []
    while len(ratios) < 5 and not (ratios and ratios[-1] < RATIO_MAX):
        ratios.append(ratio(client, work))
    assert min(ratios) < RATIO_MAX, ratios
