# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

import pytest

from headrace.errors import FailedPrecondition, InvalidArgument, PermissionDenied
from headrace.server.ports import check_port, check_socket_path, listen_address, socket_address

if TYPE_CHECKING:
    from pathlib import Path


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
    assert socket_address("/run/a b%1.sock") == "unix:/run/a%20b%251.sock"


# --- unix sockets -----------------------------------------------------------------------------------------------------


def said_of(path: Path, error: type[Exception]) -> str:
    with pytest.raises(error) as raised:
        check_socket_path(str(path), option="--grpc_socket_path")
    start, end = f"socket path '{path}': ", "; choose another with --grpc_socket_path"
    assert str(raised.value).startswith(start)
    assert str(raised.value).endswith(end)
    return str(raised.value).removeprefix(start).removesuffix(end)


def test_a_free_path_is_fine_and_so_is_what_a_dead_server_left(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    check_socket_path(str(path))
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
        dead.listen()
    check_socket_path(str(path))
    assert path.is_socket()


def test_a_path_where_a_server_listens_is_said(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as live:
        live.bind(str(path))
        live.listen()
        assert said_of(path, FailedPrecondition) == "a server listens there"


def test_a_path_that_can_be_no_socket_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert said_of(tmp_path / "none" / "socket", InvalidArgument) == f"'{tmp_path}/none' is no directory"
    long = tmp_path / ("x" * 100)
    assert said_of(long, InvalidArgument) == f"{len(str(long))} bytes; the path of a socket has at most 107"
    (tmp_path / "notes").write_text("")
    assert said_of(tmp_path / "notes", FailedPrecondition) == "a file that is no socket is there"
    assert said_of(tmp_path / "a\0b", InvalidArgument) == "it must be text without a NUL"
    monkeypatch.setattr("os.access", lambda *_: False)
    assert said_of(tmp_path / "socket", PermissionDenied).startswith("not for uid ")
