# SPDX-License-Identifier: Apache-2.0
"""Plain-text tables and bar charts for a terminal, or for a file where there is none."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from typing import TextIO

EIGHTHS = " ▏▎▍▌▋▊▉█"


def styled(text: str, style: str, out: TextIO) -> str:
    """`text` in an ANSI style such as "1" (bold) or "32" (green), where `out` is a terminal and NO_COLOR is not set."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not out.isatty():
        return text
    return f"\x1b[{style}m{text}\x1b[0m"


def columns(header: Sequence[str], lines: Sequence[tuple[str, Sequence[str]]]) -> str:
    """A table of labelled lines: labels on the left, values right-aligned below their header."""
    label_width = max(len(label) for label, _ in lines)
    widths = [max(len(head), *(len(values[i]) for _, values in lines)) for i, head in enumerate(header)]

    def line(label: str, values: Sequence[str]) -> str:
        cells = (value.rjust(width) for value, width in zip(values, widths, strict=True))
        return "   ".join([label.ljust(label_width), *cells]).rstrip()

    return "\n".join([line("", header), *(line(label, values) for label, values in lines)])


def size_classes(counts: Mapping[int, int]) -> dict[str, int]:
    """Counts by batch size, put together by powers of two from 1 to the largest size: "1", "2-3", "4-7" ..."""
    classes: dict[str, int] = {}
    low = 1
    while low <= max(counts, default=0):
        high = 2 * low - 1
        high_seen = min(high, max(counts))
        label = str(low) if high_seen == low else f"{low}-{high_seen}"
        classes[label] = sum(count for size, count in counts.items() if low <= size <= high)
        low *= 2
    return classes


def bar_chart(bars: Mapping[str, int], out: TextIO) -> str:
    """One horizontal bar for each entry, scaled to the terminal's width; the number stands behind it."""
    label_width = max(map(len, bars), default=0)
    number_width = max((len(f"{n:,}") for n in bars.values()), default=0)
    terminal_width = shutil.get_terminal_size((80, 24)).columns
    bar_width = max(8, min(60, terminal_width - label_width - number_width - 4))
    largest = max(bars.values(), default=0)
    lines = []
    for label, number in bars.items():
        bar = styled(bar_of(number / largest if largest else 0.0, bar_width, out), "36", out)
        lines.append(f"{label.rjust(label_width)}  {bar} {number:,}")
    return "\n".join(lines)


def bar_of(share: float, width: int, out: TextIO) -> str:
    """A bar of `share` of the width, in eighths of a block where `out` can show them; never empty for a share above 0."""
    eighths = round(share * width * 8)
    if share > 0:
        eighths = max(eighths, 1)
    try:
        EIGHTHS.encode(out.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return "#" * -(-eighths // 8)
    return EIGHTHS[8] * (eighths // 8) + EIGHTHS[eighths % 8].strip()
