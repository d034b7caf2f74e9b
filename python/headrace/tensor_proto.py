# SPDX-License-Identifier: Apache-2.0
"""TensorProtos and arrays: every form that TensorFlow writes is read, the shortest one is written.

The rules are those of cpp/wire/tensor_proto and cpp/bind/ndarray, so that a call answers the same by whichever way it
comes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import InvalidArgument

STRING = 7
BFLOAT16 = 14

# By tensorflow.DataType's number: all that NumPy has of its own.
_OWN_DTYPES: dict[int, np.dtype[Any]] = {
    1: np.dtype(np.float32),
    2: np.dtype(np.float64),
    3: np.dtype(np.int32),
    4: np.dtype(np.uint8),
    5: np.dtype(np.int16),
    6: np.dtype(np.int8),
    STRING: np.dtype(np.object_),
    8: np.dtype(np.complex64),
    9: np.dtype(np.int64),
    10: np.dtype(np.bool_),
    17: np.dtype(np.uint16),
    18: np.dtype(np.complex128),
    19: np.dtype(np.float16),
    22: np.dtype(np.uint32),
    23: np.dtype(np.uint64),
}
_OWN_NUMBERS = {dtype: number for number, dtype in _OWN_DTYPES.items() if number != STRING}

# The numbers of the dtypes that are served.
SERVED_DTYPES = tuple(sorted({*_OWN_DTYPES, BFLOAT16}))

# What NumPy has for text: bytes, str, objects and, since version 2, strings of any length.
TEXT_KINDS = "SUOT"

# Where TensorProto lists the values of a type, and as what: halves as their bits, complex numbers as pairs.
VALUE_FIELDS: dict[int, tuple[str, Any]] = {
    1: ("float_val", np.float32),
    2: ("double_val", np.float64),
    3: ("int_val", np.int32),
    4: ("int_val", np.int32),
    5: ("int_val", np.int32),
    6: ("int_val", np.int32),
    7: ("string_val", np.object_),
    8: ("scomplex_val", np.float32),
    9: ("int64_val", np.int64),
    10: ("bool_val", np.bool_),
    14: ("half_val", np.int32),
    17: ("int_val", np.int32),
    18: ("dcomplex_val", np.float64),
    19: ("half_val", np.int32),
    22: ("uint32_val", np.uint32),
    23: ("uint64_val", np.uint64),
}


def numpy_dtype(number: int) -> np.dtype[Any]:
    """NumPy's dtype of a tensorflow.DataType that is one of SERVED_DTYPES; strings are objects."""
    if number != BFLOAT16:
        return _OWN_DTYPES[number]
    import ml_dtypes  # not above: it takes longer to import than the rest of a client, and few need it

    bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return bfloat16


def array_of(tensor: Any) -> NDArray[Any]:
    """A TensorProto's array: contiguous, writable and the caller's own; strings are objects of type bytes.

    A list of values that is too short goes on with its last one, an empty one with zeros; what is too much is left out.
    Raises ValueError for a dtype that is not served, or content that is not of the tensor's size.
    """
    if tensor.dtype not in SERVED_DTYPES:
        raise ValueError(f"dtype {tensor.dtype} is not served")
    shape = [dim.size for dim in tensor.tensor_shape.dim]
    if min(shape, default=0) < 0:
        raise ValueError(f"shape {shape} is negative")
    array = np.empty(shape, numpy_dtype(tensor.dtype))
    if array.size == 0:
        return array  # whatever the values are
    flat = array.reshape(-1)
    if tensor.tensor_content:
        flat[:] = _content(tensor.tensor_content, tensor.dtype, flat.size)
        return array
    values = _listed(tensor)[: flat.size]
    flat[: len(values)] = values
    if len(values) < flat.size:
        flat[len(values) :] = values[-1] if len(values) else (b"" if tensor.dtype == STRING else 0)
    return array


