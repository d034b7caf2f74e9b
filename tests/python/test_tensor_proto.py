# SPDX-License-Identifier: Apache-2.0
"""Tensors as messages: every form is read, and what is written is read back the same."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy
from numpy.typing import NDArray

from headrace import proto
from headrace.errors import InvalidArgument
from headrace.tensor_proto import (
    SERVED_DTYPES,
    STRING,
    VALUE_FIELDS,
    array_from,
    array_of,
    dtype_number,
    numpy_dtype,
    write_array,
)

FLOAT, INT32, UINT8, BOOL, BFLOAT16, QINT8 = 1, 3, 4, 10, 14, 11
NUMBERS = [dtype for dtype in SERVED_DTYPES if dtype != STRING]


def tensor(dtype: int, shape: list[int], content: bytes = b"", **values: Any) -> Any:
    made = proto.message_class("tensorflow.TensorProto")(dtype=dtype, tensor_content=content, **values)
    for size in shape:
        made.tensor_shape.dim.add(size=size)
    return made


def written(array: NDArray[Any]) -> Any:
    made = proto.message_class("tensorflow.TensorProto")()
    write_array(array, made, 'input "x"')
    return made


def listed(dtype: int, array: NDArray[Any]) -> dict[str, Any]:
    """The values of an array as the field of its type has them."""
    flat = array.reshape(-1)
    field = VALUE_FIELDS[dtype][0]
    if field == "half_val":
        return {field: flat.view(np.uint16).tolist()}
    if array.dtype.kind == "c":
        return {field: flat.view(f"f{array.itemsize // 2}").tolist()}
    return {field: flat.tolist()}


def sample(dtype: int) -> NDArray[Any]:
    if dtype == STRING:
        return np.asarray([[b"a\0", b""], [b"c" * 300, b"\xff"]], object)
    return np.asarray([[1, 0], [1, 1]]).astype(numpy_dtype(dtype))


def check_owned(array: NDArray[Any]) -> None:
    assert array.flags.c_contiguous
    assert array.flags.writeable
    assert array.flags.owndata


@pytest.mark.parametrize("dtype", SERVED_DTYPES)
def test_values_are_read_from_the_list_of_their_type(dtype: int) -> None:
    expected = sample(dtype)
    read = array_of(tensor(dtype, [2, 2], **listed(dtype, expected)))
    assert read.dtype == expected.dtype
    assert read.tolist() == expected.tolist()
    check_owned(read)


@pytest.mark.parametrize("dtype", NUMBERS)
def test_values_are_read_from_content(dtype: int) -> None:
    expected = sample(dtype)
    read = array_of(tensor(dtype, [2, 2], expected.tobytes()))
    assert read.dtype == expected.dtype
    assert (read == expected).all()
    check_owned(read)


def test_strings_are_read_from_content() -> None:
    content = b"\x02\x00\xac\x02\x01" + b"a\0" + b"c" * 300 + b"\xff"
    assert array_of(tensor(STRING, [4], content)).tolist() == [b"a\0", b"", b"c" * 300, b"\xff"]
    for wrong in (content[:-1], content + b"x", b"\x80", b"\x80" * 4):
        with pytest.raises(ValueError, match="is not 4 strings"):
            array_of(tensor(STRING, [4], wrong))


@pytest.mark.parametrize("dtype", SERVED_DTYPES)
def test_the_last_value_stands_for_the_rest(dtype: int) -> None:
    array = sample(dtype)
    read = array_of(tensor(dtype, [6], **listed(dtype, array[0])))
    assert read.tolist() == [array[0, 0], *[array[0, 1]] * 5]


@pytest.mark.parametrize("dtype", SERVED_DTYPES)
def test_a_list_without_values_is_zeros(dtype: int) -> None:
    zero = b"" if dtype == STRING else 0
    assert array_of(tensor(dtype, [2])).tolist() == [zero, zero]


@pytest.mark.parametrize("dtype", SERVED_DTYPES)
def test_values_beyond_the_shape_are_left_out(dtype: int) -> None:
    array = sample(dtype)
    assert array_of(tensor(dtype, [3], **listed(dtype, array))).tolist() == array.reshape(-1)[:3].tolist()
    assert array_of(tensor(dtype, [0, 5], b"abc")).shape == (0, 5)


def test_half_a_complex_number_does_not_count() -> None:
    assert array_of(tensor(8, [2], scomplex_val=[1.0, 2.0, 3.0])).tolist() == [1 + 2j, 1 + 2j]


def test_numbers_are_cut_to_their_width() -> None:
    assert array_of(tensor(UINT8, [2], int_val=[257, -1])).tolist() == [1, 255]
    assert array_of(tensor(BFLOAT16, [1], half_val=[0x3F80])).tolist() == [ml_dtypes.bfloat16(1)]


def test_a_tensor_without_dimensions_is_a_scalar() -> None:
    assert array_of(tensor(FLOAT, [], float_val=[3])).shape == ()
    assert array_of(tensor(STRING, [], string_val=[b"a"]))[()] == b"a"


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (tensor(FLOAT, [3], bytes(8)), "tensor_content of 8 bytes is not 3 times float32"),
        (tensor(FLOAT, [1], bytes(8)), "tensor_content of 8 bytes is not 1 times float32"),
        (tensor(FLOAT, [-1], bytes(8)), "negative"),
        (tensor(QINT8, [1], bytes(1)), "dtype 11 is not served"),
        (tensor(0, []), "dtype 0 is not served"),
    ],
)
def test_what_is_no_array_is_a_value_error(made: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        array_of(made)


ARRAYS = st.sampled_from(sorted(SERVED_DTYPES)).flatmap(
    lambda dtype: (
        st_numpy.arrays(object, st_numpy.array_shapes(min_dims=0, min_side=0), elements=st.binary(), fill=st.nothing())
        if dtype == STRING
        else st_numpy.arrays(np.uint8, st_numpy.array_shapes(min_dims=0, min_side=0)).map(
            lambda array: array.astype(numpy_dtype(dtype))
        )
    )
)


@given(ARRAYS)
def test_what_is_written_is_read_back(array: NDArray[Any]) -> None:
    made = proto.message_class("tensorflow.TensorProto").FromString(written(array).SerializeToString())
    read = array_of(made)
    assert read.dtype == array.dtype
    assert read.shape == array.shape
    assert read.tolist() == array.tolist()
    check_owned(read)


@given(ARRAYS, st.data())
def test_a_corrupted_tensor_is_an_error_or_an_array(array: NDArray[Any], data: Any) -> None:
    array = array.reshape(-1)[:50]
    message = bytearray(written(array).SerializeToString())
    for place in data.draw(st.lists(st.integers(0, len(message) - 1), max_size=3)):
        message[place] = data.draw(st.integers(0, 255))
    try:
        made = proto.message_class("tensorflow.TensorProto").FromString(bytes(message))
    except DecodeError:
        return
    if np.prod([abs(dim.size) for dim in made.tensor_shape.dim], dtype=float) > 1e6:
        return  # a true array, of more memory than this test should take
    with contextlib.suppress(ValueError):
        assert array_of(made).flags.writeable


@pytest.mark.parametrize("dtype", NUMBERS)
def test_any_layout_and_byte_order_is_written(dtype: int) -> None:
    array = np.arange(24).reshape(2, 3, 4).astype(numpy_dtype(dtype))
    for view in (array[::-1, ::2], array.T, np.asfortranarray(array), array[:, :0], array[0, 0, 0, ...]):
        assert array_of(written(view)).tolist() == view.tolist()
    if dtype != BFLOAT16:
        assert array_of(written(array.astype(array.dtype.newbyteorder(">")))).tolist() == array.tolist()


@pytest.mark.parametrize(
    "array",
    [
        np.asarray(["a", "é"]),
        np.asarray([b"a", "é".encode()]),
        np.asarray(["a", "é".encode()], object),
        np.asarray(["a", "x", "é"], object)[::2],
    ],
)
def test_strings_of_every_kind_are_written(array: NDArray[Any]) -> None:
    assert array_of(written(array)).tolist() == [b"a", "é".encode()]


@pytest.mark.skipif(np.lib.NumpyVersion(np.__version__) < "2.0.0", reason="came with NumPy 2")
def test_strings_of_any_length_are_written() -> None:
    array = np.asarray(["a\0", "é"], np.dtypes.StringDType())
    assert array_of(written(array)).tolist() == [b"a\0", "é".encode()]


@pytest.mark.parametrize(
    ("array", "text"),
    [
        (np.zeros(3, "M8[s]"), "got datetime64[s], which cannot be served"),
        (np.zeros(3, ml_dtypes.int4), "got int4, which cannot be served"),
        (np.asarray([b"a", 1], object), "element 1 is of type int, expected bytes or str"),
        (np.asarray([None], object), "element 0 is of type NoneType, expected bytes or str"),
        (np.asarray(["\udc80"]), "element 0 is a str that UTF-8 cannot encode"),
    ],
)
def test_an_array_that_no_tensor_holds_is_refused(array: NDArray[Any], text: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        written(array)
    assert caught.value.message == f'input "x": {text}'


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        ([1, 2], FLOAT),
        ([True], FLOAT),
        ([1.5], 2),
        ([1.5], BFLOAT16),
        ([1.5], 19),
        ([3], UINT8),
        ([[]], INT32),
        ([1.0], 8),
        (7, FLOAT),
        (np.float64(1.5), FLOAT),
        ([np.ones(2), np.zeros(2)], FLOAT),
        ((True, False), BOOL),
        (["a\0", b"b"], STRING),
        ("a", STRING),
    ],
)
def test_what_is_no_array_takes_the_dtype(value: Any, dtype: int) -> None:
    made = array_from(value, dtype, "")
    assert made.dtype == numpy_dtype(dtype)
    assert made.tolist() == np.asarray(value, made.dtype).tolist()


@pytest.mark.parametrize(
    ("value", "dtype"),
    [([1], np.int64), ([1.5], np.float64), (True, np.bool_), (["a"], np.object_), (b"a\0", np.object_), (2j, complex)],
)
def test_without_a_dtype_it_takes_numpy_s(value: Any, dtype: Any) -> None:
    made = array_from(value, None, "")
    assert made.dtype == dtype
    assert made.tolist() == value


def test_an_array_stays_as_it_is() -> None:
    array = np.zeros(3)
    assert array_from(array, FLOAT, "") is array


@pytest.mark.parametrize(
    ("value", "dtype", "text"),
    [
        ([1.5], INT32, "got float64, the signature wants int32"),
        ([1j], FLOAT, "got complex128, the signature wants float32"),
        ([1], BOOL, "got int64, the signature wants bool"),
        (["1"], FLOAT, "got <U1, the signature wants float32"),
        ([None], FLOAT, "got object, the signature wants float32"),
        ([300], UINT8, "holds a number out of range for uint8"),
        ([10**30], UINT8, "got object, the signature wants uint8"),
    ],
)
def test_numbers_never_narrow(value: Any, dtype: int, text: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        array_from(value, dtype, 'input "x"')
    assert caught.value.message == f'input "x": {text}'


def test_a_ragged_list_is_refused() -> None:
    for dtype in (None, FLOAT):
        with pytest.raises(InvalidArgument, match=r'^input "x": '):
            array_from([[1.0], [1.0, 2.0]], dtype, 'input "x"')
    with pytest.raises(InvalidArgument, match=r'^input "x": element 0 is of type list, expected bytes or str$'):
        written(array_from([[b"a"], [b"a", b"b"]], STRING, ""))


def test_the_dtypes_of_numpy_have_tensorflow_s_numbers() -> None:
    assert all(dtype_number(numpy_dtype(number)) == number for number in SERVED_DTYPES)
    assert dtype_number(np.dtype("q")) == dtype_number(np.dtype("l")) == 9
    assert dtype_number(np.dtype(np.longdouble)) is None
    assert sys.byteorder == "little"  # which content is in
