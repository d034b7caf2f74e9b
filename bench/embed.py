# SPDX-License-Identifier: Apache-2.0
"""Measures the embedding API beside its rivals, keeps what was measured and writes the table in bench/README.md from it.

    python -m bench.embed                     measure, keep under bench/results, write the table
    python -m bench.embed --table [FILE]      the table alone, from a kept result (the newest)

Every contestant has a process of its own, new in each round.  Within a round they take turns: each is measured with so
many callers while the others are stopped, then all with the next number of callers.  Figures are medians over the
rounds, and ratios are medians of the ratios of each round.  A wrong answer fails the run.

A contestant with settings first tries all of them, and is measured with those that gave most calls per second, chosen
for each number of callers on its own.  Headrace has its defaults.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import json
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.record import ROOT, keep, newest, where, write_table
from bench.rounds import SUBJECT, Expectation, Measured, Results, expected_table, ratios, results_of, us

KIND = "embed"
MODEL = "half_plus_two"

THREADS = (1, 8, 32, 128)
TASKS = 1000
TRIALS = 2
TRIAL_S = 0.4

# What is batched, and by whom: the module of each contestant.
CONTESTANTS = {
    "model": {
        SUBJECT: "bench.subject",
        "batch_function": "bench.rivals.batch_function",
        "session_callable": "bench.rivals.session_callable",
        "headrace_session": "bench.subject_session",
        "asyncio_queue": "bench.rivals.asyncio_queue",
    },
    "function": {
        SUBJECT: "bench.subject",
        "batched": "bench.rivals.pypi_batched",
        "asyncio_queue": "bench.rivals.asyncio_queue",
        "floor": "bench.rivals.floor",
    },
}

Setting = dict[str, Any]
Figures = dict[str, float]


@dataclass(frozen=True)
class Case:
    """What is called, by how many callers of which kind."""

    work: str
    callers: str
    count: int

    def __str__(self) -> str:
        return f"{self.work}/{self.callers}:{self.count}"


CASES = [
    Case(work, callers, count)
    for work in CONTESTANTS
    for callers, counts in (("threads", THREADS), ("tasks", (TASKS,)))
    for count in counts
]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", nargs="?", const="newest", metavar="FILE", help="only write the table")
    parser.add_argument("--rounds", type=int, default=5, help="default: %(default)s")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each measurement; default: %(default)s")
    arguments = parser.parse_args()
    if arguments.table is None:
        kept = keep(run(arguments.rounds, arguments.seconds), KIND)
        print(f"kept {kept.relative_to(ROOT)}\n")
    else:
        kept = newest(KIND) if arguments.table == "newest" else Path(arguments.table)
    text = table(json.loads(kept.read_text()), kept.name)
    write_table(text, "embed.py")
    print(text)
    return 0


# --- measuring --------------------------------------------------------------------------------------------------------


@dataclass
class Process:
    """A contestant's process; it is stopped except while it measures."""

    name: str
    native: subprocess.Popen[str]
    errors: Path
    settings: dict[str, list[Setting]]
    loaded: Figures = field(default_factory=dict)

    def measure(self, case: Case, setting: Setting, seconds: float) -> Figures:
        asked = {"callers": case.callers, "count": case.count, "seconds": seconds, "setting": setting}
        assert self.native.stdin is not None
        self.native.send_signal(signal.SIGCONT)
        self.native.stdin.write(json.dumps(asked) + "\n")
        self.native.stdin.flush()
        return self.answer()

    def answer(self) -> Figures:
        assert self.native.stdout is not None
        line = self.native.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} failed:\n{self.errors.read_text()}")
        self.native.send_signal(signal.SIGSTOP)
        figures: Figures = json.loads(line)
        return figures


