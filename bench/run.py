# SPDX-License-Identifier: Apache-2.0
"""Builds and runs the microbenchmarks, keeps what they said and writes the table in bench/README.md from it.

    python -m bench.run                     build, run, keep under bench/results, write the table
    python -m bench.run --table [FILE]      the table alone, from a kept result (the newest)

Every round runs every program once, so that rivals share whatever else the machine is doing; times are medians over
the rounds, and ratios are medians of the ratios of each round.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.record import ROOT, keep, newest, where, write_table

SUBJECT = "headrace"


@dataclass(frozen=True)
class Expectation:
    """What one result should be: less than `limit` nanoseconds, or for a counter less than `limit` in the best round,
    or, where there is a rival, that it takes at least `limit` times as long."""

    text: str
    bench: str
    limit: float
    rival: str | None = None
    counter: str | None = None


EXPECTED = (
    Expectation("an uncontended push takes less than 50 ns", "mailbox/push/headrace", 50),
    Expectation(
        "from submit to reply, 64 in flight, at least 5 times the rate of SharedBatchScheduler as TF Serving drives it",
        "lane/submit_to_reply/headrace/in_flight:64",
        5,
        rival="lane/submit_to_reply/shared_batch_scheduler_blocking/in_flight:64",
    ),
    Expectation(
        "the same, with SharedBatchScheduler driven by one thread that never waits for a single request",
        "lane/submit_to_reply/headrace/in_flight:64",
        5,
        rival="lane/submit_to_reply/shared_batch_scheduler/in_flight:64",
    ),
    Expectation(
        "99 of 100 windows end less than 1 ms late, in the best round", "timer/lateness", 1000, counter="p99_us"
    ),
)


@dataclass(frozen=True)
class Measured:
    """One benchmark, a value for each round."""

    name: str
    time_ns: list[float]
    cpu_ns: list[float]
    counters: dict[str, list[float]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", nargs="?", const="newest", metavar="FILE", help="only write the table")
    parser.add_argument("--rounds", type=int, default=5, help="default: %(default)s")
    parser.add_argument("--min_time", type=float, default=0.1, help="seconds for each benchmark of a round")
    arguments = parser.parse_args()
    if arguments.table is None:
        programs = build()
        result = keep(run(programs, arguments.rounds, arguments.min_time))
        print(f"kept {result.relative_to(ROOT)}\n")
    elif arguments.table == "newest":
        result = newest()
    else:
        result = Path(arguments.table)
    text = table(json.loads(result.read_text()), result.name)
    write_table(text, "run.py")
    print(text)
    return 0


def build() -> list[Path]:
    """The programs, built as the package is.  TensorFlow's scheduler is left out where TensorFlow is not installed."""
    tensorflow = importlib.util.find_spec("tensorflow")
    directory = str(Path(tensorflow.origin).parent) if tensorflow and tensorflow.origin else ""
    subprocess.run(["cmake", "--preset", "bench", f"-DHEADRACE_TENSORFLOW_DIR={directory}"], cwd=ROOT, check=True)
    subprocess.run(["cmake", "--build", "--preset", "bench"], cwd=ROOT, check=True)
    built = [ROOT / "build" / "bench" / source.stem for source in sorted(ROOT.glob("bench/cpp/bench_*.cc"))]
    return [program for program in built if program.exists()]


def run(programs: list[Path], rounds: int, min_time_s: float) -> dict[str, Any]:
    """Everything that Google Benchmark said, round by round."""
    said: list[dict[str, Any]] = []
    for number in range(rounds):
        print(f"round {number + 1} of {rounds}", flush=True)
        outputs = {}
        for program in programs:
            flags = ["--benchmark_format=json", f"--benchmark_min_time={min_time_s}"]
            done = subprocess.run([program, *flags], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
            outputs[program.name] = json.loads(done.stdout)
            for private in ("executable", "host_name"):  # where it ran is nobody's business
                outputs[program.name]["context"].pop(private, None)
        said.append(outputs)
    return {**where(), "compiler": first_line(["c++", "--version"]), "rounds": said}


def first_line(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[0]


def measured(result: dict[str, Any]) -> dict[str, Measured]:
    """The benchmarks of a result by name, without what Google Benchmark adds to it."""
    found: dict[str, Measured] = {}
    for outputs in result["rounds"]:
        for output in outputs.values():
            for entry in output["benchmarks"]:
                if entry.get("error_occurred"):
                    raise SystemExit(f"{entry['name']}: {entry['error_message']}")
                name = re.sub(r"/(iterations:\d+|process_time|manual_time)", "", entry["name"])
                one = found.setdefault(name, Measured(name, [], [], {}))
                one.time_ns.append(entry["real_time"])
                one.cpu_ns.append(entry["cpu_time"])
                for counter in ("rows_per_batch", "p50_us", "p99_us", "max_us"):
                    if counter in entry:
                        one.counters.setdefault(counter, []).append(entry[counter])
    return found


def table(result: dict[str, Any], file_name: str) -> str:
    """The result in Markdown: what was expected, then every benchmark."""
    benches = measured(result)
    lines = [
        f"{result['cpu']}, {result['cores']} cores, {result['compiler']}, {result['date'][:10]},",
        f"medians of {len(result['rounds'])} rounds ([raw](results/{file_name})).",
        "",
        "| expected | measured | |",
        "|---|---:|---|",
    ]
    for expectation in EXPECTED:
        value, met = judge(expectation, benches)
        lines.append(f"| {expectation.text} | {value} | {met} |")
    lines += ["", "| benchmark | time | CPU, all threads | times Headrace's | |", "|---|---:|---:|---:|---|"]
    for name, one in benches.items():
        has_cpu_time = name.startswith(("lane/", "codec/"))  # the others time a part of what they do
        lines.append(
            f"| {name} | {ns(statistics.median(one.time_ns))} "
            f"| {ns(statistics.median(one.cpu_ns)) if has_cpu_time else ''} "
            f"| {against_subject(one, benches)} "
            f"| {', '.join(f'{key} {statistics.median(values):.1f}' for key, values in one.counters.items())} |"
        )
    return "\n".join(lines)


def judge(expectation: Expectation, benches: dict[str, Measured]) -> tuple[str, str]:
    """What was measured, and whether that was expected."""
    one = benches.get(expectation.bench)
    rival = benches.get(expectation.rival) if expectation.rival else None
    if one is None or (expectation.rival and rival is None):
        return "", "not measured"
    if rival is not None:
        times = ratio(rival, one)
        return f"{times:.1f}", "met" if times >= expectation.limit else "missed"
    if expectation.counter:
        value = min(one.counters[expectation.counter])
        return f"{value:.0f} us", "met" if value < expectation.limit else "missed"
    value = statistics.median(one.time_ns)
    return ns(value), "met" if value < expectation.limit else "missed"


def against_subject(one: Measured, benches: dict[str, Measured]) -> str:
    """How many times as long it takes as Headrace does, where there is such a benchmark."""
    family, _, rest = one.name.partition("/")
    test, _, rest = rest.partition("/")
    rival, _, arguments = rest.partition("/")
    subject = benches.get("/".join(filter(None, [family, test, SUBJECT, arguments])))
    return "" if subject is None or rival == SUBJECT else f"{ratio(one, subject):.2g}"


def ratio(one: Measured, other: Measured) -> float:
    """The median of the ratios of their times, round by round."""
    return statistics.median(a / b for a, b in zip(one.time_ns, other.time_ns, strict=True))


def ns(value: float) -> str:
    return f"{value:.1f} ns" if value < 100 else f"{value:,.0f} ns"


if __name__ == "__main__":
    sys.exit(main())
