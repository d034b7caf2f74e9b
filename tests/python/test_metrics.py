# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from headrace.metrics import TROUBLES, IntervalLog, interval_text

NOTHING = dict.fromkeys(("batches", "batch_rows", "batch_requests", "wait_ns", "run_ns", *TROUBLES), 0)


class FakeLane:
    """Counts what the test says."""

    def __init__(self) -> None:
        self.counters = dict(NOTHING)

    def stats(self) -> dict[str, int]:
        return dict(self.counters)


def test_nothing_is_said_of_nothing() -> None:
    assert interval_text(NOTHING, NOTHING) == ""


def test_means_are_those_of_the_interval_alone() -> None:
    before = {**NOTHING, "batches": 5, "batch_rows": 5, "batch_requests": 5, "wait_ns": 10**9, "run_ns": 10**9}
    after = {
        **before,
        "batches": 5 + 4,
        "batch_rows": 5 + 50,
        "batch_requests": 5 + 20,
        "wait_ns": 10**9 + 20 * 1_500_000,
        "run_ns": 10**9 + 4 * 250_000,
    }
    assert interval_text(before, after) == "20 requests in 4 batches, mean 12.5 rows, mean wait 1.5 ms, mean run 250 us"


def test_refused_and_failed_requests_are_mentioned_only_when_there_are_some() -> None:
    after = {**NOTHING, "rejected": 3, "expired": 1}
    assert interval_text(NOTHING, after) == "3 refused, 1 expired"


def test_an_idle_lane_is_silent_and_a_busy_one_has_one_line_each_time() -> None:
    idle, busy = FakeLane(), FakeLane()
    log = IntervalLog([("m/idle", idle), ("m/busy", busy)])  # type: ignore[list-item]
    assert log.lines() == []
    busy.counters.update(batches=1, batch_rows=2, batch_requests=2, run_ns=1000)
    [line] = log.lines()
    assert line.startswith("m/busy: 2 requests in 1 batches, mean 2.0 rows")
    assert log.lines() == []
