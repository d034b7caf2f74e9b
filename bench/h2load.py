# SPDX-License-Identifier: Apache-2.0
"""Load by nghttp2's h2load: one gRPC message over and over, in a closed loop, each answer counted and weighed."""

from __future__ import annotations

import re
import statistics
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from headrace.predictor import PREDICT

HEADERS = ("content-type: application/grpc", "te: trailers")
PREFIX_BYTES = 5

REQUESTS = re.compile(
    r"^requests: (\d+) total, \d+ started, (\d+) done, (\d+) succeeded, (\d+) failed, (\d+) errored, (\d+) timeout$",
    re.MULTILINE,
)
RATE = re.compile(r"^finished in \S+, ([\d.]+) req/s", re.MULTILINE)
DATA = re.compile(r"^traffic: .*, \S+ \((\d+)\) data$", re.MULTILINE)


def prefixed(message: bytes) -> bytes:
    """A message as gRPC sends it."""
    return b"\0" + len(message).to_bytes(PREFIX_BYTES - 1, "big") + message


@dataclass(frozen=True)
class Load:
    """What is sent, and how many bytes every answer has."""

    message: Path  # with its prefix
    reply_bytes: int
    connections: int
    streams: int

    @property
    def in_flight(self) -> int:
        return self.connections * self.streams


def requests_per_s(load: Load, port: int, requests: int) -> float:
    """Sends so many.  Ends the run where one fails, or where the answers are not as many bytes as they must be."""
    said = _run(load, port, requests)
    found = RATE.search(said)
    if found is None:
        raise SystemExit(f"h2load tells no rate:\n{said}")
    return float(found[1])


def latencies_us(load: Load, port: int, requests: int) -> list[float]:
    """Sends so many, and tells how long each took, to the microsecond."""
    with tempfile.NamedTemporaryFile() as log:
        _run(load, port, requests, f"--log-file={log.name}")
        durations = [float(line.split("\t")[2]) for line in Path(log.name).read_text().splitlines()]
    if len(durations) != requests:
        raise SystemExit(f"h2load logged {len(durations)} of {requests} requests")
    return durations


def mean_us(durations: list[float]) -> float:
    """Whole microseconds have lost half of one on average."""
    return statistics.fmean(durations) + 0.5


def version() -> str:
    return subprocess.run(["h2load", "--version"], capture_output=True, text=True, check=True).stdout.strip()


def _run(load: Load, port: int, requests: int, *flags: str) -> str:
    command = ["h2load", f"-n{requests}", f"-c{load.connections}", f"-m{load.streams}", f"-d{load.message}", *flags]
    command += [f"-H{header}" for header in HEADERS]
    done = subprocess.run([*command, f"http://127.0.0.1:{port}{PREDICT}"], capture_output=True, text=True, check=False)
    counts = REQUESTS.search(done.stdout)
    if done.returncode != 0 or counts is None or [int(each) for each in counts.groups()] != [requests] * 3 + [0] * 3:
        raise SystemExit(f"h2load: not all of {requests} requests were answered:\n{done.stdout}{done.stderr}")
    # An answer that is no message, such as an error in the trailers alone, is lighter.
    data = DATA.search(done.stdout)
    if data is None or int(data[1]) != requests * (PREFIX_BYTES + load.reply_bytes):
        raise SystemExit(
            f"h2load: {requests} answers of {load.reply_bytes} bytes were expected, each with its prefix:\n{done.stdout}"
        )
    return done.stdout
