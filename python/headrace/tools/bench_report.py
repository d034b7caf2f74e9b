# SPDX-License-Identifier: Apache-2.0
"""What `headrace bench` says of a run: a table, JSON or a plot."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TextIO

from headrace import _core
from headrace.errors import Code, FailedPrecondition
from headrace.predictor import PREDICT
from headrace.tools.bench_messages import Verdict
from headrace.tools.bench_options import BenchOptions
from headrace.tools.report import columns, styled

QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999}

# A run that got less than this share of its rate did not hold it.
RATE_HELD_LEAST = 0.95

NS_PER_MS = 1e6
NS_PER_S = 1e9


@dataclass(frozen=True)
class BenchRun:
    """A run that is over."""

    options: BenchOptions
    report: _core.BenchReport
    message_bytes: float  # on average
    arrivals: int | None  # that were to be measured, in an open loop
    window_s: float | None  # that they were to take
    server_cpu_us: float | None  # per request
    verdict: Verdict | None
    interrupted: bool

    @property
    def answered(self) -> int:
        return sum(self.report.by_code.values())

    @property
    def failed(self) -> int:
        return self.answered - self.report.by_code.get(Code.OK, 0)

    @property
    def seconds(self) -> float:
        """From the end of the warm-up to the last answer, or to the end of the time that was meant."""
        return max(self.report.last_answer_ns / NS_PER_S, self.window_s or 0.0)

    @property
    def achieved_rate(self) -> float:
        return self.answered / self.seconds if self.answered else 0.0

    @property
    def intended_rate(self) -> float | None:
        return None if self.arrivals is None or not self.window_s else self.arrivals / self.window_s

    @property
    def errors(self) -> dict[str, dict[str, Any]]:
        return {
            Code(code).name: {"count": self.report.by_code[code], "first": readable(text)}
            for code, text in self.report.texts.items()
        }

    def complaints(self) -> list[str]:
        """What was wrong with it; nothing where the run is a measurement."""
        found = []
        code, text = self.report.status
        if code:
            found.append(text)
        if self.failed:
            found.append(f"{self.failed:,} of {self.answered:,} requests failed")
        if self.report.unanswered and not self.interrupted:
            found.append(f"{self.report.unanswered:,} requests had no answer")
        if self.answered == 0 and not found and not self.interrupted:
            found.append("nothing was measured")
        intended = self.intended_rate
        if intended is not None and not self._held(intended) and not self.interrupted:
            found.append(f"could not hold the rate: {self.achieved_rate:,.1f}/s of {intended:,.1f}/s")
        if self.verdict is not None and self.verdict.different:
            found.append(f"{self.verdict.different:,} answers differ from that of the same request sent alone")
        if self.verdict is not None and self.verdict.unchecked:
            found.append(f"{self.verdict.unchecked:,} answers were not compared: there are too many different ones")
        return found

    def _held(self, intended_rate: float) -> bool:
        # The last request is sent at the end, and its answer takes what an answer takes where none waits.
        sending_s = max((self.report.last_answer_ns - self.report.latency.min_ns()) / NS_PER_S, self.window_s or 0.0)
        return not self.report.unsent and self.answered >= RATE_HELD_LEAST * intended_rate * sending_s


def readable(text: str) -> str:
    """grpc-message, which is percent-encoded."""
    return urllib.parse.unquote(text, errors="replace")


# --- table ------------------------------------------------------------------------------------------------------------


def table(run: BenchRun, out: TextIO) -> str:
    """For people; lines that tell of something wrong are coloured where `out` is a terminal."""
    options, report = run.options, run.report
    host, port = options.address
    lines = [
        styled(f"{host}:{port}{options.method or PREDICT}", "1", out),
        f"{options.model_name + ', ' if options.model_name else ''}requests of {run.message_bytes:,.0f} bytes, {_how(run)}",
        "",
        f"{'requests':<10}{run.answered:,} in {run.seconds:.3g} s: {_rate(run)}",
    ]
    if report.warm_up:
        lines.append(f"{'warm-up':<10}{report.warm_up:,} requests in {options.warm_up_s:g} s, not measured")
    if run.server_cpu_us is not None:
        lines.append(f"{'server':<10}{run.server_cpu_us:,.1f} us of CPU per request")
    if run.verdict is not None:
        lines.append(f"{'answers':<10}{_verdict(run.verdict, options)}")
    for name, error in run.errors.items():
        lines.append(styled(f"{'errors':<10}{error['count']:,} {name}: {error['first']}", "31", out))
    if report.latency.count():
        lines += ["", _latencies(report)]
    if run.interrupted:
        lines += ["", f"interrupted, with {report.unanswered:,} requests under way"]
    return "\n".join(lines)


def _how(run: BenchRun) -> str:
    options = run.options
    over = f"{options.connections:,} connection{'s' if options.connections > 1 else ''}"
    if not options.is_open_loop:
        return f"{options.concurrency:,} under way on {over}"
    if options.arrivals_file:
        return f"sent as {options.arrivals_file} says on {over}"
    spread = f"gamma with cv {options.cv or 1:g}" if options.arrivals == "gamma" else "Poisson"
    return f"{options.rate:,g}/s on {over}, {spread}"


def _rate(run: BenchRun) -> str:
    intended = run.intended_rate
    return f"{run.achieved_rate:,.1f}/s" + ("" if intended is None else f" of {intended:,.1f}/s intended")


def _verdict(verdict: Verdict, options: BenchOptions) -> str:
    said = f"{verdict.equal:,} equal byte for byte to those of the same requests sent alone"
    if verdict.near:
        said += f", {verdict.near:,} within {options.tolerance:g} of them"
    return said + (f", {verdict.different:,} different" if verdict.different else "")


def _latencies(report: _core.BenchReport) -> str:
    histograms = [("latency, ms", report.latency)]
    if report.lateness.count():
        histograms.append(("sent late, ms", report.lateness))
    lines = [(label, [f"{ns / NS_PER_MS:.3f}" for ns in _marks(each).values()]) for label, each in histograms]
    return columns([*QUANTILES, "max", "mean"], lines)


def _marks(histogram: _core.LatencyHistogram) -> dict[str, float]:
    marks: dict[str, float] = {name: histogram.quantile_ns(quantile) for name, quantile in QUANTILES.items()}
    return {**marks, "max": histogram.max_ns(), "mean": histogram.mean_ns()}


# --- JSON -------------------------------------------------------------------------------------------------------------


def as_json(run: BenchRun) -> dict[str, Any]:
    """For programs; times are in the unit that ends their name."""
    options, report = run.options, run.report
    return {
        "target": ":".join(options.address),
        "method": options.method or PREDICT,
        "model_name": options.model_name,
        "signature_name": options.signature_name,
        "loop": "open" if options.is_open_loop else "closed",
        "concurrency": None if options.is_open_loop else options.concurrency,
        "connections": options.connections,
        "message_bytes": run.message_bytes,
        "seconds": run.seconds,
        "answered": run.answered,
        "failed": run.failed,
        "warm_up": report.warm_up,
        "unsent": report.unsent,
        "unanswered": report.unanswered,
        "achieved_rate": run.achieved_rate,
        "intended_rate": run.intended_rate,
        "server_cpu_us_per_request": run.server_cpu_us,
        "errors": run.errors,
        "answers": None if run.verdict is None else vars(run.verdict),
        "latency_ns": {**_marks(report.latency), "min": report.latency.min_ns()},
        "latency_buckets_ns": report.latency.buckets(),
        "sent_late_ns": _marks(report.lateness) if options.is_open_loop else None,
        "timeline": [_slice(*each, report.slice_ns) for each in report.slices],
        "slice_seconds": report.slice_ns / NS_PER_S,
        "interrupted": run.interrupted,
        "complaints": run.complaints(),
    }


def _slice(failed: int, latency: _core.LatencyHistogram, slice_ns: int) -> Mapping[str, float]:
    return {
        "rate": (latency.count() + failed) / (slice_ns / NS_PER_S),
        "failed": failed,
        "p50_ns": latency.quantile_ns(0.5),
        "p99_ns": latency.quantile_ns(0.99),
        "max_ns": latency.max_ns(),
    }


# --- plot -------------------------------------------------------------------------------------------------------------


def check_plot() -> None:
    """Raises FailedPrecondition where plots cannot be drawn."""
    if importlib.util.find_spec("matplotlib") is None:
        raise FailedPrecondition(f"plot needs matplotlib: {sys.executable} -m pip install matplotlib")


def plot(run: BenchRun, path: str) -> None:
    """Draws the share of requests by latency, and latencies and rate over time.  Raises FailedPrecondition."""
    figure = importlib.import_module("matplotlib.figure").Figure(figsize=(8, 9), layout="constrained")
    shares, times, rates = figure.subplots(3)
    report = run.report

    buckets = report.latency.buckets()
    seen, total = 0, max(1, report.latency.count())
    xs, ys = [], []
    for _, highest_ns, count in buckets:
        seen += count
        xs.append(max(highest_ns, 1) / NS_PER_MS)
        ys.append(seen / total)
    shares.step(xs, ys, where="post")
    shares.set(xscale="log", xlabel="latency, ms", ylabel="share of requests", ylim=(0, 1.02))

    slices = [_slice(*each, report.slice_ns) for each in report.slices]
    starts_s = [index * report.slice_ns / NS_PER_S for index in range(len(slices))]
    for mark in ("p50", "p99", "max"):
        times.plot(starts_s, [each[f"{mark}_ns"] / NS_PER_MS for each in slices], label=mark)
    times.set(yscale="log", xlabel="time, s", ylabel="latency, ms")
    times.legend()
    rates.plot(starts_s, [each["rate"] for each in slices], label="answered")
    if any(each["failed"] for each in slices):
        rates.plot(starts_s, [each["failed"] / (report.slice_ns / NS_PER_S) for each in slices], label="failed")
        rates.legend()
    rates.set(xlabel="time, s", ylabel="requests/s", ylim=(0, None))
    for axes in (shares, times, rates):
        axes.grid(visible=True, alpha=0.3)
    host, port = run.options.address
    figure.suptitle(f"{host}:{port}{run.options.method or PREDICT}  {run.options.model_name}")
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise FailedPrecondition(f"cannot write {path}: {error}") from None
