# SPDX-License-Identifier: Apache-2.0
"""Looks at the files are the tests' own here: nothing waits for the thread that makes them."""

from __future__ import annotations

import logging
import os
import shutil
import threading
import time
from typing import TYPE_CHECKING

import pytest

from headrace.errors import InvalidArgument
from headrace.server import certificate_watch
from headrace.server.certificate_watch import CertificateWatch
from headrace.server.ssl_config import SslConfigFile
from headrace.tls import ServerKeys, ServerTls
from tests.certificates import Authority, Issued, ssl_config

if TYPE_CHECKING:
    from pathlib import Path

LIMIT_S = 30.0


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("watch"), "ca")


@pytest.fixture
def files(authority: Authority, tmp_path: Path) -> Issued:
    """A server's files, which a test may change."""
    files = Issued(tmp_path / "tls.key", tmp_path / "tls.crt")
    authority.issue().copy_to(files)
    return files


class Watched:
    """A watch, and what it has handed out."""

    def __init__(self, files: ServerTls | SslConfigFile) -> None:
        self.watch = CertificateWatch(files)
        self.renewed: list[ServerKeys] = []

    def look(self, times: int = 1) -> list[ServerKeys]:
        for _ in range(times):
            self.watch.look(self.renewed.append)
        return self.renewed


def tls(files: Issued) -> ServerTls:
    return ServerTls(key_file=files.key, certificate_file=files.certificate)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.levelno == logging.WARNING]


def test_files_that_stay_as_they_are_are_not_read_again(files: Issued, caplog: pytest.LogCaptureFixture) -> None:
    watched = Watched(tls(files))
    assert watched.watch.keys == tls(files).read()
    assert watched.look(10) == []
    assert caplog.text == ""


def test_files_that_have_changed_are_read_once(
    files: Issued, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    watched = Watched(tls(files))
    authority.issue().copy_to(files)
    assert watched.look(5) == [tls(files).read()]
    assert caplog.text.count("certificate re-read: ") == 1
    assert f"{files.key}, {files.certificate}" in caplog.text


def test_a_key_and_its_certificate_may_be_written_one_look_after_the_other(
    files: Issued, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    watched = Watched(tls(files))
    issued = authority.issue()
    shutil.copy(issued.key, files.key)
    assert watched.look() == []
    shutil.copy(issued.certificate, files.certificate)
    assert watched.look() == []
    assert watched.look() == [tls(files).read()]
    assert warnings(caplog) == []


def test_files_that_cannot_be_used_change_nothing_and_are_said_once(
    files: Issued, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    watched = Watched(tls(files))
    issued = authority.issue()
    shutil.copy(issued.key, files.key)
    assert watched.look(5) == []
    stays = f"certificate not re-read, the old one stays: key_file {files.key}: "
    assert warnings(caplog) == [f"{stays}the private key is not that of certificate_file {files.certificate}"]
    files.key.unlink()
    assert watched.look(5) == []
    assert warnings(caplog)[1:] == [f"{stays}no such file or directory"]
    issued.copy_to(files)
    assert watched.look(3) == [tls(files).read()]
    files.certificate.write_text("half")
    assert watched.look(3) == watched.renewed[:1]
    assert len(warnings(caplog)) == 3


def test_files_that_become_what_they_were_are_nothing_new(files: Issued, caplog: pytest.LogCaptureFixture) -> None:
    watched = Watched(tls(files))
    old = Issued(files.key.with_name("old.key"), files.certificate.with_name("old.crt"))
    for now, before in zip(files, old, strict=True):
        now.rename(before)
    assert watched.look(3) == []
    for now, before in zip(files, old, strict=True):
        before.rename(now)
    assert watched.look(3) == []
    for file in files:
        os.utime(file)
    assert watched.look(3) == []
    assert len(warnings(caplog)) == 1
    assert "certificate re-read" not in caplog.text
    files.key.unlink()
    assert watched.look(3) == []
    assert len(warnings(caplog)) == 2


def test_a_link_that_points_elsewhere_is_a_change(authority: Authority, tmp_path: Path) -> None:
    # As Kubernetes mounts a Secret: tls.crt -> ..data/tls.crt, and ..data -> a directory of the version.
    for version in ("..1", "..2"):
        (tmp_path / version).mkdir()
        authority.issue().copy_to(Issued(tmp_path / version / "tls.key", tmp_path / version / "tls.crt"))
    (tmp_path / "..data").symlink_to("..1")
    files = Issued(tmp_path / "tls.key", tmp_path / "tls.crt")
    for file in files:
        file.symlink_to(f"..data/{file.name}")
    watched = Watched(tls(files))
    assert watched.look(3) == []
    (tmp_path / "..new").symlink_to("..2")
    (tmp_path / "..new").replace(tmp_path / "..data")
    assert [keys.private_key for keys in watched.look(3)] == [(tmp_path / "..2" / "tls.key").read_text()]


def test_a_new_ca_of_the_clients_is_a_change(files: Issued, authority: Authority, tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    shutil.copy(authority.file, ca)
    watched = Watched(ServerTls(key_file=files.key, certificate_file=files.certificate, client_ca_file=ca))
    other = Authority(tmp_path, "other")
    shutil.copy(other.file, ca)
    assert [keys.client_ca for keys in watched.look(3)] == [other.file.read_text()]


def test_whether_clients_are_verified_does_not_change(
    files: Issued, authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = tmp_path / "ssl.cfg"
    config.write_text(ssl_config(files, ca=authority.file, verify=True))
    watched = Watched(SslConfigFile(config))
    config.write_text(ssl_config(files, ca=authority.file, verify=False))
    assert watched.look(5) == []
    assert warnings(caplog) == [
        "certificate not re-read, the old one stays: client_verify has changed, which takes a new start of the server"
    ]


def test_what_the_transport_refuses_is_said_and_tried_again(
    files: Issued, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    watch = CertificateWatch(tls(files))
    old = watch.keys
    authority.issue().copy_to(files)

    def refuse(_keys: ServerKeys) -> None:
        raise InvalidArgument("certificate: ee key too small")

    for _ in range(4):
        watch.look(refuse)
    assert watch.keys == old
    assert warnings(caplog) == ["certificate not re-read, the old one stays: certificate: ee key too small"]
    renewed: list[ServerKeys] = []
    watch.look(renewed.append)
    assert renewed == [watch.keys] == [tls(files).read()]


def test_its_thread_looks_until_it_is_stopped(
    files: Issued, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificate_watch, "LOOK_INTERVAL_S", 0.01)
    watch = CertificateWatch(tls(files))
    renewed = threading.Event()
    watch.start(lambda _keys: renewed.set())
    authority.issue().copy_to(files)
    assert renewed.wait(LIMIT_S)
    watch.stop()
    assert "headrace-certificates" not in [thread.name for thread in threading.enumerate()]


def test_stop_does_not_wait_for_the_next_look(files: Issued, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificate_watch, "LOOK_INTERVAL_S", LIMIT_S)
    watch = CertificateWatch(tls(files))
    watch.start(lambda _keys: None)
    begin = time.monotonic()
    watch.stop()
    assert "headrace-certificates" not in [thread.name for thread in threading.enumerate()]
    assert time.monotonic() - begin < certificate_watch.LEAVE_S
    CertificateWatch(tls(files)).stop()  # one that was never started
