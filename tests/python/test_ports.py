# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import socket
from typing import Any

import pytest

from headrace.errors import FailedPrecondition, PermissionDenied
from headrace.server.ports import check_port


def test_a_free_port_is_fine() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    check_port("127.0.0.1", port)
    check_port("127.0.0.1", 0)


def test_a_taken_port_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        with pytest.raises(
            FailedPrecondition, match=f"port {port}: address already in use; choose another with --port"
        ):
            check_port("127.0.0.1", port)


def test_a_port_that_needs_a_right_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_self: socket.socket, _address: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(socket.socket, "bind", refuse)
    with pytest.raises(PermissionDenied, match="port 80: not for uid"):
        check_port("127.0.0.1", 80)
