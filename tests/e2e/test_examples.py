# SPDX-License-Identifier: Apache-2.0
"""The programs in examples/, as they are."""

from __future__ import annotations

import http.client
import json
import re
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from headrace.client import Client
from headrace.errors import InvalidArgument
from tests.e2e.served import LIMIT_S, floats

if TYPE_CHECKING:
    from types import TracebackType

EXAMPLES = Path(__file__).parents[2] / "examples"


class Example:
    """A running example; leaving the block ends it by Ctrl-C, and expects that it ends well."""

    def __init__(self, name: str, *arguments: str | Path) -> None:
        command = [sys.executable, str(EXAMPLES / name), *map(str, arguments)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.said: list[str] = []
        self._limit = threading.Timer(LIMIT_S, self.process.kill)
        self._limit.start()

    def wait_line(self, pattern: str) -> re.Match[str]:
        """The next line that matches."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(line)
            found = re.search(pattern, line)
            if found:
                return found
        raise AssertionError(f"no {pattern} in:\n{''.join(self.said)}")

    def __enter__(self) -> Example:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.send_signal(signal.SIGINT)
        rest, _ = self.process.communicate()
        self._limit.cancel()
        self.said.append(rest)
        assert kind is not None or self.process.returncode == 0, "".join(self.said)


def post(port: int, body: bytes) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
    try:
        connection.request("POST", "/", body)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def test_a_model_is_embedded_in_a_threaded_web_server(saved_models: Path) -> None:
    with Example("web_handler.py", saved_models / "digits", "0") as example:
        port = int(example.wait_line(r"^http://127\.0\.0\.1:(\d+)$")[1])
        bodies = [json.dumps({"x": [[i / 100] * 64]}).encode() for i in range(100)]
        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(lambda body: post(port, body), bodies))
        for status, answer in answers:
            assert status == 200
            assert sum(answer["probabilities"][0]) == pytest.approx(1.0, abs=1e-5)
            assert answer["class"] == [int(np.argmax(answer["probabilities"][0]))]
        for body in (b"{", b"[]", b'{"y": [1]}', b'{"x": ["a"]}', b""):
            status, answer = post(port, body)
            assert (status, list(answer)) == (400, ["error"])
    found = re.search(r"(\d+) requests, (\d+) runs of the model\n$", example.said[-1])
    assert found is not None
    assert int(found[1]) >= 100 >= int(found[2]) > 0


def test_a_function_is_batched_under_asyncio() -> None:
    command = [sys.executable, str(EXAMPLES / "batch_function.py")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    found = re.fullmatch(r"1000 of 1000 found, in (\d+) calls of the function\n", ended.stdout)
    assert found is not None, ended.stdout
    assert 4 <= int(found[1]) <= 100  # batches of up to 256 rows


def test_a_function_is_served_next_to_a_model(saved_models: Path) -> None:
    with Example("serve_both.py", saved_models / "digits", "0") as example:
        address = example.wait_line(r"^serving digits version 1, images version 1 on (\S+)$")[1]
        with Client(address) as client:
            pixels = np.arange(192, dtype=np.uint8).reshape(3, 8, 8)
            direct = client.predict("digits", {"x": floats(pixels.reshape(3, 64) / 255)}, timeout=LIMIT_S)
            answer = client.predict("images", {"pixels": pixels}, timeout=LIMIT_S)
            assert answer["digit"].tolist() == direct["class"].tolist()
            assert np.allclose(answer["probability"], direct["probabilities"].max(axis=1))
            with pytest.raises(InvalidArgument, match=r"want uint8 \[rows,8,8\], got int64 \[1, 3\]"):
                client.predict("images", {"pixels": np.array([[1, 2, 3]])}, timeout=LIMIT_S)
