# SPDX-License-Identifier: Apache-2.0
"""What tests of every kind share."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

MODELS = Path(__file__).with_name("models.py")


def pytest_configure() -> None:
    # What a shell starts in the background ignores Ctrl-C, and so would every server that these tests start.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Most users have buffered output, and what it costs a program whose reader has gone.
    os.environ.pop("PYTHONUNBUFFERED", None)


@pytest.fixture(scope="session")
def saved_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the SavedModels of models.py: NAME/1 each."""
    root = tmp_path_factory.mktemp("models")
    made = subprocess.run([sys.executable, MODELS, root], capture_output=True, text=True, timeout=300, check=False)
    assert made.returncode == 0, made.stderr
    return root
