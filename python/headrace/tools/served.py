# SPDX-License-Identifier: Apache-2.0
"""`headrace serve` in a process of its own, its model calls counted from its log."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import grpc

# The line of `--log_batches`, one for each batch.
BATCH_LINE = re.compile(r"\bbatch \S+ rows=(\d+) requests=(\d+) wait_us=(\d+) run_us=(\d+) reason=(\w+)")


class ServerFailed(Exception):
    """The server did not start, or its log contradicts its client; the text ends with the last lines of its log."""


@dataclass(frozen=True)
class BatchRun:
    """One model call as the server logged it: rows, the requests they came from, and microseconds on the executor."""

    rows: int
    requests: int
    wait_us: int
    run_us: int
    reason: str


def parse_batch_line(line: str) -> BatchRun | None:
    """The model call that a line of the server's log tells of; None for every other line."""
    found = BATCH_LINE.search(line)
    if found is None:
        return None
    rows, requests, wait_us, run_us, reason = found.groups()
    return BatchRun(int(rows), int(requests), int(wait_us), int(run_us), reason)


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Served:
    """A server of one model on a free port of 127.0.0.1; a context manager that stops it at the end."""

    def __init__(self, model: Path, *flags: str, environment: Mapping[str, str] | None = None) -> None:
        port = free_port()
        self.address = f"127.0.0.1:{port}"
        command = [sys.executable, "-m", "headrace", "serve", str(model), f"--port={port}", "--log_batches", *flags]
        self._process = subprocess.Popen(
            command,
            env={**os.environ, **(environment or {})},
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
        )
        self._changed = threading.Condition()  # guards all that follows
        self._batches: list[BatchRun] = []
        self._last_lines: deque[str] = deque(maxlen=10)
        self._connected = False
        self._ended = False
        self._log_reader = threading.Thread(target=self._read_log, name="log reader", daemon=True)
        self._log_reader.start()

    def __enter__(self) -> Served:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log_reader.join()
        assert self._process.stderr is not None
        self._process.stderr.close()

    def wait_ready(self, timeout_s: float) -> None:
        """Returns once the server accepts gRPC connections.  Raises ServerFailed if it ends or takes longer."""
        options = [("grpc.initial_reconnect_backoff_ms", 50), ("grpc.min_reconnect_backoff_ms", 50)]
        with grpc.insecure_channel(self.address, options=options) as channel:
            channel.subscribe(self._on_connectivity, try_to_connect=True)
            with self._changed:
                self._changed.wait_for(lambda: self._connected or self._ended, timeout=timeout_s)
                connected = self._connected
            channel.unsubscribe(self._on_connectivity)
        if not connected:
            raise self.failure("the server did not start")

    def take_batches(self, *, requests: int) -> list[BatchRun]:
        """The model calls since the last take, once they account for this many requests.

        Waits for them, because an answer may overtake its line of the log.  Raises ServerFailed if they never add up.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._logged_requests() >= requests or self._ended, timeout=10)
            logged = self._logged_requests()
            batches, self._batches = self._batches, []
        if logged != requests:
            raise self.failure(f"the server logged batches of {logged} requests, {requests} were answered")
        return batches

    def failure(self, what: str) -> ServerFailed:
        """An error that says `what` and shows the end of the server's log."""
        with self._changed:
            last_lines = [f"    {line}" for line in self._last_lines]
        return ServerFailed("\n".join([f"{what}; the end of its log:", *last_lines]))

    def _logged_requests(self) -> int:
        return sum(batch.requests for batch in self._batches)

    def _on_connectivity(self, connectivity: grpc.ChannelConnectivity) -> None:
        if connectivity is grpc.ChannelConnectivity.READY:
            with self._changed:
                self._connected = True
                self._changed.notify_all()

    def _read_log(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            batch = parse_batch_line(line)
            with self._changed:
                if batch is None:
                    self._last_lines.append(line.rstrip())
                else:
                    self._batches.append(batch)
                    self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()
