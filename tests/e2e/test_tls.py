# SPDX-License-Identifier: Apache-2.0
"""Encrypted connections between each transport and both clients, TensorFlow Serving's stubs, and standard tools."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import re
import shutil
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from headrace.client import AsyncClient, Client
from headrace.errors import Unavailable
from headrace.server.server import Server
from headrace.tls import ClientTls, ServerTls
from tests.certificates import Authority, Issued, ssl_config
from tests.e2e.served import LIMIT_S, Served

if TYPE_CHECKING:
    from numpy.typing import NDArray

Serve = Callable[..., Server]
Ask = Callable[..., float]

RE_READ = "certificate re-read"
NOT_RE_READ = "certificate not re-read"

# Far below LIMIT_S, which calls have for a timeout.
AT_ONCE_S = 10.0


def half(x: NDArray[np.float32]) -> Any:
    return x / 2


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"), "ca")


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """A CA that nobody trusts."""
    return Authority(tmp_path_factory.mktemp("tls"), "stranger")


@pytest.fixture
def files(authority: Authority, tmp_path: Path) -> Issued:
    """A server's files, which a test may change."""
    files = Issued(tmp_path / "tls.key", tmp_path / "tls.crt")
    authority.issue().copy_to(files)
    return files


@pytest.fixture
def serve(transport: str, files: Issued) -> Serve:
    """Makes servers of half() with those files."""

    def serve(client_ca_file: Path | None = None) -> Server:
        tls = ServerTls(key_file=files.key, certificate_file=files.certificate, client_ca_file=client_ca_file)
        return Server({"half": half}, port=0, grpc_transport=transport, tls=tls)

    return serve


def test_a_unix_socket_beside_it_stays_plain(transport: str, files: Issued, tmp_path: Path) -> None:
    tls = ServerTls(key_file=files.key, certificate_file=files.certificate)
    path = str(tmp_path / "socket")
    with Server({"half": half}, port=0, grpc_socket_path=path, grpc_transport=transport, tls=tls):
        assert ask_blocking(f"unix:{path}", None) == 1.5


def ask_blocking(address: str, tls: ClientTls | None, retries: int = 0) -> float:
    with Client(address, tls=tls, retries=retries) as client:
        return float(client.predict("half", {"x": [3.0]}, timeout=LIMIT_S)["output"][0])


def ask_async(address: str, tls: ClientTls | None, retries: int = 0) -> float:
    async def ask() -> float:
        async with AsyncClient(address, tls=tls, retries=retries) as client:
            return float((await client.predict("half", {"x": [3.0]}, timeout=LIMIT_S))["output"][0])

    return asyncio.run(ask())


@pytest.fixture(params=[ask_blocking, ask_async], ids=["Client", "AsyncClient"])
def ask(request: pytest.FixtureRequest) -> Ask:
    """What a new client of each kind gets for 3."""
    asking: Ask = request.param
    return asking


def refusal(ask: Ask, address: str, tls: ClientTls | None) -> str:
    """What the Unavailable says, well before the call's timeout."""
    begin = time.monotonic()
    with pytest.raises(Unavailable) as raised:
        ask(address, tls)
    assert time.monotonic() - begin < AT_ONCE_S
    return str(raised.value)


class Log(logging.Handler):
    """The log of the server in this process, to be waited for."""

    def __init__(self) -> None:
        super().__init__()
        self._changed = threading.Condition()
        self._lines: list[str] = []  # guarded by _changed

    def emit(self, record: logging.LogRecord) -> None:
        with self._changed:
            self._lines.append(record.getMessage())
            self._changed.notify_all()

    def wait_line(self, text: str, *, count: int = 1) -> str:
        """The line that is the `count`th with this text."""

        def found() -> list[str]:
            return [line for line in self._lines if text in line]

        with self._changed:
            assert self._changed.wait_for(lambda: len(found()) >= count, LIMIT_S), self._lines
            return found()[count - 1]


