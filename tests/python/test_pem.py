# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import re
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from headrace.errors import InvalidArgument
from headrace.pem import FILE_BYTES_MAX, Pem, check_certificates, check_pair, read_file
from tests.certificates import Authority, Issued


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("pem"), "ca")


@pytest.fixture(scope="module")
def issued(authority: Authority) -> Issued:
    return authority.issue()


@pytest.fixture
def key(issued: Issued) -> Pem:
    return Pem("KEY", issued.key.read_bytes())


@pytest.fixture
def certificate(issued: Issued) -> Pem:
    return Pem("CERTIFICATE", issued.certificate.read_bytes())


def locked(key: Pem, form: serialization.PrivateFormat) -> Pem:
    """The same private key with a password."""
    encryption = serialization.BestAvailableEncryption(b"secret")
    return Pem(
        key.name,
        serialization.load_pem_private_key(key.content, None).private_bytes(
            serialization.Encoding.PEM, form, encryption
        ),
    )


def broken(pem: Pem) -> Pem:
    """The same with its first line of base64 damaged."""
    lines = pem.content.splitlines(keepends=True)
    return Pem(pem.name, b"".join([lines[0], b"AAAA" + lines[1][4:], *lines[2:]]))


def test_a_certificate_and_its_key_are_a_pair(key: Pem, certificate: Pem, authority: Authority) -> None:
    check_pair(key, certificate)
    chain = certificate.content + authority.file.read_bytes()
    check_pair(key, Pem("CERTIFICATE", chain))


def test_comments_of_any_kind_may_stand_between(key: Pem, certificate: Pem) -> None:
    comment = "# Autorité de certification\r\n".encode("latin-1")
    check_pair(Pem("KEY", comment + key.content), Pem("CERTIFICATE", comment + certificate.content + comment))
    assert Pem("KEY", comment).text == "# Autorit de certification\r\n"


def test_one_file_may_have_both(key: Pem, certificate: Pem) -> None:
    both = key.content + certificate.content
    check_pair(Pem("BOTH", both), Pem("BOTH", both))


def test_a_key_of_another_certificate_is_said(authority: Authority, certificate: Pem) -> None:
    other = Pem("OTHER", authority.issue().key.read_bytes())
    with pytest.raises(InvalidArgument, match=r"^OTHER: the private key is not that of CERTIFICATE$"):
        check_pair(other, certificate)


@pytest.mark.parametrize("form", [serialization.PrivateFormat.PKCS8, serialization.PrivateFormat.TraditionalOpenSSL])
def test_a_key_with_a_password_is_said_and_nobody_is_asked_for_it(
    key: Pem, certificate: Pem, form: serialization.PrivateFormat
) -> None:
    with pytest.raises(InvalidArgument, match=r"^KEY: the private key has a password; `openssl pkey` writes it"):
        check_pair(locked(key, form), certificate)


@pytest.mark.parametrize("content", [b"", b"rubbish", b"\xff\0\n"])
def test_what_is_no_pem_is_said(key: Pem, certificate: Pem, content: bytes) -> None:
    with pytest.raises(InvalidArgument, match=r"^X: no private key in it; it must have -----BEGIN PRIVATE KEY-----$"):
        check_pair(Pem("X", content), certificate)
    with pytest.raises(InvalidArgument, match=r"^X: no certificate in it; it must have -----BEGIN CERTIFICATE-----$"):
        check_pair(key, Pem("X", content))


def test_a_key_in_place_of_a_certificate_is_said_and_the_other_way_round(key: Pem, certificate: Pem) -> None:
    with pytest.raises(InvalidArgument, match=r"^KEY: no certificate in it"):
        check_pair(key, key)
    with pytest.raises(InvalidArgument, match=r"^CERTIFICATE: no private key in it"):
        check_pair(certificate, certificate)


def test_damaged_pem_is_said(key: Pem, certificate: Pem, authority: Authority) -> None:
    with pytest.raises(InvalidArgument, match=r"^KEY: a private key that cannot be used: ."):
        check_pair(broken(key), certificate)
    with pytest.raises(InvalidArgument, match=r"^CERTIFICATE: a certificate that cannot be read: ."):
        check_pair(key, broken(certificate))
    second = Pem("CA", authority.file.read_bytes() + broken(certificate).content)
    with pytest.raises(InvalidArgument, match=r"^CA: a certificate that cannot be read: ."):
        check_certificates(second)


@pytest.mark.parametrize("size", [0, 10, 100, 200, -30, -5])
def test_a_half_written_file_is_said(key: Pem, certificate: Pem, size: int) -> None:
    with pytest.raises(InvalidArgument, match=r"^HALF: "):
        check_pair(Pem("HALF", key.content[:size]), certificate)
    with pytest.raises(InvalidArgument, match=r"^HALF: "):
        check_pair(key, Pem("HALF", certificate.content[:size]))


def test_checking_leaves_no_descriptor_and_shows_no_key(key: Pem, certificate: Pem) -> None:
    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    before = descriptors()
    for _ in range(10):
        check_pair(key, certificate)
    assert descriptors() == before
    assert "PRIVATE" not in repr(key)


def test_a_file_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"^key_file x: no such file or directory$"):
        read_file("key_file x", tmp_path / "none")
    with pytest.raises(InvalidArgument, match=r"^key_file x: is a directory$"):
        read_file("key_file x", tmp_path)
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.truncate(FILE_BYTES_MAX + 1)
    with pytest.raises(InvalidArgument, match=re.escape("key_file x: has more than 16 MiB; it must be PEM text")):
        read_file("key_file x", large)
