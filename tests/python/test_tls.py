# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc
import pytest

import headrace
from headrace import _core
from headrace.client import AsyncClient, Client, _Server
from headrace.config import GrpcOptions
from headrace.errors import InvalidArgument, Unavailable
from headrace.server.grpc_server import GrpcServer
from headrace.server.health import Health
from headrace.server.native import NativeServer
from headrace.server.server import Server
from headrace.tls import ClientTls, ServerKeys, ServerTls
from tests.certificates import Authority, Issued

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"), "ca")


@pytest.fixture(scope="module")
def issued(authority: Authority) -> Issued:
    return authority.issue()


def test_the_package_hands_them_out() -> None:
    assert headrace.ServerTls is ServerTls
    assert headrace.ClientTls is ClientTls


# --- servers ----------------------------------------------------------------------------------------------------------


def test_a_server_s_files_are_read(authority: Authority, issued: Issued) -> None:
    tls = ServerTls(key_file=issued.key, certificate_file=str(issued.certificate))
    assert tls.files == issued
    keys = tls.read()
    assert (keys.private_key, keys.certificate) == (issued.key.read_text(), issued.certificate.read_text())
    assert keys.client_ca == ""
    assert "PRIVATE" not in repr(keys)
    mutual = ServerTls(key_file=issued.key, certificate_file=issued.certificate, client_ca_file=authority.file)
    assert mutual.files == (*issued, authority.file)
    assert mutual.read().client_ca == authority.file.read_text()


def test_a_server_s_file_that_cannot_be_used_is_named(authority: Authority, issued: Issued, tmp_path: Path) -> None:
    empty, none = tmp_path / "empty", tmp_path / "none"
    empty.touch()
    right: dict[str, Any] = {
        "key_file": issued.key,
        "certificate_file": issued.certificate,
        "client_ca_file": authority.file,
    }
    for option in right:
        with pytest.raises(InvalidArgument, match=f"^{option} {none}: no such file or directory$"):
            ServerTls(**{**right, option: none}).read()
        with pytest.raises(InvalidArgument, match=f"^{option} {empty}: no "):
            ServerTls(**{**right, option: empty}).read()
    other = authority.issue()
    with pytest.raises(InvalidArgument) as raised:
        ServerTls(**{**right, "key_file": other.key}).read()
    assert str(raised.value) == (
        f"key_file {other.key}: the private key is not that of certificate_file {issued.certificate}"
    )


@pytest.mark.parametrize("transport", ["grpcio", "native"])
def test_a_server_whose_files_cannot_be_used_does_not_start(issued: Issued, tmp_path: Path, transport: str) -> None:
    tls = ServerTls(key_file=tmp_path / "none", certificate_file=issued.certificate)
    server = Server({"negate": lambda x: -x}, port=0, grpc_transport=transport, tls=tls)
    with pytest.raises(InvalidArgument, match=f"^key_file {tmp_path / 'none'}: no such file"):
        server.start()
    assert server.stop()
    (tmp_path / "none").write_bytes(issued.key.read_bytes())
    with server:
        assert server.grpc_address


def test_keys_that_only_the_transport_finds_wrong_are_named_and_it_does_not_start(
    authority: Authority, issued: Issued
) -> None:
    wrong = ServerKeys("FILES", "rubbish", issued.certificate.read_text(), authority.file.read_text())
    grpcio = GrpcServer(_core.Router(), {}, Health([]), GrpcOptions())
    with pytest.raises(InvalidArgument, match=r"^FILES: gRPC cannot use the key, the certificate or the CA$"):
        grpcio.start("127.0.0.1", 0, tls=wrong)
    native = NativeServer(_core.Router(), {}, Health([]), GrpcOptions())
    with pytest.raises(InvalidArgument, match=r"^FILES: private_key: "):
        native.start("127.0.0.1", 0, tls=wrong)


def test_what_is_no_tls_is_said() -> None:
    with pytest.raises(InvalidArgument, match=r"^tls is of type bool; it must be a ServerTls or an SslConfigFile$"):
        Server({"negate": lambda x: -x}, tls=True)  # type: ignore[arg-type]


# --- clients ----------------------------------------------------------------------------------------------------------


