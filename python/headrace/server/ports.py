# SPDX-License-Identifier: Apache-2.0
"""Whether a port can be listened on, and why not."""

from __future__ import annotations

import os
import socket

from headrace.errors import FailedPrecondition, PermissionDenied


def check_port(host: str, port: int) -> None:
    """Raises FailedPrecondition or PermissionDenied, in one clear line, if nobody can listen there now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do; a port that somebody listens on is refused all the same.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except PermissionError:
            raise PermissionDenied(f"port {port}: not for uid {os.getuid()}; choose another with --port") from None
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise FailedPrecondition(f"port {port}: {reason}; choose another with --port") from None
