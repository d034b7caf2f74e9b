# SPDX-License-Identifier: Apache-2.0
"""What contestants that take turns were measured to do, round by round, and whether that was expected."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SUBJECT = "headrace"


@dataclass(frozen=True)
class Measured:
    """One case of one contestant, a value for each round."""

    setting: dict[str, Any]
    figures: dict[str, list[float]]

    def median(self, figure: str) -> float:
        return statistics.median(self.figures[figure])


# By case and contestant.
Results = dict[tuple[str, str], Measured]


@dataclass(frozen=True)
class Expectation:
    """What one figure should be; `values` has it for each round."""

    text: str
    values: Callable[[Results], list[float]]
    limit: float
    at_least: bool
    unit: str
    stretch: float | None = None

    def judge(self, results: Results) -> tuple[str, str]:
        """What was measured, and whether that was expected."""
        value = statistics.median(self.values(results))
        met = "met" if (value >= self.limit if self.at_least else value < self.limit) else "missed"
        if self.stretch is not None:
            met += f"; {self.stretch:g} {'met' if value >= self.stretch else 'missed'}"
        return f"{value:.2f}{self.unit}", met


def results_of(rounds: Iterable[Sequence[Mapping[str, Any]]]) -> Results:
    """From what was kept: for each round an entry with `case`, `contestant` and its figures, for each measurement."""
    found: Results = {}
    for entries in rounds:
        for entry in entries:
            key = (entry["case"], entry["contestant"])
            measured = found.setdefault(key, Measured(entry.get("setting", {}), {}))
            for name, value in entry.items():
                if isinstance(value, (int, float)):
                    measured.figures.setdefault(name, []).append(value)
    return found


def ratios(results: Results, case: str, rival: str, figure: str) -> list[float]:
    """Headrace's figure by the rival's, round by round."""
    ours, theirs = (results[case, name].figures[figure] for name in (SUBJECT, rival))
    return [a / b for a, b in zip(ours, theirs, strict=True)]


def expected_table(expectations: Iterable[Expectation], results: Results) -> list[str]:
    """The lines of a table in Markdown."""
    lines = ["| expected | measured | |", "|---|---:|---|"]
    for expectation in expectations:
        value, met = expectation.judge(results)
        lines.append(f"| {expectation.text} | {value} | {met} |")
    return lines


def us(value: float) -> str:
    return f"{value:.1f} us" if value < 100 else f"{value:,.0f} us"
