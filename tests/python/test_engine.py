# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from headrace import _core
from headrace.config import BatchingOptions
from headrace.engine import Engine, row_bytes
from headrace.errors import Code, FailedPrecondition

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

LIMIT_S = 30.0
FLOAT, STRING, BOOL = 1, 7, 10

SIGNATURE = _core.Signature(
    "serving_default", [_core.TensorSpec("x", FLOAT, [-1])], [_core.TensorSpec("y", FLOAT, [-1])]
)
ROW = {"x": np.ones([1], np.float32)}

# What a program of the tests below begins with: a lane whose function is `function`.
PROGRAM = """
import os, signal, sys, threading, time
import numpy as np
from headrace import _core
from headrace.config import BatchingOptions
from headrace.engine import Engine

signature = _core.Signature("s", [_core.TensorSpec("x", 1, [-1])], [_core.TensorSpec("y", 1, [-1])])
row = {"x": np.ones([1], np.float32)}

def start(function, **options):
    engine = Engine()
    return engine, engine.add_functions("f", {"s": (signature, function)}, BatchingOptions(**options)).lanes["s"]
"""


def double(inputs: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
    return [inputs["x"] * 2]


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM + program], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )


def test_what_waits_is_answered_before_it_closes() -> None:
    engine = Engine()
    options = BatchingOptions(batch_timeout_micros=3_600_000_000)
    lane = engine.add_functions("f", {"serving_default": (SIGNATURE, double)}, options).lanes["serving_default"]
    replies = [lane.submit(ROW) for _ in range(10)]
    assert engine.close(LIMIT_S)
    assert [reply.outputs()["y"].tolist() for reply in replies] == [[2.0]] * 10


