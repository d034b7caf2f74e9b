# SPDX-License-Identifier: Apache-2.0
"""Whether a port can be listened on, and why not."""

from __future__ import annotations

import errno
import os
import socket
from typing import Any

from headrace.errors import FailedPrecondition, InvalidArgument, PermissionDenied

# What is wrong with the host, not with the port.
NOT_OURS = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


def check_port(host: str, port: int, *, option: str = "port=") -> None:
    """Raises an error in one clear line if nobody can listen there now; `option` is what chooses the port.

    FailedPrecondition for a port that is taken, PermissionDenied for one that needs a right, InvalidArgument for a
    host that is no address of this machine.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError):
        raise InvalidArgument(f"host {host!r}: not an address of this machine") from None
    # "localhost" may be two addresses, and a machine without IPv6 has one of them.
    usable = [_check_address(family, address, port, option) for family, _, _, _, address in found]
    if not any(usable):
        raise InvalidArgument(f"host {host!r}: not an address of this machine")


def _check_address(family: int, address: Any, port: int, option: str) -> bool:
    """Whether this is an address of the machine; raises as check_port() does."""
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            # As servers do; a port that somebody listens on is refused all the same.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except PermissionError:
        raise PermissionDenied(f"port {port}: not for uid {os.getuid()}; choose another with {option}") from None
    except OSError as error:
        if error.errno in NOT_OURS:
            return False
        reason = (error.strerror or str(error)).lower()
        raise FailedPrecondition(f"port {port}: {reason}; choose another with {option}") from None
    return True


def listen_address(host: str, port: int) -> str:
    """The address as gRPC writes it: "127.0.0.1:8500", "[::1]:8500"."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
