# SPDX-License-Identifier: Apache-2.0
"""CertificateWatch: a server's keys and certificates, read again when their files change."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from headrace.errors import HeadraceError, InvalidArgument
from headrace.server.ssl_config import SslConfigFile
from headrace.tls import ServerKeys, ServerTls

TlsFiles: TypeAlias = ServerTls | SslConfigFile
Renew: TypeAlias = Callable[[ServerKeys], None]

logger = logging.getLogger("headrace")

LOOK_INTERVAL_S = 1.0

# How long stop() waits for a look under way: the files may be on a disk that does not answer.
LEAVE_S = 1.0


class CertificateWatch:
    """Looks at the files of a server's TLS once a second, and reads them when they have changed.

    They are read once they have been the same for two looks, for a key and its certificate are written one after the
    other.  Links are followed: a Kubernetes volume changes by a link that points elsewhere.

    Thread safety: start() and stop() from one thread at a time, any thread; nothing else once it has started.

    Raises what reading the files raises.
    """

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        # Before they are read: what changes meanwhile is seen at the next look.
        self._read = self._seen = self._stamps()
        self.keys = files.read()
        self._warned = ""
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, renew: Renew) -> None:
        """From now on `renew` is called with what the files have become, on a thread of its own."""
        thread = threading.Thread(target=self._watch, args=(renew,), name="headrace-certificates", daemon=True)
        thread.start()
        self._thread = thread

    def stop(self) -> None:
        """Ends it, at once."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(LEAVE_S)

    def look(self, renew: Renew) -> None:
        """One look at the files."""
        stamps, seen = self._stamps(), self._seen
        self._seen = stamps
        if stamps == self._read:
            self._warned = ""
            return
        if stamps != seen:
            return
        try:
            keys = self._files.read()
            if bool(keys.client_ca) != bool(self.keys.client_ca):
                raise InvalidArgument("client_verify has changed, which takes a new start of the server")
            if keys != self.keys:
                renew(keys)
                logger.info("certificate re-read: %s", keys.source)
        except HeadraceError as error:
            if error.message != self._warned:
                logger.warning("certificate not re-read, the old one stays: %s", error.message)
            self._warned = error.message
            return
        self.keys, self._read, self._warned = keys, stamps, ""

    def _watch(self, renew: Renew) -> None:
        while not self._stopping.wait(LOOK_INTERVAL_S):
            self.look(renew)

    def _stamps(self) -> list[tuple[int, ...] | None]:
        """What is another for another content of the files."""
        return [_stamp(file) for file in self._files.files]


def _stamp(file: Path) -> tuple[int, ...] | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