def write_array(array: NDArray[Any], tensor: Any, what: str) -> None:
    """Makes an empty TensorProto that of an array: numbers as content, strings one by one.

    Raises InvalidArgument, which begins with `what`, for an array that no tensor can hold.
    """
    number = dtype_number(array.dtype)
    if number is None:
        raise InvalidArgument(f"{what}: got {array.dtype}, which cannot be served")
    tensor.dtype = number
    tensor.tensor_shape.SetInParent()  # without dimensions, too: that is a scalar
    for size in array.shape:
        tensor.tensor_shape.dim.add(size=size)
    if number == STRING:
        for index, element in enumerate(array.reshape(-1).tolist()):
            tensor.string_val.append(_characters(element, index, what))
    else:
        tensor.tensor_content = array.astype(numpy_dtype(number), copy=False).tobytes()


def array_from(value: Any, dtype: int | None, what: str) -> NDArray[Any]:
    """`value` as an array; what is none yet takes the dtype of that number, or NumPy's own where it is None.

    Numbers widen, from bool to integer, real and complex, and never narrow.  Raises InvalidArgument, which begins with
    `what`, if they would have to, or if NumPy cannot make an array of the value.
    """
    if isinstance(value, np.ndarray):
        return value
    try:
        if dtype == STRING:  # NumPy's own type would drop trailing NULs
            return np.asarray(value, np.object_)
        array = np.asarray(value)
        if dtype is None:
            return np.asarray(value, np.object_) if array.dtype.kind in TEXT_KINDS else array
    except (ValueError, TypeError, OverflowError) as error:  # ragged lists, numbers out of range
        raise InvalidArgument(f"{what}: {error}") from None
    wanted = numpy_dtype(dtype)
    if array.size != 0 and not 0 <= _rank(array.dtype) <= _rank(wanted):
        raise InvalidArgument(f"{what}: got {array.dtype}, the signature wants {wanted}")
    numbers = array.astype(wanted)
    if wanted.kind in "iu" and array.dtype.kind in "iu" and not np.array_equal(numbers, array):
        raise InvalidArgument(f"{what}: holds a number out of range for {wanted}")
    return numbers


def dtype_number(dtype: np.dtype[Any]) -> int | None:
    """tensorflow.DataType's number of NumPy's dtype, in whatever byte order; None if there is none."""
    if dtype.kind in TEXT_KINDS:
        return STRING
    if dtype.name == "bfloat16":
        return BFLOAT16
    return _OWN_NUMBERS.get(dtype.newbyteorder("="))


def _rank(dtype: np.dtype[Any]) -> int:
    """The place among Python's numbers, bool first; -1 for what is no number."""
    if dtype.name == "bfloat16":
        return 2
    return {"b": 0, "i": 1, "u": 1, "f": 2, "c": 3}.get(dtype.kind, -1)


def _characters(element: Any, index: int, what: str) -> bytes:
    if isinstance(element, bytes):
        return element
    if not isinstance(element, str):
        raise InvalidArgument(f"{what}: element {index} is of type {type(element).__name__}, expected bytes or str")
    try:
        return element.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(f"{what}: element {index} is a str that UTF-8 cannot encode") from None


def _content(content: bytes, dtype: int, size: int) -> Any:
    """The values in tensor_content; of strings all lengths as varints, then all bytes."""
    if dtype != STRING:
        made = numpy_dtype(dtype)
        if len(content) != size * made.itemsize:
            raise ValueError(f"tensor_content of {len(content)} bytes is not {size} times {made}")
        return np.frombuffer(content, made)
    lengths = []
    position = 0
    for _ in range(size):
        length = shift = 0
        while True:
            if position == len(content):
                raise ValueError(f"tensor_content of {len(content)} bytes is not {size} strings")
            byte = content[position]
            position += 1
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        lengths.append(length)
    if position + sum(lengths) != len(content):
        raise ValueError(f"tensor_content of {len(content)} bytes is not {size} strings")
    values = []
    for length in lengths:
        values.append(content[position : position + length])
        position += length
    return values


def _listed(tensor: Any) -> Any:
    """The values in the list of their type."""
    field, listed_as = VALUE_FIELDS[tensor.dtype]
    listed = getattr(tensor, field)
    if tensor.dtype == STRING:
        return list(listed)
    values = np.array(listed, listed_as)
    made = numpy_dtype(tensor.dtype)
    if field == "half_val":
        return values.astype(np.uint16).view(made)
    if made.kind == "c":
        return values[: len(values) // 2 * 2].view(made)
    return values.astype(made, copy=False)
