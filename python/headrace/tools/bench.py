# SPDX-License-Identifier: Apache-2.0
"""`headrace bench`: sends a server requests, in a closed or an open loop, and says how it answers them.

A latency counts from the time at which its request was meant to be sent.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TextIO

import numpy as np

from headrace import _core
from headrace.errors import InvalidArgument, from_status
from headrace.predictor import PREDICT
from headrace.tools.bench_arrivals import arrivals_ns
from headrace.tools.bench_messages import asker, messages_for, verdict_on
from headrace.tools.bench_options import BenchOptions
from headrace.tools.bench_report import NS_PER_S, BenchRun, as_json, check_plot, plot, table
from headrace.tools.report import bar_of

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130

LOOK_S = 0.1
BAR_WIDTH = 30


def run(options: BenchOptions) -> int:
    """Measures, prints, and returns the exit code: 1 where requests failed, the rate was not held or answers differ.

    Ctrl-C ends the run early and prints what there is.  Raises HeadraceError where it cannot begin.
    """
    if options.plot:
        check_plot()
    measured = measure(options, sys.stderr)
    print(json.dumps(as_json(measured)) if options.json else table(measured, sys.stdout), flush=True)
    if options.plot:
        plot(measured, options.plot)
    complaints = measured.complaints()
    for complaint in complaints:
        print(f"headrace bench: {complaint}", file=sys.stderr)
    if measured.interrupted:
        return EXIT_INTERRUPTED
    return EXIT_FAILED if complaints else 0


def measure(options: BenchOptions, err: TextIO) -> BenchRun:
    """One run; its progress is shown on `err` where that is a terminal.  Raises HeadraceError where it cannot begin."""
    cpu = ServerCpu(options.server_pid)
    ask = asker(options)
    messages = messages_for(options, ask)
    path = options.method or PREDICT
    expected = [ask(path, message) for message in messages] if options.verify else []
    arrivals = arrivals_ns(options) if options.is_open_loop else None
    host, port = options.address
    client = _core.BenchClient(
        host,
        port,
        path,
        messages,
        connections=options.connections,
        threads=options.threads,
        concurrency=options.concurrency,
        duration=options.duration_s,
        requests=options.requests,
        arrivals_ns=arrivals,
        warm_up=options.warm_up_s,
        patience=options.patience,
        timeout=_grpc_timeout(options.timeout),
        keep_answers=options.verify,
    )
    interrupted = False
    try:
        client.start()
        watch(client, cpu, Progress(options, arrivals is None, err))
    except _core.StatusError as error:
        raise from_status(error.code, error.message) from None
    except KeyboardInterrupt:
        interrupted = True
        client.stop()
        client.wait_for(options.patience)
    cpu_us = cpu.us_per_request(client.was_progress()[0])
    report = client.take_report()

    measured = window_s = None
    if arrivals is not None:
        warm_up_ns = int(options.warm_up_s * NS_PER_S)
        measured = int(np.count_nonzero(arrivals >= warm_up_ns))
        last_s = (int(arrivals[-1]) - warm_up_ns) / NS_PER_S
        window_s = options.duration_s if options.duration_s and options.requests is None else last_s
    return BenchRun(
        options=options,
        report=report,
        message_bytes=float(np.mean([len(message) for message in messages])),
        arrivals=measured,
        window_s=window_s,
        server_cpu_us=cpu_us,
        verdict=verdict_on(report.answers, expected, options, report.answers_dropped) if options.verify else None,
        interrupted=interrupted,
    )


def watch(client: _core.BenchClient, cpu: ServerCpu, progress: Progress) -> None:
    """Returns when the run is over; the server's CPU time counts from the end of the warm-up."""
    warm_up_s = progress.options.warm_up_s
    with progress:
        while True:
            answered, failed, elapsed_ns = client.was_progress()
            elapsed_s = elapsed_ns / NS_PER_S
            if elapsed_s >= warm_up_s:
                cpu.begin(answered)
            progress.show(answered, failed, elapsed_s)
            left_s = warm_up_s - elapsed_s
            if client.wait_for(min(LOOK_S, left_s) if left_s > 0 else LOOK_S):
                return


class ServerCpu:
    """The CPU time that a process takes for each request.  Raises InvalidArgument where there is no such process."""

    def __init__(self, pid: int | None) -> None:
        self._pid = pid
        self._begun: tuple[float, int] | None = None
        if pid is not None and self._seconds() is None:
            raise InvalidArgument(f"server_pid is {pid}: there is no such process")

    def begin(self, answered: int) -> None:
        """The first time counts."""
        seconds = self._seconds()
        if self._begun is None and seconds is not None:
            self._begun = (seconds, answered)

    def us_per_request(self, answered: int) -> float | None:
        """Since begin(); None where that is not known."""
        seconds = self._seconds()
        if self._begun is None or seconds is None or answered == self._begun[1]:
            return None
        return 1e6 * (seconds - self._begun[0]) / (answered - self._begun[1])

    def _seconds(self) -> float | None:
        if self._pid is None:
            return None
        try:
            text = Path(f"/proc/{self._pid}/stat").read_text()
        except OSError:
            return None
        user, system = text.rpartition(")")[2].split()[11:13]  # the name before may hold anything
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


class Progress:
    """A bar on a terminal; nothing elsewhere."""

    def __init__(self, options: BenchOptions, closed_loop: bool, err: TextIO) -> None:
        self.options = options
        self._err = err
        self._shown = err.isatty()
        self._requests = options.requests if closed_loop else None

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown:
            self._err.write("\r\x1b[K")
            self._err.flush()

    def show(self, answered: int, failed: int, elapsed_s: float) -> None:
        """Draws it anew."""
        if not self._shown:
            return
        options = self.options
        share = 0.0
        if options.duration_s:
            share = elapsed_s / (options.warm_up_s + options.duration_s)
        if self._requests and elapsed_s > options.warm_up_s:
            share = max(share, answered / self._requests)
        bar = bar_of(min(share, 1.0), BAR_WIDTH, self._err).ljust(BAR_WIDTH)
        failures = f", {failed:,} failed" if failed else ""
        self._err.write(f"\r\x1b[K{bar} {elapsed_s:.1f} s  {answered:,} answered{failures}")
        self._err.flush()


def _grpc_timeout(timeout_s: float | None) -> str:
    """At most 8 digits and a unit."""
    if timeout_s is None:
        return ""
    return f"{max(1, round(timeout_s * 1e6))}u" if timeout_s < 99 else f"{round(timeout_s * 1e3)}m"
