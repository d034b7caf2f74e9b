# SPDX-License-Identifier: Apache-2.0
"""CAs, and the certificates that they sign, for the tests of TLS."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import trustme


class Issued(NamedTuple):
    """The files of a certificate and its private key."""

    key: Path
    certificate: Path

    def copy_to(self, other: Issued) -> None:
        """Overwrites other files with these, one after the other."""
        other.key.write_bytes(self.key.read_bytes())
        other.certificate.write_bytes(self.certificate.read_bytes())


class Authority:
    """A CA whose certificate is in `file`, beside what it issues."""

    def __init__(self, directory: Path, name: str) -> None:
        self._ca = trustme.CA(organization_name=name)
        self._directory = directory / name
        self._directory.mkdir()
        self._issued = 0
        self.file = self._directory / "ca.pem"
        self._ca.cert_pem.write_to_path(self.file)

    def issue(self, *names: str) -> Issued:
        """A new certificate for these hosts, by default the one that the tests' servers listen on."""
        self._issued += 1
        made = self._ca.issue_cert(*(names or ("127.0.0.1",)))
        issued = Issued(self._directory / f"{self._issued}.key", self._directory / f"{self._issued}.pem")
        made.private_key_pem.write_to_path(issued.key)
        issued.certificate.write_bytes(b"".join(pem.bytes() for pem in made.cert_chain_pems))
        return issued


def ssl_config(issued: Issued, *, ca: Path | None = None, verify: bool | None = None) -> str:
    """TensorFlow Serving's SSLConfig as its users write it, each PEM on one line of text."""
    lines = [
        f"server_key:'{_one_line(issued.key)}'",
        f"server_cert: {json.dumps(issued.certificate.read_text())}",
        f'custom_ca: "{"" if ca is None else _one_line(ca)}"',
    ]
    if verify is not None:
        lines.append(f"client_verify: {str(verify).lower()}")
    return "\n".join(lines)


def _one_line(file: Path) -> str:
    return file.read_text().replace("\n", "\\n")
