# SPDX-License-Identifier: Apache-2.0
"""The binding's own checks: what is refused with a message instead of being believed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from headrace import _core
from headrace.errors import Code

FLOAT = 1


def signature() -> _core.Signature:
    return _core.Signature(
        "serving_default", [_core.TensorSpec("x", FLOAT, [-1])], [_core.TensorSpec("y", FLOAT, [-1])]
    )


def options(**changed: Any) -> _core.LaneOptions:
    given: dict[str, Any] = {
        "max_batch_size": 8,
        "batch_timeout_micros": 0,
        "max_enqueued_batches": 4,
        "policy": "adaptive",
        "batched": True,
        "slab_bytes_max": 1 << 20,
        "waiting_bytes_max": 1 << 20,
    }
    return _core.LaneOptions(**(given | changed))


@pytest.fixture
def model() -> Iterator[_core.Model]:
    timer = _core.Timer()
    model = _core.Model("model", 1, timer)
    yield model
    model.close(0.0)
    timer.close()


def test_native_executors_need_a_runner_in_every_lane(model: _core.Model) -> None:
    model.add_lane(signature(), options())
    with pytest.raises(_core.StatusError, match="a lane has no runner") as refused:
        model.start(1)
    assert refused.value.code == Code.FAILED_PRECONDITION


def test_there_is_at_least_one_executor(model: _core.Model) -> None:
    with pytest.raises(_core.StatusError, match="num_batch_threads must be positive; was 0"):
        model.start(0)


def test_an_error_has_an_error_code(model: _core.Model) -> None:
    lane = model.add_lane(signature(), options())
    reply = lane.submit({"x": np.ones(1, np.float32)})
    batch = model.next()
    assert batch is not None
    for code in (0, -1, 17):
        with pytest.raises(_core.StatusError, match=f"from 1 to 16; was {code}"):
            batch.fail(code, "")
    batch.fail(Code.ABORTED, "told")
    assert reply.wait(10.0)
    with pytest.raises(_core.StatusError, match="told") as failed:
        reply.outputs()
    assert failed.value.code == Code.ABORTED


def test_inputs_are_named_by_strings(model: _core.Model) -> None:
    lane = model.add_lane(signature(), options())
    wrong: Any = {"x": np.ones(1, np.float32), 1: np.ones(1, np.float32)}
    with pytest.raises(_core.StatusError, match="an input is named by a str; got 1"):
        lane.submit(wrong)


def test_nothing_takes_none_for_a_model_or_a_router() -> None:
    nothing: Any = None
    for call in (_core.Router().add, _core.PredictQueue, lambda timer: _core.Model("model", 1, timer)):
        with pytest.raises(TypeError):
            call(nothing)


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"max_batch_size": 0}, "max_batch_size must be positive; was 0"),
        ({"batch_timeout_micros": -1}, "batch_timeout_micros must be non-negative; was -1"),
        ({"max_enqueued_batches": 0}, "max_enqueued_batches must be positive; was 0"),
        ({"policy": "greedy"}, "policy must be adaptive or timeout; was greedy"),
        ({"max_batch_size": 1 << 40, "max_enqueued_batches": 1 << 40}, "is too large; lower one of them"),
    ],
)
def test_options_out_of_range_are_named(changed: dict[str, Any], text: str) -> None:
    with pytest.raises(_core.StatusError, match=text) as refused:
        options(**changed)
    assert refused.value.code == Code.INVALID_ARGUMENT


def test_the_package_of_bfloat16_is_imported_when_one_comes() -> None:
    program = """
import sys
from headrace import _core
assert "ml_dtypes" not in sys.modules
model = _core.Model("model", 1, _core.Timer())
spec = _core.TensorSpec("x", 14, [-1])
lane = model.add_lane(_core.Signature("s", [spec], [_core.TensorSpec("y", 14, [-1])]), _core.LaneOptions(
    max_batch_size=8, batch_timeout_micros=0, max_enqueued_batches=4, policy="adaptive", batched=True,
    slab_bytes_max=1 << 20, waiting_bytes_max=1 << 20))
lane.submit({"x": [1.5, 2]})
assert "ml_dtypes" in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
