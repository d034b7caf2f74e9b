# SPDX-License-Identifier: Apache-2.0
"""One contestant in a process of its own: readies itself, then measures what embed.py asks for, line by line of JSON.

    python -m bench.contestant MODULE WORK MODEL

MODULE is the contestant's; WORK is "model", the SavedModel in MODEL, or "function", a NumPy function that does the same.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol, cast

from bench.callers import Entrance, measure

# Opens a contestant with one of its settings, for one measurement.
Open = Callable[..., AbstractContextManager[Entrance]]


class Contestant(Protocol):
    """What a contestant's module has."""

    # The settings to choose the best of, for each kind of callers that it serves.
    SETTINGS: Mapping[str, Sequence[Mapping[str, Any]]]

    @staticmethod
    def prepare(work: str, model: Path) -> Open: ...


def main() -> int:
    module, work, model = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # nothing else goes where the answers go
    open_one = cast(Contestant, importlib.import_module(module)).prepare(work, Path(model))
    answers.write(json.dumps({"rss_bytes": rss_bytes()}) + "\n")
    for line in sys.stdin:
        asked = json.loads(line)
        with open_one(**asked["setting"]) as entrance:
            figures = measure(entrance, asked["callers"], asked["count"], asked["seconds"])
            figures |= {**entrance.counters(), "rss_bytes": rss_bytes()}
        answers.write(json.dumps(figures) + "\n")
    return 0


def rss_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    sys.exit(main())
