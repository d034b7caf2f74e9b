# SPDX-License-Identifier: Apache-2.0
"""gRPC's channel arguments as --grpc_channel_arguments has them, and what they are to the native transport."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from headrace.errors import InvalidArgument

INT_MAX = (1 << 31) - 1


def parse(text: str) -> dict[str, int | str]:
    """The arguments of "k=v,k=v"; what looks like a whole number is one.  Raises InvalidArgument."""
    arguments: dict[str, int | str] = {}
    for piece in text.split(",") if text else ():
        key, equals, value = piece.partition("=")
        if not key or not equals:
            raise InvalidArgument(f"grpc_channel_arguments has {piece!r}; it must be k=v,k=v")
        arguments[key] = int(value) if re.fullmatch(r"[+-]?[0-9]+", value, re.ASCII) else value
        _check(key, arguments[key])
    return arguments


def _check(key: str, value: int | str) -> None:
    least = MEANINGS[key].least if key in MEANINGS else -INT_MAX - 1
    fits = not isinstance(value, str) and least <= value <= INT_MAX
    if not fits and (key in MEANINGS or not isinstance(value, str)):
        raise InvalidArgument(
            f"grpc_channel_arguments has {key}={value}; it must be a whole number, {least} to {INT_MAX}"
        )


def native_limits(arguments: Mapping[str, int | str]) -> dict[str, Any]:
    """Those of the arguments that the native transport has a limit for, as _core.GrpcServer names and counts them."""
    return {
        meaning.limit: meaning.count(value)
        for key, meaning in MEANINGS.items()
        if isinstance(value := arguments.get(key), int)
    }


def without_meaning(arguments: Mapping[str, int | str]) -> list[str]:
    """The names of those that say nothing to the native transport."""
    return [key for key in arguments if key not in MEANINGS]


class Meaning(NamedTuple):
    """What an argument is to the native transport."""

    limit: str
    count: Callable[[int], Any]
    least: int


def _seconds(milliseconds: int) -> float:
    """0.0, which is for ever, for what gRPC takes for that."""
    return 0.0 if milliseconds == INT_MAX else max(milliseconds, 1) * 1e-3


def _bytes(count: int) -> int:
    return INT_MAX if count == -1 else count


# Where two have the same limit, the last one wins.
MEANINGS = {
    "grpc.max_connection_age_ms": Meaning("age", _seconds, 1),
    "grpc.max_connection_age_grace_ms": Meaning("age_grace", _seconds, 0),
    "grpc.max_connection_idle_ms": Meaning("idle", _seconds, 1),
    "grpc.keepalive_time_ms": Meaning("ping", _seconds, 1),
    "grpc.keepalive_timeout_ms": Meaning("ping_answer", _seconds, 0),
    "grpc.max_receive_message_length": Meaning("message_bytes_max", _bytes, -1),
    "grpc.max_concurrent_streams": Meaning("streams_max", int, 1),
    "grpc.max_metadata_size": Meaning("header_bytes_max", int, 0),
    "grpc.absolute_max_metadata_size": Meaning("header_bytes_max", int, 0),
}