@contextmanager
def process(work: str, module: str, model: Path) -> Iterator[Process]:
    """Starts a contestant and readies it."""
    command = [sys.executable, "-m", "bench.contestant", module, work, str(model)]
    with tempfile.NamedTemporaryFile() as errors:
        native = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        )
        started = Process(f"{work}: {module}", native, Path(errors.name), importlib.import_module(module).SETTINGS)
        try:
            started.loaded = started.answer()
            yield started
        finally:
            native.kill()
            native.communicate()


def run(rounds: int, seconds: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as directory:
        subprocess.run(
            [sys.executable, ROOT / "tests" / "models.py", directory, MODEL], check=True, stderr=subprocess.DEVNULL
        )
        model = Path(directory) / MODEL / "1"
        trials = try_settings(model)
        best = best_settings(trials)
        measured = []
        for number in range(rounds):
            print(f"round {number + 1} of {rounds}", flush=True)
            measured.append({"cases": one_round(model, best, seconds), "memory": memory(model, seconds)})
    packages = ("tensorflow", "numpy", "batched")
    return {
        **where(),
        "python": platform.python_version(),
        "packages": {package: importlib.metadata.version(package) for package in packages},
        "trials": trials,
        "rounds": measured,
    }


def try_settings(model: Path) -> list[dict[str, Any]]:
    """Every setting of every contestant that has several, in turns."""
    trials = []
    for work, contestants in CONTESTANTS.items():
        for name, module in contestants.items():
            if all(len(settings) == 1 for settings in importlib.import_module(module).SETTINGS.values()):
                continue
            print(f"trying the settings of {work}/{name}", flush=True)
            with process(work, module, model) as started:
                for _ in range(TRIALS):
                    for case in CASES:
                        for setting in started.settings.get(case.callers, []) if case.work == work else []:
                            figures = started.measure(case, setting, TRIAL_S)
                            trials.append({"case": str(case), "contestant": name, "setting": setting, **figures})
    return trials


def best_settings(trials: list[dict[str, Any]]) -> dict[tuple[str, str], Setting]:
    """The setting with most calls per second, by case and contestant."""
    rates: dict[tuple[str, str], dict[str, list[float]]] = {}
    for trial in trials:
        of_one = rates.setdefault((trial["case"], trial["contestant"]), {})
        of_one.setdefault(json.dumps(trial["setting"]), []).append(trial["calls_per_s"])
    return {
        key: json.loads(max(of_one, key=lambda setting: statistics.median(of_one[setting])))
        for key, of_one in rates.items()
    }


def one_round(model: Path, best: dict[tuple[str, str], Setting], seconds: float) -> list[dict[str, Any]]:
    measured = []
    with ExitStack() as stack:
        started = {
            (work, name): stack.enter_context(process(work, module, model))
            for work, contestants in CONTESTANTS.items()
            for name, module in contestants.items()
        }
        for case in CASES:
            for (work, name), contestant in started.items():
                if work == case.work and case.callers in contestant.settings:
                    setting = best.get((str(case), name), {})
                    figures = contestant.measure(case, setting, seconds)
                    measured.append({"case": str(case), "contestant": name, "setting": setting, **figures})
    return measured


def memory(model: Path, seconds: float) -> Figures:
    """A process that has loaded the model, and then served a Batcher's most threads."""
    with process("model", CONTESTANTS["model"][SUBJECT], model) as subject:
        served = subject.measure(Case("model", "threads", THREADS[-1]), {}, seconds)
        return {"loaded_bytes": subject.loaded["rss_bytes"], "served_bytes": served["rss_bytes"]}


# --- the table --------------------------------------------------------------------------------------------------------


def times_the_calls(case: str, rival: str) -> Callable[[Results], list[float]]:
    return lambda results: ratios(results, case, rival, "calls_per_s")


def share_of_p99(case: str, rival: str) -> Callable[[Results], list[float]]:
    return lambda results: ratios(results, case, rival, "p99_us")


def more_us_per_call(case: str, rival: str) -> Callable[[Results], list[float]]:
    def values(results: Results) -> list[float]:
        ours, theirs = (results[case, name].figures["calls_per_s"] for name in (SUBJECT, rival))
        return [1e6 / a - 1e6 / b for a, b in zip(ours, theirs, strict=True)]

    return values


def mib_served(results: Results) -> list[float]:
    figures = results["memory", SUBJECT].figures
    pairs = zip(figures["served_bytes"], figures["loaded_bytes"], strict=True)
    return [(served - loaded) / (1 << 20) for served, loaded in pairs]


EXPECTED = (
    Expectation(
        "32 threads: at least 2.3 times the calls/s of BatchFunction (hoped for: 4)",
        times_the_calls("model/threads:32", "batch_function"), 2.3, at_least=True, unit="", stretch=4,
    ),
    Expectation(
        "128 threads: at least 1.5 times the calls/s of BatchFunction (hoped for: 2)",
        times_the_calls("model/threads:128", "batch_function"), 1.5, at_least=True, unit="", stretch=2,
    ),
    Expectation(
        "32 threads: p99 lower than BatchFunction's, by its share",
        share_of_p99("model/threads:32", "batch_function"), 1, at_least=False, unit="",
    ),
    Expectation(
        "128 threads: p99 lower than BatchFunction's, by its share",
        share_of_p99("model/threads:128", "batch_function"), 1, at_least=False, unit="",
    ),
    Expectation(
        "1 thread: less than 20 us more than TensorFlow's Session callable takes",
        more_us_per_call("model/threads:1", "session_callable"), 20, at_least=False, unit=" us",
    ),
    Expectation(
        "1 thread: less than 20 us more than a call through Headrace's own session",
        more_us_per_call("model/threads:1", "headrace_session"), 20, at_least=False, unit=" us",
    ),
    Expectation(
        "a process that has served 128 threads has at most 30 MiB more than one that has loaded the model (the slab"
        " is one page)",
        mib_served, 30, at_least=False, unit=" MiB",
    ),
)  # fmt: skip


def results_with_memory(kept: dict[str, Any]) -> Results:
    found = results_of(one["cases"] for one in kept["rounds"])
    figures = {key: [one["memory"][key] for one in kept["rounds"]] for key in ("loaded_bytes", "served_bytes")}
    found["memory", SUBJECT] = Measured({}, figures)
    return found


def table(kept: dict[str, Any], file_name: str) -> str:
    """The result in Markdown: what was expected, then every case."""
    results = results_with_memory(kept)
    packages = ", ".join(f"{name} {version}" for name, version in kept["packages"].items())
    lines = [
        f"{kept['cpu']}, {kept['cores']} cores, Python {kept['python']}, {packages}, {kept['date'][:10]},",
        f"medians of {len(kept['rounds'])} rounds ([raw](results/{file_name})).",
        "",
        *expected_table(EXPECTED, results),
        "",
        "| | calls/s | Headrace's, times these | p50 | p99 | longest | CPU per call | switches per call | |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---|",
    ]
    for case in CASES:
        lines += [line_of(results, str(case), name) for name in CONTESTANTS[case.work] if (str(case), name) in results]
    return "\n".join(lines)


def line_of(results: Results, case: str, name: str) -> str:
    one = results[case, name]
    times = "" if name == SUBJECT else f"{statistics.median(ratios(results, case, name, 'calls_per_s')):.2g}"
    remarks = [
        f"{option}={value:g}" if isinstance(value, float) else f"{option}={value}"
        for option, value in one.setting.items()
    ]
    if "rows_per_batch" in one.figures:
        remarks.append(f"rows_per_batch {one.median('rows_per_batch'):.1f}")
    return (
        f"| {case}/{name} | {one.median('calls_per_s'):,.0f} | {times} | {us(one.median('p50_us'))} "
        f"| {us(one.median('p99_us'))} | {us(one.median('max_us'))} | {us(one.median('cpu_us_per_call'))} "
        f"| {one.median('switches_per_call'):.2f} | {', '.join(remarks)} |"
    )


if __name__ == "__main__":
    sys.exit(main())
