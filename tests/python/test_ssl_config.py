# SPDX-License-Identifier: Apache-2.0
"""SslConfigFile takes the files that TensorFlow Serving's users have."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

import headrace
from headrace import proto
from headrace.errors import InvalidArgument
from headrace.server.ssl_config import SslConfigFile
from tests.certificates import Authority, Issued, ssl_config

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ssl"), "ca")


@pytest.fixture(scope="module")
def issued(authority: Authority) -> Issued:
    return authority.issue()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "ssl.cfg"


def quoted_lines(path: Path) -> str:
    """One string for each line: text format joins them."""
    return "\n".join(f'  "{line}\\n"' for line in path.read_text().splitlines())


def refusal(file: Path) -> str:
    """What is said of a file, after its name."""
    with pytest.raises(InvalidArgument) as raised:
        SslConfigFile(file).read()
    name = f"ssl_config_file {file}: "
    assert str(raised.value).startswith(name)
    assert "\n" not in str(raised.value)
    return str(raised.value).removeprefix(name)


def test_the_package_hands_it_out() -> None:
    assert headrace.SslConfigFile is SslConfigFile


def test_the_message_has_tensorflow_serving_s_names_numbers_and_types() -> None:
    fields = proto.message_class("tensorflow.serving.SSLConfig").DESCRIPTOR.fields
    assert [(field.name, field.number, field.type) for field in fields] == [
        ("server_key", 1, 9),
        ("server_cert", 2, 9),
        ("custom_ca", 3, 9),
        ("client_verify", 4, 8),
    ]


def test_pem_on_one_line_is_read(file: Path, issued: Issued) -> None:
    file.write_text(ssl_config(issued))
    tls = SslConfigFile(str(file))
    assert tls.files == (file,)
    keys = tls.read()
    assert (keys.private_key, keys.certificate) == (issued.key.read_text(), issued.certificate.read_text())
    assert keys.client_ca == ""


def test_pem_in_one_string_for_each_line_is_read(file: Path, issued: Issued) -> None:
    file.write_text(f"# a comment\nserver_key:\n{quoted_lines(issued.key)}\nserver_cert:\n{quoted_lines(issued[1])}\n")
    keys = SslConfigFile(file).read()
    assert (keys.private_key, keys.certificate) == (issued.key.read_text(), issued.certificate.read_text())


def test_the_clients_ca_is_for_servers_that_verify_them(file: Path, issued: Issued, authority: Authority) -> None:
    file.write_text(ssl_config(issued, ca=authority.file, verify=True))
    assert SslConfigFile(file).read().client_ca == authority.file.read_text()
    for verify in (False, None):
        file.write_text(ssl_config(issued, ca=authority.file, verify=verify))
        assert SslConfigFile(file).read().client_ca == ""
    file.write_text(ssl_config(issued, verify=True))
    assert refusal(file) == "client_verify is true, but custom_ca is empty; it must be the CA of the clients"


@pytest.mark.parametrize("field", ["server_key", "server_cert"])
def test_an_empty_field_is_said(file: Path, issued: Issued, field: str) -> None:
    lines = ssl_config(issued).splitlines()
    for empty in ([], [f'{field}: ""']):
        file.write_text("\n".join([*(line for line in lines if not line.startswith(field)), *empty]))
        assert refusal(file) == f"{field} is empty; it must be PEM text"


def test_a_field_that_cannot_be_used_is_said(file: Path, issued: Issued, authority: Authority) -> None:
    file.write_text(ssl_config(Issued(issued.certificate, issued.certificate)))
    assert refusal(file) == "server_key: no private key in it; it must have -----BEGIN PRIVATE KEY-----"
    file.write_text(ssl_config(Issued(issued.key, issued.key)))
    assert refusal(file) == "server_cert: no certificate in it; it must have -----BEGIN CERTIFICATE-----"
    file.write_text(ssl_config(issued, ca=issued.key, verify=True))
    assert refusal(file) == "custom_ca: no certificate in it; it must have -----BEGIN CERTIFICATE-----"
    file.write_text(ssl_config(Issued(authority.issue().key, issued.certificate)))
    assert refusal(file) == f"server_key: the private key is not that of ssl_config_file {file}: server_cert"


def test_a_file_that_is_not_there_is_said(file: Path) -> None:
    assert refusal(file) == "no such file or directory"


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('server_key: "a"\nserver_crt: "b"', "line 2, column 1"),
        ("server_key: 5", "line 1, column 13"),
        ("-----BEGIN CERTIFICATE-----", "line 1, column 1"),
        ('{"ssl_enabled": true}', "line 1, column 1"),
        ("client_verify: maybe", "line 1, column 16"),
        ("\xff\0", "line 1, column 1"),
    ],
)
def test_what_is_no_text_proto_is_said_with_its_place(file: Path, text: str, place: str) -> None:
    file.write_text(text, encoding="latin-1")
    assert re.match(rf"{place}: not an SSLConfig as text; its fields are server_key, ", refusal(file))


def test_pem_with_bare_line_ends_is_said_and_not_shown(file: Path, issued: Issued) -> None:
    file.write_text(f'server_cert: ""\nserver_key: "{issued.key.read_text()}"\n')
    said = refusal(file)
    assert said.startswith("line 2, column 13: not an SSLConfig as text; ")
    assert said.endswith("and the end of a line of PEM is \\n inside the quotes")
    assert not any(line in said for line in issued.key.read_text().splitlines())
