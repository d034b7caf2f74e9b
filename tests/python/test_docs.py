# SPDX-License-Identifier: Apache-2.0
"""The README's programs run, and they and the examples are what mypy --strict wants."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.model import load
from headrace.server.server import Server

ROOT = Path(__file__).parents[2]
LIMIT_S = 60.0

README = (ROOT / "README.md").read_text()
# The line of the README where it begins -> the program.
SNIPPETS = {
    README.count("\n", 0, found.start(1)) + 1: found[1]
    for found in re.finditer(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
}
# What a snippet prints, and those who run it may expect.
PRINTED = {
    "batcher.predict(": r"\[\d\] \[\[[\d.e -]+\s+[\d.e -]+\]\]\n",
    "embed.predict_async(": r"100\n\(1, 16\)\n",
    "headrace.Server(": r"\[\[[\d.e -]+\s+[\d.e -]+\]\]\n\[\[2\. 2\. 2\.\]\]\n",
    "localhost:8500": r"(?s)(outputs \{.*model_spec \{.*|model_spec \{.*outputs \{.*)\n",
}


def printed_by(snippet: str) -> str:
    [expected] = [text for mark, text in PRINTED.items() if mark in snippet]
    return expected


@pytest.fixture
def directory(saved_models: Path, tmp_path: Path) -> Path:
    """Where the paths of the README exist."""
    (tmp_path / "models").symlink_to(saved_models)
    return tmp_path


def test_the_readme_has_a_snippet_for_each_expectation() -> None:
    assert len(SNIPPETS) == len(PRINTED)
    assert len({printed_by(snippet) for snippet in SNIPPETS.values()}) == len(PRINTED)


@pytest.mark.parametrize("line", SNIPPETS)
def test_a_snippet_of_the_readme_runs(directory: Path, line: int) -> None:
    snippet = SNIPPETS[line]
    expected = printed_by(snippet)
    with contextlib.ExitStack() as stack:
        if "localhost:8500" in snippet:  # the server that the text before it has started, on whatever port is free
            server = stack.enter_context(Server({"digits": load(directory / "models" / "digits")}, port=0))
            snippet = snippet.replace("localhost:8500", server.grpc_address)
        ended = subprocess.run(
            [sys.executable, "-c", snippet],
            cwd=directory,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    assert ended.returncode == 0, ended.stderr
    assert re.fullmatch(expected, ended.stdout), ended.stdout


def test_snippets_and_examples_are_strictly_typed(tmp_path: Path) -> None:
    for line, snippet in SNIPPETS.items():
        (tmp_path / f"readme_{line}.py").write_text(snippet)
    programs = map(str, [*sorted(tmp_path.glob("*.py")), *sorted((ROOT / "examples").glob("*.py"))])
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), *programs],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=5 * LIMIT_S,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
