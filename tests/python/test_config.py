# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from headrace.config import BatchingOptions, GrpcOptions, Option, ServeOptions, duration_text, options_of
from headrace.errors import InvalidArgument

ALL_OPTIONS = [
    (owner, option) for owner in (BatchingOptions, GrpcOptions, ServeOptions) for option in options_of(owner)
]


@pytest.mark.parametrize(("owner", "option"), ALL_OPTIONS, ids=[option.name for _, option in ALL_OPTIONS])
def test_every_option_says_what_it_is_and_checks_its_limits(
    owner: type[BatchingOptions | GrpcOptions | ServeOptions], option: Option
) -> None:
    assert option.about.help
    assert option.default is not None or option.about.default, "None needs words"
    about = option.about
    wrong: list[Any] = [object()]
    if about.choices:
        wrong.append("something else")
    if about.least is not None:
        wrong.append(option.type(about.least - 1))
    if about.most is not None:
        wrong.append(option.type(about.most + 1))
    if option.type is float:
        wrong.append(math.nan)
    for value in wrong:
        with pytest.raises(InvalidArgument, match=option.name):
            owner(**{option.name: value})
    for right in {about.least, about.most} - {None}:
        owner(**{option.name: option.type(right)})


def test_a_whole_number_is_no_truth_value_and_the_other_way_round() -> None:
    with pytest.raises(InvalidArgument, match="max_batch_size is True; it must be a whole number"):
        BatchingOptions(max_batch_size=True)
    with pytest.raises(InvalidArgument, match="enable_batching is 1; it must be true or false"):
        BatchingOptions(enable_batching=1)  # type: ignore[arg-type]


def test_a_message_names_the_option_the_value_and_the_limits() -> None:
    with pytest.raises(InvalidArgument) as raised:
        BatchingOptions(max_batch_size=0)
    assert str(raised.value) == "max_batch_size is 0; it must be 1 to 1048576 rows"


@pytest.mark.parametrize(
    ("options", "policy", "text"),
    [
        ({}, "adaptive", "a lone request never waits for others (batch_timeout_micros was not set)"),
        ({"batch_timeout_micros": 0}, "adaptive", "a lone request never waits for others"),
        ({"batch_timeout_micros": 100_000}, "timeout", "waits up to 100 ms (batch_timeout_micros was set)"),
        (
            {"batch_timeout_micros": 5, "batching_policy": "adaptive"},
            "adaptive",
            "never waits for others (batching_policy",
        ),
        ({"batching_policy": "timeout"}, "timeout", "never waits for others (batching_policy was set)"),
    ],
)
def test_a_timeout_above_zero_selects_the_timeout_policy(options: dict[str, Any], policy: str, text: str) -> None:
    batching = BatchingOptions(**options)
    assert batching.policy == policy
    assert batching.lane_options(batched=True).policy == policy
    assert f"policy {policy}, " in batching.wait_text()
    assert text in batching.wait_text()


@pytest.mark.parametrize(("max_batch_size", "batches"), [(64, 64), (1, 4096), (1000, 10), (4096, 10), (300, 14)])
def test_enough_batches_may_wait_for_4096_rows_and_at_least_10(max_batch_size: int, batches: int) -> None:
    options = BatchingOptions(max_batch_size=max_batch_size)
    assert options.enqueued_batches == batches
    assert options.lane_options(batched=True).max_enqueued_batches == batches
    assert dataclasses.replace(options, max_enqueued_batches=3).enqueued_batches == 3


def test_threads_follow_the_device_unless_they_are_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for cores, threads in ((1, 1), (2, 1), (8, 2), (64, 16)):
        monkeypatch.setattr("os.sched_getaffinity", lambda _, cores=cores: set(range(cores)))
        assert BatchingOptions().batch_threads(gpu=False) == threads
        assert BatchingOptions().batch_threads(gpu=True) == 2
        assert BatchingOptions(num_batch_threads=5).batch_threads(gpu=True) == 5


def test_max_batch_size_is_lowered_until_a_batch_fits_in_its_slab() -> None:
    options = BatchingOptions(max_batch_size=64, slab_bytes_max=1 << 20)
    assert options.fitted(row_bytes=0) is options
    assert options.fitted(row_bytes=(1 << 20) // 64) is options
    assert options.fitted(row_bytes=1 << 16).max_batch_size == 16
    assert options.fitted(row_bytes=1 << 30).max_batch_size == 1


def test_lane_options_carry_every_limit() -> None:
    lane = BatchingOptions(max_batch_size=7, batch_timeout_micros=9, slab_bytes_max=8192).lane_options(batched=False)
    assert (lane.max_batch_size, lane.batch_timeout_micros, lane.slab_bytes_max) == (7, 9, 8192)
    assert lane.waiting_bytes_max == 512 << 20
    assert not lane.batched


def test_lengths_of_time_are_written_for_people() -> None:
    assert [duration_text(us) for us in (0, 12.34, 999, 1500, 100_000, 2_500_000)] == [
        "0 us",
        "12.3 us",
        "999 us",
        "1.5 ms",
        "100 ms",
        "2.5 s",
    ]
