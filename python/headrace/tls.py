# SPDX-License-Identifier: Apache-2.0
"""ServerTls and ClientTls: which files have the keys and certificates of encrypted connections."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from headrace.errors import InvalidArgument
from headrace.pem import Pem, check_certificates, check_pair, read_file

File: TypeAlias = str | os.PathLike[str]


@dataclass(frozen=True)
class ServerKeys:
    """What a server needs for TLS, as PEM text; with a `client_ca` clients must show a certificate that it signed.

    `source` names the files.
    """

    source: str
    private_key: str = field(repr=False)
    certificate: str
    client_ca: str

    @classmethod
    def checked(cls, files: Sequence[Path], key: Pem, certificate: Pem, client_ca: Pem | None) -> ServerKeys:
        """Raises InvalidArgument for what cannot be used, with the name of where it is from."""
        check_pair(key, certificate)
        if client_ca is not None:
            check_certificates(client_ca)
        source = ", ".join(map(str, files))
        return cls(source, key.text, certificate.text, "" if client_ca is None else client_ca.text)


@dataclass(frozen=True, kw_only=True)
class ServerTls:
    """The files of a server that takes encrypted connections only; all of them PEM.

    `certificate_file` has the server's certificate, then those that lead from it to its CA, and `key_file` its private
    key, without a password.  With a `client_ca_file` clients must show a certificate that a CA in it has signed (mutual
    TLS).

    A server reads the files when it starts, and again within 2 seconds of a change, as when a certificate is renewed:
    new connections get the new one, old ones go on, and files that cannot be used change nothing.
    """

    key_file: File
    certificate_file: File
    client_ca_file: File | None = None

    @property
    def files(self) -> tuple[Path, ...]:
        """All of them."""
        files = (self.key_file, self.certificate_file, self.client_ca_file)
        return tuple(Path(file) for file in files if file is not None)

    def read(self) -> ServerKeys:
        """What is in the files now.  Raises InvalidArgument where they cannot be read or used."""
        client_ca = None if self.client_ca_file is None else _read("client_ca_file", self.client_ca_file)
        key, certificate = _read("key_file", self.key_file), _read("certificate_file", self.certificate_file)
        return ServerKeys.checked(self.files, key, certificate, client_ca)


@dataclass(frozen=True)
class ClientKeys:
    """What a client needs for TLS, as PEM; None where it goes without."""

    ca: bytes | None
    private_key: bytes | None = field(repr=False)
    certificate: bytes | None


@dataclass(frozen=True, kw_only=True)
class ClientTls:
    """How a client knows its server, and the server the client; the files are PEM and are read when a client is made.

    `ca_file` has the CAs one of which must have signed the server's certificate; without it they are gRPC's own, those
    that browsers trust, or what GRPC_DEFAULT_SSL_ROOTS_FILE_PATH names.  `key_file` and `certificate_file`, which go
    together, are what the client shows to a server that asks for a certificate.  `server_name` is the name that the
    server's certificate must have, where that is not the host of the address.
    """

    ca_file: File | None = None
    key_file: File | None = None
    certificate_file: File | None = None
    server_name: str | None = None

    def read(self) -> ClientKeys:
        """What is in the files now.  Raises InvalidArgument where they cannot be read or used."""
        if self.server_name is not None and not (isinstance(self.server_name, str) and self.server_name):
            raise InvalidArgument(f"server_name is {self.server_name!r}; it must be a name, or None for the address's")
        if (self.key_file is None) != (self.certificate_file is None):
            given, missing = ("key_file", "certificate_file")[:: 1 if self.certificate_file is None else -1]
            raise InvalidArgument(f"ClientTls has a {given}, but no {missing}; they go together")
        ca = key = certificate = None
        if self.ca_file is not None:
            ca = _read("ca_file", self.ca_file)
            check_certificates(ca)
        if self.key_file is not None and self.certificate_file is not None:
            key, certificate = _read("key_file", self.key_file), _read("certificate_file", self.certificate_file)
            check_pair(key, certificate)
        return ClientKeys(*(None if pem is None else pem.content for pem in (ca, key, certificate)))


def _read(option: str, file: File) -> Pem:
    name = f"{option} {os.fspath(file)}"
    return Pem(name, read_file(name, file))