def test_a_client_s_files_are_read(authority: Authority, issued: Issued) -> None:
    keys = ClientTls(ca_file=authority.file, key_file=issued.key, certificate_file=issued.certificate).read()
    assert keys.ca == authority.file.read_bytes()
    assert (keys.private_key, keys.certificate) == (issued.key.read_bytes(), issued.certificate.read_bytes())
    assert "PRIVATE" not in repr(keys)
    nothing = ClientTls().read()
    assert (nothing.ca, nothing.private_key, nothing.certificate) == (None, None, None)


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_a_client_s_file_that_cannot_be_used_is_named(
    kind: Any, authority: Authority, issued: Issued, tmp_path: Path
) -> None:
    empty, none = tmp_path / "empty", tmp_path / "none"
    empty.touch()
    right: dict[str, Any] = {
        "ca_file": authority.file,
        "key_file": issued.key,
        "certificate_file": issued.certificate,
    }
    for option in right:
        with pytest.raises(InvalidArgument, match=f"^{option} {none}: no such file or directory$"):
            kind("127.0.0.1:1", tls=ClientTls(**{**right, option: none}))
        with pytest.raises(InvalidArgument, match=f"^{option} {empty}: no "):
            kind("127.0.0.1:1", tls=ClientTls(**{**right, option: empty}))


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_a_key_and_its_certificate_go_together(kind: Any, issued: Issued) -> None:
    with pytest.raises(InvalidArgument, match=r"^ClientTls has a key_file, but no certificate_file; they go together$"):
        kind("127.0.0.1:1", tls=ClientTls(key_file=issued.key))
    with pytest.raises(InvalidArgument, match=r"^ClientTls has a certificate_file, but no key_file; they go together$"):
        kind("127.0.0.1:1", tls=ClientTls(certificate_file=issued.certificate))


@pytest.mark.parametrize("kind", [Client, AsyncClient])
@pytest.mark.parametrize("tls", [True, False, "ca.pem", ServerTls(key_file="k", certificate_file="c")])
def test_a_client_takes_no_other_tls(kind: Any, tls: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"^tls is .*; it must be a ClientTls, or None for a connection without"):
        kind("127.0.0.1:1", tls=tls)


@pytest.mark.parametrize("name", ["", 3, b"host"])
def test_a_server_name_is_a_name(name: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"^server_name is .*; it must be a name"):
        ClientTls(server_name=name).read()


# What gRPC 1.60 and 1.85 say, and what a client makes of it.
HANDSHAKE_OF_1_60 = "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: Ssl handshake failed: "
HANDSHAKE = "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: Tls handshake failed (TSI_PROTOCOL_FAILURE): "
NAME = "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: "
OPENSSL = "SSL_ERROR_SSL: error:1000007d:SSL routines:OPENSSL_internal:"


@pytest.mark.parametrize(
    ("details", "said"),
    [
        (f"{HANDSHAKE_OF_1_60}{OPENSSL}CERTIFICATE_VERIFY_FAILED", "h:1: the server's certificate is not trusted; "),
        (
            f"{HANDSHAKE}{OPENSSL}CERTIFICATE_VERIFY_FAILED: certificate has expired: OK",
            "h:1: the server's certificate is not trusted (certificate has expired); ",
        ),
        (f"{NAME}Peer name h is not in peer certificate", "h:1: the server's certificate is not for the host of "),
        (
            f"{NAME}Custom verification check failed with error: UNAUTHENTICATED: Hostname Verification Check failed.",
            "h:1: the server's certificate is not for the host of ",
        ),
        (f"{HANDSHAKE_OF_1_60}{OPENSSL}WRONG_VERSION_NUMBER", "h:1: the server does not speak TLS; "),
        (f"{HANDSHAKE}{OPENSSL}WRONG_VERSION_NUMBER: Invalid certificate: OK", "h:1: the server does not speak TLS; "),
    ],
)
def test_what_grpc_says_of_a_server_becomes_what_to_do(details: str, said: str) -> None:
    error = _Server("h:1", 0, ClientTls()).error(grpc.StatusCode.UNAVAILABLE, details)
    assert type(error) is Unavailable
    assert error.message.startswith(said)


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (grpc.StatusCode.UNAVAILABLE, "the queue is full"),
        (grpc.StatusCode.UNAVAILABLE, "Socket closed"),
        (grpc.StatusCode.UNAVAILABLE, "failed to connect to all addresses; last error: UNKNOWN: Connection refused"),
        (grpc.StatusCode.INTERNAL, "CERTIFICATE_VERIFY_FAILED"),
    ],
)
def test_what_has_nothing_to_do_with_tls_is_told_as_it_is(code: grpc.StatusCode, text: str) -> None:
    for tls in (None, ClientTls()):
        error = _Server("h:1", 0, tls).error(code, text)
        assert (error.code, error.message) == (code.value[0], text)
