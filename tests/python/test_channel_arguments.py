# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import pytest

from headrace.channel_arguments import INT_MAX, native_limits, parse, without_meaning
from headrace.config import GrpcOptions
from headrace.errors import InvalidArgument


def test_whole_numbers_are_numbers_and_the_rest_is_text() -> None:
    arguments = parse("grpc.max_connection_age_ms=2000,grpc.lb_policy_name=grpclb,a=-1,b=,c=1.5,d=x=y")
    assert arguments == {
        "grpc.max_connection_age_ms": 2000,
        "grpc.lb_policy_name": "grpclb",
        "a": -1,
        "b": "",
        "c": "1.5",
        "d": "x=y",
    }
    assert parse("") == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a", "has 'a'; it must be k=v,k=v"),
        ("a=1,", "has ''; it must be k=v,k=v"),
        ("=1", "has '=1'; it must be k=v,k=v"),
        ("a=3000000000", "has a=3000000000; it must be a whole number, -2147483648 to 2147483647"),
        (
            "grpc.max_connection_age_ms=soon",
            "has grpc.max_connection_age_ms=soon; it must be a whole number, 1 to 2147483647",
        ),
        (
            "grpc.max_receive_message_length=-2",
            "has grpc.max_receive_message_length=-2; it must be a whole number, -1 to 2147483647",
        ),
    ],
)
def test_what_is_malformed_is_said(text: str, said: str) -> None:
    with pytest.raises(InvalidArgument) as raised:
        GrpcOptions(grpc_channel_arguments=text)
    assert str(raised.value) == f"grpc_channel_arguments {said}"


@pytest.mark.parametrize(
    ("text", "limits"),
    [
        ("grpc.max_connection_age_ms=2000,grpc.max_connection_age_grace_ms=0", {"age": 2.0, "age_grace": 0.001}),
        (f"grpc.max_connection_age_ms={INT_MAX}", {"age": 0.0}),
        ("grpc.max_connection_idle_ms=500", {"idle": 0.5}),
        ("grpc.keepalive_timeout_ms=1,grpc.keepalive_time_ms=7200000", {"ping": 7200.0, "ping_answer": 0.001}),
        ("grpc.max_receive_message_length=-1", {"message_bytes_max": INT_MAX}),
        (
            "grpc.max_receive_message_length=100,grpc.max_concurrent_streams=3",
            {"message_bytes_max": 100, "streams_max": 3},
        ),
        ("grpc.max_metadata_size=5000", {"header_bytes_max": 5000}),
        ("grpc.absolute_max_metadata_size=9000,grpc.max_metadata_size=5000", {"header_bytes_max": 9000}),
        ("grpc.lb_policy_name=grpclb,other=1", {}),
    ],
)
def test_those_that_limit_something_are_limits_of_the_native_transport(text: str, limits: dict[str, float]) -> None:
    assert native_limits(parse(text)) == pytest.approx(limits)


def test_the_others_say_nothing_to_it() -> None:
    assert without_meaning(parse("grpc.lb_policy_name=grpclb,grpc.max_metadata_size=5000,a=1")) == [
        "grpc.lb_policy_name",
        "a",
    ]
