# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import socket
from typing import Any

import pytest

from headrace.errors import FailedPrecondition, InvalidArgument, PermissionDenied
from headrace.server.ports import check_port, listen_address


def test_a_free_port_is_fine() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    check_port("127.0.0.1", port)
    check_port("127.0.0.1", 0)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0"])
def test_a_taken_port_is_said_with_what_chooses_another(host: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        with pytest.raises(FailedPrecondition) as raised:
            check_port(host, port, option="--port")
    assert str(raised.value) == f"port {port}: address already in use; choose another with --port"


@pytest.mark.parametrize("host", ["203.0.113.1", "no such host", "x" * 300, "é" * 300])
def test_a_host_that_is_not_this_machine_is_said(host: str) -> None:
    with pytest.raises(InvalidArgument) as raised:
        check_port(host, 0)
    assert str(raised.value) == f"host {host!r}: not an address of this machine"


def test_a_host_with_one_usable_address_is_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(*_: Any, **__: Any) -> list[Any]:
        return [(socket.AF_INET, 0, 0, "", (host, 0)) for host in ("203.0.113.1", "127.0.0.1")]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    check_port("some host", 0)


def test_a_port_that_needs_a_right_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_self: socket.socket, _address: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(socket.socket, "bind", refuse)
    with pytest.raises(PermissionDenied, match="port 80: not for uid"):
        check_port("127.0.0.1", 80)


def test_addresses_are_written_as_grpc_reads_them() -> None:
    assert listen_address("127.0.0.1", 8500) == "127.0.0.1:8500"
    assert listen_address("::1", 8500) == "[::1]:8500"
