# SPDX-License-Identifier: Apache-2.0
"""What the process of the tests has: for tests that leave nothing behind."""

from __future__ import annotations

import gc
import os
from pathlib import Path


def count_threads() -> int:
    """Those of Python and native ones."""
    gc.collect()
    return len(list(Path("/proc/self/task").iterdir()))


def count_files() -> int:
    """Open file descriptors."""
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
