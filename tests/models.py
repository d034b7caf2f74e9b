# SPDX-License-Identifier: Apache-2.0
"""Small SavedModels for the tests, made in a process of their own: models.py ROOT [NAME...] writes ROOT/NAME/1."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

DTYPES = [
    "float32",
    "float64",
    "int32",
    "uint8",
    "int16",
    "int8",
    "string",
    "complex64",
    "int64",
    "bool",
    "bfloat16",
    "uint16",
    "complex128",
    "float16",
    "uint32",
    "uint64",
]

MAKERS: dict[str, Callable[[Path], None]] = {}


def maker(make_one: Callable[[Path], None]) -> Callable[[Path], None]:
    MAKERS[make_one.__name__] = make_one
    return make_one


def save(
    directory: Path, functions: dict[str, tuple[Callable[..., Any], dict[str, tuple[Any, Any]]]], **parts: Any
) -> None:
    """Exports functions as signatures: name -> (function, {input: (shape, dtype)}); `parts` are kept beside them."""
    import tensorflow as tf

    module = tf.Module()
    for name, part in parts.items():
        setattr(module, name, part)
    signatures = {}
    for name, (function, inputs) in functions.items():
        specs = {key: tf.TensorSpec(shape, dtype, name=key) for key, (shape, dtype) in inputs.items()}
        signatures[name] = tf.function(function).get_concrete_function(**specs)
    tf.saved_model.save(module, str(directory), signatures=signatures)


@maker
def half_plus_two(directory: Path) -> None:
    save(directory, {"serving_default": (lambda x: {"y": x * 0.5 + 2.0}, {"x": ([None], "float32")})})


@maker
def dense(directory: Path) -> None:
    """64-32-10 with weights in variables."""
    import tensorflow as tf

    w = [tf.Variable(tf.random.stateless_normal([a, b], [1, a]) * a**-0.5) for a, b in ((64, 32), (32, 10))]

    def call(x: Any) -> Any:
        return {"y": tf.nn.softmax(tf.nn.relu(x @ w[0]) @ w[1])}

    save(directory, {"serving_default": (call, {"x": ([None, 64], "float32")})}, w=w)


@maker
def digits(directory: Path) -> None:
    """What `headrace demo` calls its model, with inputs and outputs of the same names."""
    import tensorflow as tf

    w = tf.Variable(tf.random.stateless_normal([64, 10], [1, 2]))

    def call(x: Any) -> Any:
        scores = x @ w
        return {"class": tf.argmax(scores, axis=1), "probabilities": tf.nn.softmax(scores)}

    save(directory, {"serving_default": (call, {"x": ([None, 64], "float32")})}, w=w)


@maker
def dtypes(directory: Path) -> None:
    """One signature per dtype that puts its input beside itself."""
    import tensorflow as tf

    def twice(x: Any) -> Any:
        return {"y": tf.stack([x, x], axis=1)}

    save(directory, {dtype: (twice, {"x": ([None, 3], dtype)}) for dtype in DTYPES})


@maker
def tf1(directory: Path) -> None:
    """A TensorFlow 1 export: y = x * w, and `same`, which is the fed tensor itself."""
    import tensorflow as tf

    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, [None, 2], name="x")
        w = v1.get_variable("w", initializer=tf.constant([2.0, 3.0]), use_resource=False)
        y = x * w
        session.run(v1.global_variables_initializer())
        v1.saved_model.simple_save(session, str(directory), {"x": x}, {"y": y, "same": x, "again": y})


@maker
def python_function(directory: Path) -> None:
    import tensorflow as tf

    def call(x: Any) -> Any:
        return {"y": tf.ensure_shape(tf.numpy_function(lambda a: a + 1, [x], tf.float32), [None])}

    save(directory, {"serving_default": (call, {"x": ([None], "float32")})})


@maker
def wide(directory: Path) -> None:
    """Sixteen branches that could run at a time."""
    import tensorflow as tf

    w = tf.Variable(tf.random.stateless_normal([16, 192, 192], [1, 2]) * 0.05)

    def call(x: Any) -> Any:
        branches = []
        for i in range(16):
            y = x
            for _ in range(4):
                y = tf.tanh(y @ w[i])
            branches.append(y)
        return {"y": tf.add_n(branches)}

    save(directory, {"serving_default": (call, {"x": ([None, 192], "float32")})}, w=w)


@maker
def aliases(directory: Path) -> None:
    """Outputs that are the memory of their input."""
    import tensorflow as tf

    kept = tf.Variable(tf.zeros([0, 4]), shape=[None, 4])

    def assign(x: Any) -> Any:
        before = tf.identity(kept)
        with tf.control_dependencies([before]):
            kept.assign(x)
        return {"before": before}

    rows = {"x": ([None, 4], "float32")}
    save(
        directory,
        {
            "serving_default": (lambda x: {"y": tf.identity(x)}, rows),
            "reshape": (lambda x: {"y": tf.reshape(x, [-1, 2, 2])}, rows),
            "slice": (lambda x: {"y": x[:1]}, rows),
            "assign": (assign, rows),
            "kept": (lambda: {"kept": tf.identity(kept)}, {}),
        },
        kept=kept,
    )


@maker
def unbatchable(directory: Path) -> None:
    """One signature for each reason why requests must not, or may, share a batch."""
    import tensorflow as tf

    counter = tf.Variable(0.0)
    rows = {"x": ([None, 4], "float32")}

    def probe_refused(x: Any) -> Any:
        return {"y": tf.ensure_shape(x, [None, 5]) * 2.0}

    def dropout(x: Any) -> Any:
        return {"y": tf.nn.dropout(x, 0.5)}

    save(
        directory,
        {
            "serving_default": (lambda x: {"y": x * 2.0}, rows),
            "counter": (lambda x: {"y": x + counter.assign_add(1.0)}, rows),
            "dropout": (dropout, rows),
            "mean": (lambda x: {"y": x - tf.reduce_mean(x, axis=0)}, rows),
            "total": (lambda x: {"y": tf.reduce_sum(x)}, rows),
            "flat": (lambda x: {"y": tf.reshape(x, [-1])}, rows),
            "probe_refused": (probe_refused, {"x": ([None, None], "float32")}),
            "scalar": (lambda x, k: {"y": x * k}, {**rows, "k": ([], "float32")}),
            "nothing": (lambda: {"y": tf.constant([1.0, 2.0])}, {}),
            "fixed": (lambda x: {"y": x * 2.0}, {"x": ([2, 4], "float32")}),
        },
        counter=counter,
    )


@maker
def several(directory: Path) -> None:
    """Several inputs and outputs, strings, a table, an output under two names, and rows that make the model fail."""
    import tensorflow as tf

    table = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(["cat", "dog"], tf.constant([1, 2], tf.int64)), default_value=-1
    )

    def texts(a: Any, b: Any) -> Any:
        joined = tf.strings.join([a, b], "-")
        return {"joined": joined, "same": joined, "bytes": tf.strings.length(joined)}

    def gather(i: Any) -> Any:
        return {"y": tf.gather(tf.constant([10.0, 20.0, 30.0]), i)}

    strings = {"a": ([None], "string"), "b": ([None], "string")}
    save(
        directory,
        {
            "serving_default": (
                lambda x, n: {"sum": x + tf.cast(n, tf.float32), "n": n + 1},
                {"x": ([None], "float32"), "n": ([None], "int64")},
            ),
            "texts": (texts, strings),
            "lookup": (lambda word: {"id": table.lookup(word)}, {"word": ([None], "string")}),
            "gather": (gather, {"i": ([None], "int32")}),
        },
        table=table,
    )


def main(arguments: Sequence[str]) -> None:
    root, *names = arguments
    for name in names or MAKERS:
        MAKERS[name](Path(root, name, "1"))


if __name__ == "__main__":
    main(sys.argv[1:])
