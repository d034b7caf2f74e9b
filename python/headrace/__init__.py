# SPDX-License-Identifier: Apache-2.0
"""Headrace: native dynamic batching for TensorFlow, as a server and as a library."""

from __future__ import annotations

from headrace.config import BatchingOptions
from headrace.errors import (
    Cancelled,
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

__all__ = [
    "BatchingOptions",
    "Cancelled",
    "DeadlineExceeded",
    "FailedPrecondition",
    "HeadraceError",
    "Internal",
    "InvalidArgument",
    "NotFound",
    "PermissionDenied",
    "ResourceExhausted",
    "Unavailable",
    "Unimplemented",
    "Unknown",
]
