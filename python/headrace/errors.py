# SPDX-License-Identifier: Apache-2.0
"""One tree of errors, each class with gRPC's code, the same from every part of Headrace."""

from __future__ import annotations

import enum


class Code(enum.IntEnum):
    """How a call ended: gRPC's status codes."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class HeadraceError(Exception):
    """A call failed: `code` is gRPC's code, `message` says what was wrong, what was expected and what changes it."""

    code: Code
    message: str

    def __init__(self, code: int, message: str) -> None:
        super().__init__(code, message)
        self.code = Code(code)
        self.message = message

    def __str__(self) -> str:
        return self.message


class _Coded(HeadraceError):
    """An error whose class fixes its code."""

    CODE = Code.UNKNOWN

    def __init__(self, message: str) -> None:
        super().__init__(self.CODE, message)
        self.args = (message,)


class Cancelled(_Coded):
    """The caller took the request back."""

    CODE = Code.CANCELLED


class Unknown(_Coded):
    """Something failed that has no code of its own, such as an exception in a callable."""

    CODE = Code.UNKNOWN


class InvalidArgument(_Coded, ValueError):
    """The request or the option is wrong, whatever the state of the server."""

    CODE = Code.INVALID_ARGUMENT


class DeadlineExceeded(_Coded, TimeoutError):
    """The deadline passed before the answer was there."""

    CODE = Code.DEADLINE_EXCEEDED


class NotFound(_Coded, LookupError):
    """There is no such model, version, signature or file."""

    CODE = Code.NOT_FOUND


class PermissionDenied(_Coded):
    """The process may not read what it was told to."""

    CODE = Code.PERMISSION_DENIED


class ResourceExhausted(_Coded):
    """A limit on memory or size was passed; the message names it."""

    CODE = Code.RESOURCE_EXHAUSTED


class FailedPrecondition(_Coded):
    """Nothing wrong with the request, but the model or the machine cannot do it."""

    CODE = Code.FAILED_PRECONDITION


class Unimplemented(_Coded):
    """The operation is not there."""

    CODE = Code.UNIMPLEMENTED


class Internal(_Coded):
    """A promise inside was broken: a fault of Headrace, TensorFlow or the model."""

    CODE = Code.INTERNAL


class Unavailable(_Coded):
    """Not now: the queue is full or the server is stopping.  A later try, or another server, may do."""

    CODE = Code.UNAVAILABLE


CLASSES: dict[Code, type[_Coded]] = {
    error.CODE: error
    for error in (
        Cancelled,
        Unknown,
        InvalidArgument,
        DeadlineExceeded,
        NotFound,
        PermissionDenied,
        ResourceExhausted,
        FailedPrecondition,
        Unimplemented,
        Internal,
        Unavailable,
    )
}


def from_status(code: int, message: str) -> HeadraceError:
    """The error of a status; `code` is any of gRPC's but OK.  Codes without a class of their own are HeadraceError."""
    error = CLASSES.get(Code(code))
    return HeadraceError(code, message) if error is None else error(message)
