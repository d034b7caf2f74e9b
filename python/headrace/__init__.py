# SPDX-License-Identifier: Apache-2.0
"""Headrace: native dynamic batching for TensorFlow, as a server and as a library.

The names are imported when they are first used: a client needs no engine, and nothing imports TensorFlow's Python
package.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.batched_function import Batched, batched
    from headrace.batcher import Batcher, Slot
    from headrace.client import AsyncClient, Client
    from headrace.config import BatchingOptions, GrpcOptions
    from headrace.errors import (
        Cancelled,
        Code,
        DeadlineExceeded,
        FailedPrecondition,
        HeadraceError,
        Internal,
        InvalidArgument,
        NotFound,
        PermissionDenied,
        ResourceExhausted,
        Unavailable,
        Unimplemented,
        Unknown,
    )
    from headrace.model import LoadedModel, LoadedSignature, load
    from headrace.reply import Reply
    from headrace.server.server import Server
    from headrace.server.ssl_config import SslConfigFile
    from headrace.tls import ClientTls, ServerTls

__all__ = [
    "AsyncClient",
    "Batched",
    "Batcher",
    "BatchingOptions",
    "Cancelled",
    "Client",
    "ClientTls",
    "Code",
    "DeadlineExceeded",
    "FailedPrecondition",
    "GrpcOptions",
    "HeadraceError",
    "Internal",
    "InvalidArgument",
    "LoadedModel",
    "LoadedSignature",
    "NotFound",
    "PermissionDenied",
    "Reply",
    "ResourceExhausted",
    "Server",
    "ServerTls",
    "Slot",
    "SslConfigFile",
    "Unavailable",
    "Unimplemented",
    "Unknown",
    "batched",
    "load",
]

# Where each name comes from, but for the errors.
MODULES = {
    "AsyncClient": "client",
    "Batched": "batched_function",
    "Batcher": "batcher",
    "BatchingOptions": "config",
    "Client": "client",
    "ClientTls": "tls",
    "GrpcOptions": "config",
    "LoadedModel": "model",
    "LoadedSignature": "model",
    "Reply": "reply",
    "Server": "server.server",
    "ServerTls": "tls",
    "Slot": "batcher",
    "SslConfigFile": "server.ssl_config",
    "batched": "batched_function",
    "load": "model",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{MODULES.get(name, 'errors')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
