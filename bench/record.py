# SPDX-License-Identifier: Apache-2.0
"""What a benchmark said, kept with where it was said, and the table in bench/README.md that is written from it."""

from __future__ import annotations

import json
import os
import re
import subprocess
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results"
README = ROOT / "bench" / "README.md"


def where() -> dict[str, Any]:
    """The commit, the machine and the time now."""
    return {
        "commit": commit(),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "cpu": cpu(),
        "cores": len(os.sched_getaffinity(0)),
    }


def keep(result: dict[str, Any], kind: str = "") -> Path:
    """Writes a result under the name that says its kind, commit, CPU and date."""
    cpu_name = re.sub(r"[^A-Za-z0-9]+", "-", result["cpu"]).strip("-")
    day = re.sub(r"[^0-9T]", "", result["date"].partition("+")[0])
    path = RESULTS / ".".join(filter(None, [kind, result["commit"], cpu_name, day, "json"]))
    RESULTS.mkdir(exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")
    return path


def newest(kind: str = "") -> Path:
    """The last result of this kind that was kept."""
    parts = 5 if kind else 4
    kept = [path for path in RESULTS.glob(f"{kind or '*'}.*.json") if len(path.name.split(".")) == parts]
    return max(kept, key=lambda path: str(json.loads(path.read_text())["date"]))


def write_table(text: str, program: str) -> None:
    """Puts `text` into bench/README.md, between the marks of the program that has written it."""
    begin, end = f"<!-- table: written by {program} -->", "<!-- end of table -->"
    before, _, rest = README.read_text().partition(begin)
    _, _, after = rest.partition(end)
    README.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}")


def commit() -> str:
    """The short hash, with "-modified" where the tree differs from it; "unknown" outside a repository."""
    found = subprocess.run(
        ["git", "describe", "--always", "--exclude=*", "--dirty=-modified"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return found.stdout.strip() or "unknown"


def cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return os.uname().machine
