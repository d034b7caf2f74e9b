# SPDX-License-Identifier: Apache-2.0
"""SslConfigFile: the keys and certificates of a server in one file, as TensorFlow Serving has them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf import text_format

from headrace import proto
from headrace.errors import InvalidArgument
from headrace.pem import Pem, read_file
from headrace.tls import ServerKeys


@dataclass(frozen=True)
class SslConfigFile:
    """TensorFlow Serving's --ssl_config_file: an SSLConfig message as text, with PEM in its fields.

        server_key: "-----BEGIN PRIVATE KEY-----\\nMIG...\\n-----END PRIVATE KEY-----\\n"
        server_cert: "-----BEGIN CERTIFICATE-----\\nMII...\\n-----END CERTIFICATE-----\\n"

    With `client_verify: true` clients must show a certificate that a CA in `custom_ca` has signed; without it they are
    asked for none, and `custom_ca` is not looked at.  The file is read again when it changes, as ServerTls's are; what
    client_verify says is fixed when a server starts.
    """

    file: str | os.PathLike[str]

    @property
    def files(self) -> tuple[Path, ...]:
        """The one file."""
        return (Path(self.file),)

    def read(self) -> ServerKeys:
        """What is in the file now.  Raises InvalidArgument where it cannot be read or used."""
        config = self._parse()
        if not config.client_verify:
            client_ca = None
        elif config.custom_ca:
            client_ca = self._pem(config, "custom_ca")
        else:
            raise InvalidArgument(
                f"{self._name}: client_verify is true, but custom_ca is empty; it must be the CA of the clients"
            )
        key, certificate = self._pem(config, "server_key"), self._pem(config, "server_cert")
        return ServerKeys.checked(self.files, key, certificate, client_ca)

    @property
    def _name(self) -> str:
        return f"ssl_config_file {os.fspath(self.file)}"

    def _parse(self) -> Any:
        content = read_file(self._name, self.file)
        try:
            return text_format.Parse(
                content.decode(errors="replace"), proto.message_class("tensorflow.serving.SSLConfig")()
            )
        except text_format.ParseError as error:
            # Without its own words, which may quote a line of the private key.
            place = f"line {error.GetLine()}, column {error.GetColumn()}: " if error.GetLine() is not None else ""
            raise InvalidArgument(
                f"{self._name}: {place}not an SSLConfig as text; its fields are server_key, server_cert, custom_ca and"
                " client_verify, and the end of a line of PEM is \\n inside the quotes"
            ) from None

    def _pem(self, config: Any, field: str) -> Pem:
        text = getattr(config, field)
        if not text:
            raise InvalidArgument(f"{self._name}: {field} is empty; it must be PEM text")
        return Pem(f"{self._name}: {field}", text.encode())