def test_what_cannot_be_answered_in_time_is_answered_with_unavailable() -> None:
    engine = Engine()
    entered, leave = threading.Event(), threading.Event()

    def block(inputs: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
        entered.set()
        assert leave.wait(LIMIT_S)
        return [inputs["x"]]

    options = BatchingOptions(max_batch_size=1)
    lane = engine.add_functions("f", {"serving_default": (SIGNATURE, block)}, options).lanes["serving_default"]
    running, waiting = lane.submit(ROW), lane.submit(ROW)
    assert entered.wait(LIMIT_S)
    assert not engine.close(0.0)  # a run was left behind
    for reply in (running, waiting):
        assert reply.wait(LIMIT_S)
        with pytest.raises(_core.StatusError) as raised:
            reply.outputs()
        assert raised.value.code == Code.UNAVAILABLE
    leave.set()


def test_a_closed_engine_refuses_everything_and_may_be_closed_again() -> None:
    engine = Engine()
    lane = engine.add_functions("f", {"serving_default": (SIGNATURE, double)}, BatchingOptions()).lanes[
        "serving_default"
    ]
    assert engine.close(LIMIT_S)
    with pytest.raises(_core.StatusError) as raised:
        lane.submit(ROW)
    assert raised.value.code == Code.UNAVAILABLE
    with pytest.raises(FailedPrecondition, match="closed"):
        engine.add_functions("g", {}, BatchingOptions())
    assert engine.close(LIMIT_S)


def test_two_engines_live_beside_each_other() -> None:
    engines = [Engine(), Engine()]
    lanes = [
        engine.add_functions("f", {"serving_default": (SIGNATURE, double)}, BatchingOptions()).lanes["serving_default"]
        for engine in engines
    ]
    assert engines[0].close(LIMIT_S)
    reply = lanes[1].submit(ROW)
    assert reply.wait(LIMIT_S)
    assert reply.outputs()["y"].tolist() == [2.0]
    assert engines[1].close(LIMIT_S)


def test_lanes_are_named_after_model_and_signature() -> None:
    engine = Engine()
    engine.add_functions("f", {"a": (SIGNATURE, double)}, BatchingOptions())
    assert [name for name, _ in engine.lanes()] == ["f/a"]
    assert engine.close(LIMIT_S)


def test_the_bytes_of_a_row_are_known_where_shape_and_dtype_fix_them() -> None:
    def bytes_of(*inputs: tuple[int, list[int] | None]) -> int:
        specs = [_core.TensorSpec(f"x{i}", dtype, shape) for i, (dtype, shape) in enumerate(inputs)]
        return row_bytes(_core.Signature("s", specs, []))

    assert bytes_of((FLOAT, [-1, 28, 28])) == 4 * 28 * 28
    assert bytes_of((FLOAT, [-1]), (BOOL, [-1, 3])) == 4 + 3
    assert bytes_of((FLOAT, [-1, -1])) == 0
    assert bytes_of((FLOAT, None), (STRING, [-1]), (FLOAT, [])) == 0


def test_a_model_of_tensorflow_is_served_by_either_executor(saved_models: Any) -> None:
    from headrace import model

    loaded = model.load(saved_models / "half_plus_two")
    for executor in ("native", "python"):
        engine = Engine()
        [line] = engine.add(loaded, BatchingOptions(), executor=executor).lines
        assert line.startswith("half_plus_two/serving_default: policy adaptive")
        [(name, lane)] = engine.lanes()
        assert name == "half_plus_two/serving_default"
        reply = lane.submit(ROW)
        assert reply.wait(LIMIT_S)
        assert reply.outputs()["y"].tolist() == [2.5]
        assert engine.close(LIMIT_S)


# --- processes --------------------------------------------------------------------------------------------------------


def test_use_after_a_fork_is_a_clear_error_and_the_parent_goes_on() -> None:
    ended = run("""
engine, lane = start(lambda inputs: [inputs["x"]])
child = os.fork()
if child == 0:
    for use in (lambda: engine.router, lambda: engine.add_functions("g", {}, BatchingOptions()), lambda: lane.submit(row)):
        try:
            use()
        except Exception as error:
            print(error, flush=True)
    assert engine.close(1.0)
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
reply = lane.submit(row)
assert reply.wait(10)
assert engine.close(10)
""")
    assert ended.returncode == 0, ended.stderr
    said = ended.stdout.splitlines()
    assert len(said) == 3, ended.stdout
    assert all("fork" in line for line in said)


def test_a_child_that_was_forked_among_busy_threads_ends() -> None:
    ended = run("""
engine, lane = start(lambda inputs: [inputs["x"]])
ending = threading.Event()

def call():
    while not ending.is_set():
        lane.predict(row)

threads = [threading.Thread(target=call) for _ in range(8)]
for thread in threads:
    thread.start()
for _ in range(10):
    child = os.fork()
    if child == 0:
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
ending.set()
for thread in threads:
    thread.join()
engine.close(30)
print("all ended")
""")
    assert (ended.returncode, ended.stdout) == (0, "all ended\n"), ended.stderr


def test_the_process_ends_well_while_numpy_converts_inputs_without_the_gil() -> None:
    """NumPy gives up the GIL below our frames while it copies; CPython would end the thread there."""
    for number in range(10):
        ended = run(f"""
engine, lane = start(lambda inputs: [inputs["x"]])
strided = {{"x": np.ones([600, 400, 2], np.float32)[0, :, 0]}}

def call():
    while True:
        try:
            lane.predict(strided)
            np.ones([2000, 1500]).T.copy()
        except _core.StatusError:
            return

for _ in range(6):
    threading.Thread(target=call, daemon=True).start()
threading.Event().wait({0.02 * number})
""")
        assert (ended.returncode, ended.stderr) == (0, "")


def test_the_process_ends_well_50_times_under_load() -> None:
    for code in [0, 3] * 25:
        ended = run(f"""
engine, lane = start(lambda inputs: [inputs["x"] * 2])
def load():
    while True:
        try:
            replies = [lane.submit(row) for _ in range(20)]
        except _core.StatusError:
            return
        for reply in replies:
            reply.wait(10)
started = threading.Semaphore(0)
for _ in range(3):
    threading.Thread(target=lambda: (started.release(), load()), daemon=True).start()
for _ in range(3):
    started.acquire()
sys.exit({code})
""")
        assert (ended.returncode, ended.stdout, ended.stderr) == (code, "", "")


@pytest.mark.parametrize("block", ["threading.Event().wait()", "while True: pass", "time.sleep(1e6)"])
def test_a_function_that_never_returns_keeps_no_process_alive(block: str) -> None:
    begin = time.monotonic()
    ended = run(f"""
entered = threading.Event()
def never(inputs):
    entered.set()
    {block}
engine, lane = start(never, max_batch_size=1)
replies = [lane.submit(row) for _ in range(3)]
assert entered.wait(10)
def say():
    for reply in replies:
        assert reply.wait(10)
        try:
            reply.outputs()
        except _core.StatusError as error:
            os.write(1, f"{{error.code}} ".encode())
threading.Thread(target=say, daemon=True).start()
sys.exit(5)
""")
    assert ended.returncode == 5, ended.stderr
    assert ended.stdout == f"{Code.UNAVAILABLE:d} " * 3
    assert time.monotonic() - begin < LIMIT_S


def test_ctrl_c_interrupts_a_wait() -> None:
    program = """
engine, lane = start(lambda inputs: [inputs["x"]], batch_timeout_micros=3_600_000_000)
reply = lane.submit(row)
try:
    print("waiting", flush=True)
    reply.wait()
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""
    with subprocess.Popen([sys.executable, "-c", PROGRAM + program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "interrupted\n"
        assert process.wait(LIMIT_S) == 0


def test_an_idle_engine_with_two_models_sleeps() -> None:
    engine = Engine()
    for name in ("f", "g"):
        options = BatchingOptions(num_batch_threads=2, batch_timeout_micros=1000)
        lane = engine.add_functions(name, {"serving_default": (SIGNATURE, double)}, options).lanes["serving_default"]
        reply = lane.submit(ROW)
        assert reply.wait(LIMIT_S)

    def switches() -> int:
        total = 0
        for status in Path("/proc/self/task").glob("*/status"):
            total += sum(int(line.split()[1]) for line in status.read_text().splitlines() if "ctxt_switches" in line)
        return total

    def per_second() -> float:
        before = switches()
        threading.Event().wait(1.0)
        return switches() - before

    assert min(per_second() for _ in range(5)) < 20
    assert engine.close(LIMIT_S)