@pytest.fixture
def log() -> Iterator[Log]:
    handler = Log()
    logging.getLogger("headrace").addHandler(handler)
    yield handler
    logging.getLogger("headrace").removeHandler(handler)


def shown(address: str) -> str:
    """The certificate that the server shows to a new connection."""
    host, port = address.split(":")
    return ssl.get_server_certificate((host, int(port)), timeout=LIMIT_S)


def first_certificate(file: Path) -> str:
    end = "-----END CERTIFICATE-----\n"
    return file.read_text().partition(end)[0] + end


# --- servers that are trusted, and others -----------------------------------------------------------------------------


def test_a_client_that_trusts_the_server_s_ca_is_served(serve: Serve, ask: Ask, authority: Authority) -> None:
    with serve() as server:
        assert ask(server.grpc_address, ClientTls(ca_file=authority.file)) == 1.5
        assert ask(server.grpc_address, ClientTls(ca_file=str(authority.file)), retries=3) == 1.5


def test_without_a_ca_file_those_of_the_environment_are_trusted(serve: Serve, authority: Authority) -> None:
    program = (
        "import sys, headrace\n"
        "with headrace.Client(sys.argv[1], tls=headrace.ClientTls()) as client:\n"
        "    print(client.predict('half', {'x': [3.0]}, timeout=60)['output'])\n"
    )
    with serve() as server:
        ended = subprocess.run(
            [sys.executable, "-c", program, server.grpc_address],
            env={**os.environ, "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(authority.file)},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    assert (ended.stdout, ended.returncode) == ("[1.5]\n", 0), ended.stderr


def test_a_server_that_is_not_trusted_gets_no_request(serve: Serve, ask: Ask, stranger: Authority) -> None:
    with serve() as server:
        for tls in (ClientTls(ca_file=stranger.file), ClientTls()):
            said = refusal(ask, server.grpc_address, tls)
            assert re.fullmatch(
                rf"{server.grpc_address}: the server's certificate is not trusted( \([\w -]+\))?;"
                r" ClientTls\(ca_file=\.\.\.\) names the CAs that are",
                said,
            ), said


def test_the_certificate_must_be_for_the_server_s_name(
    serve: Serve, ask: Ask, authority: Authority, files: Issued
) -> None:
    authority.issue("models.example").copy_to(files)
    with serve() as server:
        address = server.grpc_address
        assert refusal(ask, address, ClientTls(ca_file=authority.file)) == (
            f"{address}: the server's certificate is not for the host of this address; ClientTls(server_name=...) is"
            " the name that it must have"
        )
        assert refusal(ask, address, ClientTls(ca_file=authority.file, server_name="other.example")) == (
            f"{address}: the server's certificate is not for 'other.example'; ClientTls(server_name=...) is the name"
            " that it must have"
        )
        assert ask(address, ClientTls(ca_file=authority.file, server_name="models.example")) == 1.5


# --- clients without TLS, and servers ---------------------------------------------------------------------------------


def test_a_client_without_tls_is_refused_at_once(serve: Serve, ask: Ask) -> None:
    with serve() as server:
        said = refusal(ask, server.grpc_address, None)
        assert said.startswith("failed to connect to all addresses; ")
        assert said.endswith("; a server that speaks TLS needs a client with tls=ClientTls(...)")


def test_a_client_with_tls_is_told_of_a_server_without(transport: str, ask: Ask, authority: Authority) -> None:
    with Server({"half": half}, port=0, grpc_transport=transport) as server:
        address = server.grpc_address
        said = refusal(ask, address, ClientTls(ca_file=authority.file))
    assert said == f"{address}: the server does not speak TLS; make the client without tls=ClientTls(...)"


# --- clients that show a certificate ----------------------------------------------------------------------------------


def test_a_client_with_a_certificate_of_the_clients_ca_is_served(serve: Serve, ask: Ask, authority: Authority) -> None:
    key, certificate = authority.issue("client")
    with serve(authority.file) as server:
        tls = ClientTls(ca_file=authority.file, key_file=key, certificate_file=certificate)
        assert ask(server.grpc_address, tls) == 1.5


def test_a_client_without_a_certificate_that_is_wanted_is_refused(
    serve: Serve, ask: Ask, authority: Authority, stranger: Authority
) -> None:
    key, certificate = stranger.issue("client")
    with serve(authority.file) as server:
        said = refusal(ask, server.grpc_address, ClientTls(ca_file=authority.file))
        assert said.endswith(
            "; a server that asks for a client's certificate needs ClientTls(key_file=..., certificate_file=...)"
        )
        tls = ClientTls(ca_file=authority.file, key_file=key, certificate_file=certificate)
        said = refusal(ask, server.grpc_address, tls)
        assert said.endswith(
            "; a server that asks for a client's certificate must trust the CA of ClientTls's certificate_file"
        )


def test_a_certificate_that_is_not_wanted_does_no_harm(
    serve: Serve, ask: Ask, authority: Authority, stranger: Authority
) -> None:
    key, certificate = stranger.issue("client")
    with serve() as server:
        tls = ClientTls(ca_file=authority.file, key_file=key, certificate_file=certificate)
        assert ask(server.grpc_address, tls) == 1.5


# --- files that change ------------------------------------------------------------------------------------------------


def test_a_renewed_certificate_is_for_new_connections_and_old_ones_go_on(
    serve: Serve, authority: Authority, files: Issued, log: Log
) -> None:
    trusting = ClientTls(ca_file=authority.file)
    with serve() as server, Client(server.grpc_address, tls=trusting) as old:
        gc.collect()  # gRPC must keep what it calls for every connection
        first = first_certificate(files.certificate)
        assert old.predict("half", {"x": [1.0]})["output"].tolist() == [0.5]
        assert shown(server.grpc_address) == first
        for count in (1, 2):
            authority.issue().copy_to(files)
            log.wait_line(RE_READ, count=count)
            assert shown(server.grpc_address) == first_certificate(files.certificate) != first
            assert ask_blocking(server.grpc_address, trusting) == 1.5
        assert old.predict("half", {"x": [5.0]})["output"].tolist() == [2.5]


def test_files_that_cannot_be_used_leave_the_old_certificate(
    serve: Serve, authority: Authority, files: Issued, log: Log
) -> None:
    with serve() as server:
        first = first_certificate(files.certificate)
        files.certificate.write_text(first[: len(first) // 2])
        assert f"certificate_file {files.certificate}: " in log.wait_line(NOT_RE_READ)
        assert shown(server.grpc_address) == first
        assert ask_blocking(server.grpc_address, ClientTls(ca_file=authority.file)) == 1.5
        authority.issue().copy_to(files)
        log.wait_line(RE_READ)
        assert shown(server.grpc_address) == first_certificate(files.certificate) != first


def test_clients_of_a_new_ca_are_let_in_and_those_of_the_old_one_no_more(
    serve: Serve, authority: Authority, stranger: Authority, tmp_path: Path, log: Log
) -> None:
    def client(issued: Issued) -> ClientTls:
        return ClientTls(ca_file=authority.file, key_file=issued.key, certificate_file=issued.certificate)

    before, after = client(authority.issue("client")), client(stranger.issue("client"))
    ca = tmp_path / "ca.pem"
    shutil.copy(authority.file, ca)
    with serve(ca) as server:
        assert ask_blocking(server.grpc_address, before) == 1.5
        shutil.copy(stranger.file, ca)
        log.wait_line(RE_READ)
        assert ask_blocking(server.grpc_address, after) == 1.5
        assert "certificate" in refusal(ask_blocking, server.grpc_address, before)


def test_a_server_that_starts_again_reads_its_files_again(serve: Serve, authority: Authority, files: Issued) -> None:
    server = serve()
    for _ in range(2):
        authority.issue().copy_to(files)
        with server:
            assert shown(server.grpc_address) == first_certificate(files.certificate)
        assert "headrace-certificates" not in [thread.name for thread in threading.enumerate()]


# --- as a process, with TensorFlow Serving's file ---------------------------------------------------------------------


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "ssl.cfg"


@pytest.fixture
def serve_process(saved_models: Path, transport: str, config: Path) -> Callable[[], Served]:
    """Starts `headrace serve` with the file."""

    def start() -> Served:
        return Served(
            saved_models / "half_plus_two", "--port=0", f"--grpc_transport={transport}", f"--ssl_config_file={config}"
        )

    return start


def test_a_process_serves_predict_health_and_reflection_over_tls(
    serve_process: Callable[[], Served], config: Path, authority: Authority
) -> None:
    config.write_text(ssl_config(authority.issue()))
    credentials = grpc.ssl_channel_credentials(authority.file.read_bytes())
    with serve_process() as server, grpc.secure_channel(server.address, credentials) as channel:
        with Client(server.address, tls=ClientTls(ca_file=authority.file)) as client:
            x = np.arange(64, dtype=np.float32)
            assert (client.predict("half_plus_two", {"x": x})["y"] == x / 2 + 2).all()
        health: Any = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest(service="tensorflow.serving.PredictionService")
        assert health.Check(request, timeout=LIMIT_S).status == health_pb2.HealthCheckResponse.SERVING
        watched = health.Watch(request, timeout=LIMIT_S)
        assert next(iter(watched)).status == health_pb2.HealthCheckResponse.SERVING
        services = ProtoReflectionDescriptorDatabase(channel).get_services()
        assert "tensorflow.serving.PredictionService" in services
        assert server.stop() == 0
        assert next(iter(watched)).status == health_pb2.HealthCheckResponse.NOT_SERVING


def test_client_verify_says_whether_clients_show_a_certificate(
    serve_process: Callable[[], Served], config: Path, authority: Authority
) -> None:
    key, certificate = authority.issue("client")
    anybody = ClientTls(ca_file=authority.file)
    known = ClientTls(ca_file=authority.file, key_file=key, certificate_file=certificate)
    config.write_text(ssl_config(authority.issue(), ca=authority.file, verify=True))
    with serve_process() as server:
        assert "client's certificate" in refusal(ask_blocking, server.address, anybody)
        with Client(server.address, tls=known) as client:
            assert client.predict("half_plus_two", {"x": [2.0]})["y"].tolist() == [3.0]
    config.write_text(ssl_config(authority.issue(), ca=authority.file, verify=False))
    with serve_process() as server, Client(server.address, tls=anybody) as client:
        assert client.predict("half_plus_two", {"x": [2.0]})["y"].tolist() == [3.0]


def test_a_process_reads_a_renewed_file_and_says_so(
    serve_process: Callable[[], Served], config: Path, authority: Authority
) -> None:
    issued = authority.issue()
    config.write_text(ssl_config(issued))
    with serve_process() as server:
        assert shown(server.address) == first_certificate(issued.certificate)
        config.write_text("server_key: ")
        assert f"ssl_config_file {config}: line 1" in server.wait_line(NOT_RE_READ)
        renewed = authority.issue()
        config.write_text(ssl_config(renewed))
        assert str(config) in server.wait_line(RE_READ)
        assert shown(server.address) == first_certificate(renewed.certificate)
        with Client(server.address, tls=ClientTls(ca_file=authority.file)) as client:
            assert client.predict("half_plus_two", {"x": [2.0]})["y"].tolist() == [3.0]
        assert server.log().count(NOT_RE_READ) == 1


def test_a_file_that_cannot_be_used_is_said_before_the_model_is_loaded(
    saved_models: Path, transport: str, tmp_path: Path
) -> None:
    config = tmp_path / "ssl.cfg"
    server = Served(
        saved_models / "half_plus_two", "--port=0", f"--grpc_transport={transport}", f"--ssl_config_file={config}"
    )
    assert server.wait() == 1
    assert server.log() == f"headrace: ssl_config_file {config}: no such file or directory"
