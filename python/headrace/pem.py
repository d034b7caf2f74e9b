# SPDX-License-Identifier: Apache-2.0
"""Private keys and certificates in PEM: reading them, and whether TLS can use them."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from headrace.errors import InvalidArgument

# Bundles of all public CAs have a quarter of a megabyte.
FILE_BYTES_MAX = 16 << 20

PRIVATE_KEY = re.compile(rb"-----BEGIN ([A-Z]+ )?PRIVATE KEY-----")
LOCKED = re.compile(rb"-----BEGIN ENCRYPTED PRIVATE KEY-----|^Proc-Type: 4,ENCRYPTED", re.MULTILINE)
CERTIFICATE = re.compile(rb"-----BEGIN ([A-Z0-9]+ )?CERTIFICATE-----")

# How OpenSSL says that a private key is that of another certificate.
OTHERS = ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH")


@dataclass(frozen=True)
class Pem:
    """Keys or certificates, and for errors the name of where they are from."""

    name: str
    content: bytes = field(repr=False)

    @property
    def text(self) -> str:
        """The content; what is not ASCII is a comment, and left out."""
        return self.content.decode("ascii", "ignore")


def read_file(name: str, file: str | os.PathLike[str]) -> bytes:
    """The content of a file that an option names.  Raises InvalidArgument, which begins with `name`."""
    try:
        with Path(file).open("rb") as opened:
            content = opened.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise InvalidArgument(f"{name}: {(error.strerror or str(error)).lower()}") from None
    if len(content) > FILE_BYTES_MAX:
        raise InvalidArgument(f"{name}: has more than {FILE_BYTES_MAX >> 20} MiB; it must be PEM text")
    return content


def check_certificates(certificates: Pem) -> None:
    """Raises InvalidArgument unless there is a certificate, and all of them can be read."""
    if not CERTIFICATE.search(certificates.content):
        raise InvalidArgument(f"{certificates.name}: no certificate in it; it must have -----BEGIN CERTIFICATE-----")
    try:
        _context().load_verify_locations(cadata=certificates.text)
    except ssl.SSLError as error:
        raise InvalidArgument(f"{certificates.name}: a certificate that cannot be read: {_reason(error)}") from None


def check_pair(key: Pem, certificate: Pem) -> None:
    """Raises InvalidArgument unless they are a certificate, with those that it leads to, and its private key."""
    check_certificates(certificate)
    if LOCKED.search(key.content):
        raise InvalidArgument(f"{key.name}: the private key has a password; `openssl pkey` writes it without one")
    if not PRIVATE_KEY.search(key.content):
        raise InvalidArgument(f"{key.name}: no private key in it; it must have -----BEGIN PRIVATE KEY-----")
    try:
        with _file_of(certificate.content) as certificate_file, _file_of(key.content) as key_file:
            _context().load_cert_chain(certificate_file, key_file, password="")
    except ssl.SSLError as error:
        if error.reason in OTHERS:
            raise InvalidArgument(f"{key.name}: the private key is not that of {certificate.name}") from None
        raise InvalidArgument(f"{key.name}: a private key that cannot be used: {_reason(error)}") from None


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    # How strong keys must be is for the transports to say.
    context.set_ciphers("ALL:@SECLEVEL=0")
    return context


@contextmanager
def _file_of(content: bytes) -> Iterator[str]:
    """A path for what takes nothing but paths; private keys are not written to disk."""
    descriptor = os.memfd_create("headrace-pem", os.MFD_CLOEXEC)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        yield f"/proc/self/fd/{descriptor}"


def _reason(error: ssl.SSLError) -> str:
    return error.reason.replace("_", " ").lower() if error.reason else "damaged PEM"
