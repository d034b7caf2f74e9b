# SPDX-License-Identifier: Apache-2.0
"""`python -m headrace` is the `headrace` command."""

from __future__ import annotations

import sys

from headrace.cli import main

if __name__ == "__main__":
    sys.exit(main())
