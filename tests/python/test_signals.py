# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from headrace.server.signals import StopSignals

LIMIT_S = 30.0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_wait_and_nothing_else(number: signal.Signals) -> None:
    with StopSignals() as signals:
        threading.Timer(0.01, os.kill, (os.getpid(), number)).start()
        assert signals.wait(LIMIT_S)
        os.kill(os.getpid(), number)
        assert signals.wait(LIMIT_S)


def test_a_signal_that_came_before_the_wait_is_not_lost() -> None:
    with StopSignals() as signals:
        os.kill(os.getpid(), signal.SIGTERM)
        assert signals.wait(LIMIT_S)
        assert not signals.wait(0.0)


def test_a_wait_ends_after_its_time() -> None:
    with StopSignals() as signals:
        assert not signals.wait(0.01)


def test_a_wait_ends_when_work_is_done() -> None:
    with StopSignals() as signals:
        outcome = signals.run(lambda: 3, "work")
        assert not signals.wait(LIMIT_S)
        assert outcome.done()
        assert outcome.result() == 3


def test_an_error_of_the_work_is_its_outcome() -> None:
    def fail() -> None:
        raise ValueError("no good")

    with StopSignals() as signals:
        outcome = signals.run(fail, "work")
        assert not signals.wait(LIMIT_S)
        with pytest.raises(ValueError, match="no good"):
            outcome.result()


def test_the_handlers_of_before_are_there_again_afterwards() -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with StopSignals():
        assert signal.getsignal(signal.SIGTERM) is not before[0]
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def test_a_server_hears_signals_before_it_imports_what_takes_long() -> None:
    program = (
        "import sys, headrace.cli, headrace.server.serve; assert not {'numpy', 'headrace._core'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
