# SPDX-License-Identifier: Apache-2.0
"""Whether a port or a unix socket's path can be listened on, and why not."""

from __future__ import annotations

import errno
import os
import socket
import stat
from pathlib import Path
from typing import Any
from urllib.parse import quote

from headrace.errors import FailedPrecondition, InvalidArgument, PermissionDenied

# The longest path that a unix socket can have, in bytes.
SOCKET_PATH_BYTES_MAX = 107

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


def check_socket_path(path: str, *, option: str = "grpc_socket_path=") -> None:
    """Raises an error in one clear line if no unix socket can be made there now; `option` is what chooses the path.

    FailedPrecondition where a server listens or another file is, PermissionDenied for a directory that needs a right,
    InvalidArgument for a path that is too long or in no directory.  What a dead server has left there is no error.
    """
    size = len(os.fsencode(path))
    parent = Path(path).parent
    if size > SOCKET_PATH_BYTES_MAX:
        error: type[FailedPrecondition | InvalidArgument | PermissionDenied] = InvalidArgument
        reason = f"{size} bytes; the path of a socket has at most {SOCKET_PATH_BYTES_MAX}"
    elif not path or "\0" in path:
        error, reason = InvalidArgument, "it must be text without a NUL"
    elif not parent.is_dir():
        error, reason = InvalidArgument, f"'{parent}' is no directory"
    elif not os.access(parent, os.W_OK | os.X_OK):
        error, reason = PermissionDenied, f"not for uid {os.getuid()}"
    else:
        error, reason = FailedPrecondition, _what_is_at(path)
    if reason:
        raise error(f"socket path '{path}': {reason}; choose another with {option}")


def _what_is_at(path: str) -> str:
    """Why nobody can listen there, or "" if nothing is there or only what a dead server has left."""
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            return "a file that is no socket is there"
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.setblocking(False)
            probe.connect(path)
    except (ConnectionRefusedError, FileNotFoundError):
        return ""
    except BlockingIOError:  # so many wait for it
        pass
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return "a server listens there"


def socket_address(path: str) -> str:
    """The address of a unix socket as gRPC reads it."""
    return f"unix:{quote(path)}"


def listen_address(host: str, port: int) -> str:
    """The address as gRPC writes it: "127.0.0.1:8500", "[::1]:8500"."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
