# SPDX-License-Identifier: Apache-2.0
"""What the lanes counted, in words: the line that `serve` logs at intervals."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from headrace import _core
from headrace.config import duration_text

# Counters of requests that got no answer from the model, and the word for each.
TROUBLES = {
    "rejected": "refused",
    "invalid": "invalid",
    "failed": "failed",
    "expired": "expired",
    "cancelled": "cancelled",
}


class IntervalLog:
    """Says what each lane did since the last time, at first since it began; nothing of a lane that did nothing."""

    def __init__(self, lanes: Iterable[tuple[str, _core.Lane]]) -> None:
        self._lanes = list(lanes)
        self._last: list[dict[str, Any]] = [dict.fromkeys(lane.stats(), 0) for _, lane in self._lanes]

    def lines(self) -> list[str]:
        """One line for each lane that ran a batch or refused a request since the last call."""
        lines = []
        for i, (name, lane) in enumerate(self._lanes):
            now = lane.stats()
            line = interval_text(self._last[i], now)
            self._last[i] = now
            if line:
                lines.append(f"{name}: {line}")
        return lines


def interval_text(before: dict[str, Any], after: dict[str, Any]) -> str:
    """What happened between two stats() of one lane; "" if nothing did."""
    parts = []
    batches = after["batches"] - before["batches"]
    if batches > 0:
        rows = after["batch_rows"] - before["batch_rows"]
        requests = after["batch_requests"] - before["batch_requests"]
        wait_us = (after["wait_ns"] - before["wait_ns"]) / max(1, requests) / 1e3
        run_us = (after["run_ns"] - before["run_ns"]) / batches / 1e3
        parts.append(
            f"{requests} requests in {batches} batches, mean {rows / batches:.1f} rows, mean wait {duration_text(wait_us)},"
            f" mean run {duration_text(run_us)}"
        )
    for counter, word in TROUBLES.items():
        count = after[counter] - before[counter]
        if count > 0:
            parts.append(f"{count} {word}")
    return ", ".join(parts)
