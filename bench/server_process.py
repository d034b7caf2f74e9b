# SPDX-License-Identifier: Apache-2.0
"""A server that is measured, in a process of its own: its port, its CPU time and the requests that it has counted."""

from __future__ import annotations

import re
import signal
import subprocess
import time
from collections.abc import Sequence
from types import TracebackType

from headrace.metrics import TROUBLES

# A rival says the one, `headrace serve` the other.
READY = re.compile(r"^listening on (\d+)$| serving .* on \S+:(\d+)$")
COUNTED = re.compile(r"^served (\d+) requests$|/\w+: (\d+) requests in (\d+) batches,")
TROUBLE = re.compile(rf"/\w+: .*\b\d+ ({'|'.join(TROUBLES.values())})\b")

STOP_S = 60.0


class ServerProcess:
    """Started when it is made; a context manager that ends it."""

    def __init__(self, command: Sequence[str]) -> None:
        self._name = " ".join(command)
        self._lines: list[str] = []
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def wait_ready(self) -> int:
        """Its port."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.append(line.rstrip())
            if ready := READY.search(self._lines[-1]):
                return int(ready[1] or ready[2])
        raise self.failure("it did not start")

    def cpu_s(self) -> float:
        """That all its threads have taken so far, to the nanosecond: by the clock of clock_getcpuclockid(3)."""
        return time.clock_gettime((~self._process.pid) << 3 | 2)

    def stop(self) -> tuple[int, int | None]:
        """Ends it; the requests that it counted from its start, and the batches that they came in, if it makes any.

        Ends the run where it had trouble with one.
        """
        self._process.send_signal(signal.SIGTERM)
        assert self._process.stdout is not None
        self._lines += self._process.stdout.read().splitlines()
        if self._process.wait(STOP_S) != 0:
            raise self.failure("it did not end well")
        if any(TROUBLE.search(line) for line in self._lines):
            raise self.failure("it did not answer every request well")
        counted = [found for line in self._lines if (found := COUNTED.search(line))]
        requests = sum(int(found[1] or found[2]) for found in counted)
        batches = sum(int(found[3] or 0) for found in counted)
        return requests, batches or None

    def failure(self, what: str) -> SystemExit:
        return SystemExit("\n".join([f"{self._name}: {what}; it said:", *self._lines[-20:]]))
