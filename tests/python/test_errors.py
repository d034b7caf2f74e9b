# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import pickle

import grpc
import pytest

from headrace.errors import (
    CLASSES,
    Code,
    DeadlineExceeded,
    HeadraceError,
    InvalidArgument,
    NotFound,
    from_status,
)


def test_codes_are_those_of_grpc() -> None:
    assert {code.name: code.value for code in Code} == {code.name: code.value[0] for code in grpc.StatusCode}


@pytest.mark.parametrize("code", [code for code in Code if code is not Code.OK])
def test_every_status_becomes_an_error_that_keeps_code_and_message(code: Code) -> None:
    error = from_status(int(code), "what was wrong")
    assert (error.code, error.message, str(error)) == (code, "what was wrong", "what was wrong")
    assert type(error) is CLASSES.get(code, HeadraceError)


@pytest.mark.parametrize(
    ("error", "builtin"), [(DeadlineExceeded, TimeoutError), (InvalidArgument, ValueError), (NotFound, LookupError)]
)
def test_some_errors_are_python_s_own_too(error: type[HeadraceError], builtin: type[Exception]) -> None:
    with pytest.raises(builtin, match=r"^late$"):
        raise from_status({e: c for c, e in CLASSES.items()}[error], "late")  # type: ignore[index]


@pytest.mark.parametrize("error", [HeadraceError(Code.ABORTED, "text"), DeadlineExceeded("text"), NotFound("text")])
def test_errors_survive_pickling(error: HeadraceError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), copy.code, copy.message) == (type(error), error.code, error.message)
