# SPDX-License-Identifier: Apache-2.0
"""Tensors between Python and C++: what is taken, what is refused, what is copied and what is not."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from headrace import _core
from headrace.config import BatchingOptions
from headrace.errors import Code
from headrace.tensor_proto import SERVED_DTYPES, numpy_dtype

FLOAT, DOUBLE, INT32, UINT8, STRING, COMPLEX64, INT64, BOOL, BFLOAT16 = 1, 2, 3, 4, 7, 8, 9, 10, 14
NUMBERS = [dtype for dtype in SERVED_DTYPES if dtype != STRING]
ANSWER_S = 30.0


class Echo:
    """Lanes whose requests come back as they are, or as `answer(inputs)` makes them."""

    def __init__(self) -> None:
        self._timer = _core.Timer()
        self._models: list[_core.Model] = []

    def lane(self, dtype: int, output: int | None = None) -> tuple[_core.Model, _core.Lane]:
        model = _core.Model("echo", 1, self._timer)
        specs = _core.TensorSpec("x", dtype, None), _core.TensorSpec("y", output or dtype, None)
        signature = _core.Signature("f", specs[:1], specs[1:])
        self._models.append(model)
        return model, model.add_lane(signature, BatchingOptions().lane_options(batched=True))

    def send(self, value: Any, dtype: int) -> NDArray[Any]:
        """What comes back of `value`, by way of a view and a borrowed array."""
        model, lane = self.lane(dtype)
        reply = lane.submit({"x": value}, ANSWER_S)
        batch = model.next()
        assert batch is not None
        batch.finish([batch.inputs["x"]])
        assert reply.wait(ANSWER_S)
        return reply.outputs()["y"]

    def give_back(self, value: Any, dtype: int) -> NDArray[Any]:
        """What a client gets when a callable returns `value` for an output of `dtype`."""
        model, lane = self.lane(FLOAT, dtype)
        reply = lane.submit({"x": np.zeros(2, np.float32)}, ANSWER_S)
        batch = model.next()
        assert batch is not None
        try:
            batch.finish([value])
        except _core.StatusError as error:
            batch.fail(error.code, error.message)
        assert reply.wait(ANSWER_S)
        return reply.outputs()["y"]

    def close(self) -> None:
        for model in self._models:
            model.close(0.0)
        self._timer.close()


@pytest.fixture(name="echo")
def echoing() -> Iterator[Echo]:
    echo = Echo()
    yield echo
    echo.close()


def numbers(dtype: int) -> NDArray[Any]:
    return np.arange(24).reshape(2, 3, 4).astype(numpy_dtype(dtype))


@pytest.mark.parametrize("dtype", NUMBERS)
def test_an_array_comes_back_contiguous_and_writable(echo: Echo, dtype: int) -> None:
    sent = numbers(dtype)
    for array in (sent, sent[::-1, ::2], sent.T, np.asfortranarray(sent), sent[:, :0], sent[:, 1, 1], sent[0, 0, 0]):
        back = echo.send(array, dtype)
        assert back.dtype == array.dtype
        assert back.shape == array.shape
        assert (back == array).all()
        assert back.flags.c_contiguous
        assert back.flags.writeable
        assert not np.shares_memory(back, array)


@pytest.mark.parametrize("dtype", [dtype for dtype in NUMBERS if dtype not in (UINT8, 6, BOOL, BFLOAT16)])
def test_foreign_byte_order_is_turned(echo: Echo, dtype: int) -> None:
    sent = numbers(dtype)
    foreign = sent.astype(sent.dtype.newbyteorder(">"))
    assert (echo.send(foreign, dtype) == sent).all()
    if dtype == FLOAT:
        assert echo.give_back(foreign, dtype).dtype == sent.dtype


@pytest.mark.parametrize(
    ("value", "back"),
    [
        ([b"a\0", "é"], [b"a\0", "é".encode()]),
        (np.asarray(["a", "bé"]), [b"a", "bé".encode()]),
        (np.asarray([b"a", b"bb"]), [b"a", b"bb"]),
        (np.asarray([["x", b"y"]], object), [[b"x", b"y"]]),
        ([[b""], [b"z" * 1000]], [[b""], [b"z" * 1000]]),
        (np.asarray(["a", "b", "c", "d"], object)[::2], [b"a", b"c"]),
        ([[]], [[]]),
    ],
)
def test_strings_come_as_bytes_or_text_and_go_as_bytes(echo: Echo, value: Any, back: list[Any]) -> None:
    array = echo.send(value, STRING)
    assert array.dtype == np.object_
    assert array.tolist() == back
    if len(back) == 2:
        assert echo.give_back(value, STRING).tolist() == back


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        ([1, 2], FLOAT),
        ([True], FLOAT),
        ([1.5], DOUBLE),
        ([1.5], BFLOAT16),
        ([3], UINT8),
        ([[]], INT32),
        ([1.0], COMPLEX64),
        ([[1], [2]], INT64),
    ],
)
def test_lists_take_the_signatures_dtype(echo: Echo, value: list[Any], dtype: int) -> None:
    back = echo.send(value, dtype)
    assert back.dtype == numpy_dtype(dtype)
    assert back.tolist() == value


@pytest.mark.parametrize(
    ("value", "dtype", "text"),
    [
        (np.zeros(3), FLOAT, "got float64, the signature wants float32"),
        (np.zeros(3, np.int64), INT32, "got int64, the signature wants int32"),
        (np.zeros(3, np.float16), BFLOAT16, "got float16, the signature wants bfloat16"),
        (np.zeros(3, ml_dtypes.bfloat16), FLOAT, "got bfloat16, the signature wants float32"),
        (np.zeros(3, ml_dtypes.int4), UINT8, "got int4, the signature wants uint8"),
        (np.zeros(3, "M8[s]"), INT64, "got datetime64[s], the signature wants int64"),
        (np.asarray(["1"]), FLOAT, "got <U1, the signature wants float32"),
        (np.zeros(3, np.float32), STRING, "got float32, the signature wants bytes"),
        ([1.5], INT32, "got float64, the signature wants int32"),
        ([1j], FLOAT, "got complex128, the signature wants float32"),
        ([1], BOOL, "got int64, the signature wants bool"),
        (["1"], FLOAT, "got <U1, the signature wants float32"),
        ([None], FLOAT, "got object, the signature wants float32"),
        ([b"a", 1], STRING, "element 1 is of type int, expected bytes or str"),
        (["\udc80"], STRING, "element 0 is a str that UTF-8 cannot encode"),
        ([b"a", [b"b"]], STRING, "element 1 is of type list, expected bytes or str"),
    ],
)
def test_another_dtype_is_refused_by_name(echo: Echo, value: Any, dtype: int, text: str) -> None:
    with pytest.raises(_core.StatusError) as caught:
        echo.send(value, dtype)
    assert caught.value.code == Code.INVALID_ARGUMENT
    assert caught.value.message == f'input "x": {text}'
    with pytest.raises(_core.StatusError) as caught:
        echo.give_back(value, dtype)
    assert text in caught.value.message


@pytest.mark.parametrize("value", [[[1.0], [1.0, 2.0]], [300], [10**30]])
def test_what_numpy_cannot_make_an_array_of_is_refused(echo: Echo, value: list[Any]) -> None:
    with pytest.raises(_core.StatusError) as caught:
        echo.send(value, UINT8)
    assert caught.value.code == Code.INVALID_ARGUMENT
    assert caught.value.message.startswith('input "x": ')


@pytest.mark.parametrize("dtype", NUMBERS)
def test_a_callable_sees_the_slab_itself(echo: Echo, dtype: int) -> None:
    model, lane = echo.lane(dtype)
    sent = numbers(dtype)
    reply = lane.submit({"x": sent}, ANSWER_S)
    batch = model.next()
    assert batch is not None
    first, again = batch.inputs["x"], batch.inputs["x"]
    assert first.ctypes.data == again.ctypes.data
    assert first.ctypes.data % 64 == 0
    assert not first.flags.owndata
    assert first.dtype == sent.dtype
    assert (first == sent).all()
    batch.finish([first])
    assert reply.wait(ANSWER_S)


def test_an_input_that_a_callable_keeps_keeps_its_slab(echo: Echo) -> None:
    model, lane = echo.lane(FLOAT)
    kept = []
    for i in range(20):
        reply = lane.submit({"x": np.full((1, 1000), i, np.float32)}, ANSWER_S)
        batch = model.next()
        assert batch is not None
        kept.append(batch.inputs["x"])
        batch.finish([kept[-1]])
        assert reply.wait(ANSWER_S)
        del batch
        gc.collect()
    assert len({array.ctypes.data for array in kept}) == 20
    assert [array[0, 0] for array in kept] == list(range(20))


def test_large_arrays_are_copied_whole(echo: Echo) -> None:
    sent = np.random.default_rng(3).random((64, 5000), np.float32)
    assert (echo.send(sent, FLOAT) == sent).all()


def test_a_status_error_has_its_code_and_message() -> None:
    with pytest.raises(_core.StatusError) as caught:
        _core.TensorFlow("/no/such/library.so")
    assert caught.value.code == Code.FAILED_PRECONDITION
    assert caught.value.message == str(caught.value)
    assert caught.value.args == (caught.value.message,)
    assert _core.StatusError.__module__ == "headrace._core"
