# SPDX-License-Identifier: Apache-2.0
"""SavedModels through TensorFlow's C API: what loads, what is refused, and that the answers are TensorFlow's."""

from __future__ import annotations

import importlib.util
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from headrace import _core, model, proto
from headrace.config import BatchingOptions
from headrace.engine import Engine
from headrace.errors import Code, FailedPrecondition, HeadraceError, InvalidArgument
from headrace.model import LoadedModel
from headrace.recorded import WARMUP_FILE
from headrace.tensor_proto import SERVED_DTYPES
from tests.models import DTYPES

ANSWER_S = 30.0

Lanes = dict[str, _core.Lane]
Arrays = dict[str, NDArray[Any]]


@pytest.fixture(scope="module", name="load")
def cached_load(saved_models: Path) -> Callable[[str], LoadedModel]:
    """load(name): a model of tests/models.py, loaded once."""

    @cache
    def load(name: str) -> LoadedModel:
        return model.load(saved_models / name, warm_up_seconds=0.1)

    return load


@pytest.fixture(name="serve")
def serving(load: Callable[[str], LoadedModel]) -> Iterator[Callable[..., Lanes]]:
    """serve(name, **batching options): the lanes of a model, by signature."""
    engine = Engine()

    def serve(name: str, **options: Any) -> Lanes:
        engine.add(load(name), BatchingOptions(**options))
        return {key.partition("/")[2]: lane for key, lane in engine.lanes() if key.startswith(f"{name}/")}

    yield serve
    assert engine.close(ANSWER_S)


def answer(lane: _core.Lane, **inputs: NDArray[Any]) -> Arrays:
    reply = lane.submit(inputs, ANSWER_S)
    assert reply.wait(ANSWER_S)
    return reply.outputs()


def run_python(script: str, *arguments: str) -> str:
    """The output of a script in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# --- answers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_arrives_as_it_left(serve: Callable[..., Lanes], dtype: str) -> None:
    lane = serve("dtypes")[dtype]
    if dtype == "string":
        x = np.asarray([[b"", b"a\0b", b"x" * 100], [b"\xff", "é".encode(), b"0123456789012345678901234"]], object)
    else:
        x = np.asarray([[0, 1, 2], [100, 77, 3]]).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    y = answer(lane, x=x)["y"]
    assert y.dtype == x.dtype
    assert y.shape == (2, 2, 3)
    assert (y == np.stack([x, x], axis=1)).all()


def test_a_model_has_a_signature_for_every_dtype_that_is_served(load: Callable[[str], LoadedModel]) -> None:
    dtypes = {found.signature.inputs[0].dtype for found in load("dtypes").signatures.values()}
    assert dtypes == set(SERVED_DTYPES)


def test_a_tensorflow_1_export_is_served(serve: Callable[..., Lanes]) -> None:
    x = np.asarray([[1, 2], [3, 4]], np.float32)
    outputs = answer(serve("tf1")["serving_default"], x=x)
    assert outputs["y"].tolist() == [[2, 6], [6, 12]]
    assert outputs["same"].tolist() == x.tolist()  # the fed tensor itself
    assert outputs["again"].tolist() == outputs["y"].tolist()  # one tensor under two names


def test_a_tensorflow_2_export_with_variables_is_served(serve: Callable[..., Lanes]) -> None:
    x = np.random.default_rng(1).random((5, 64), np.float32)
    y = answer(serve("dense")["serving_default"], x=x)["y"]
    assert y.shape == (5, 10)
    np.testing.assert_allclose(y.sum(axis=1), 1.0, rtol=1e-5)


def test_several_inputs_and_outputs_keep_their_names(serve: Callable[..., Lanes]) -> None:
    outputs = answer(
        serve("several")["serving_default"], n=np.asarray([10, 20], np.int64), x=np.asarray([0.5, 0.25], np.float32)
    )
    assert outputs["sum"].tolist() == [10.5, 20.25]
    assert outputs["n"].tolist() == [11, 21]


def test_strings_and_tables_are_served(serve: Callable[..., Lanes]) -> None:
    lanes = serve("several")
    outputs = answer(lanes["texts"], a=np.asarray([b"a", b"\xff\0"], object), b=np.asarray([b"", b"long" * 20], object))
    assert outputs["joined"].tolist() == [b"a-", b"\xff\0-" + b"long" * 20]
    assert outputs["same"].tolist() == outputs["joined"].tolist()
    assert outputs["bytes"].tolist() == [2, 83]
    words = np.asarray([b"dog", b"bird", b"cat"], object)
    assert answer(lanes["lookup"], word=words)["id"].tolist() == [2, -1, 1]


def test_a_signature_without_inputs_is_answered(serve: Callable[..., Lanes]) -> None:
    assert answer(serve("unbatchable")["nothing"])["y"].tolist() == [1.0, 2.0]


def test_a_scalar_input_is_answered(serve: Callable[..., Lanes]) -> None:
    lane = serve("unbatchable")["scalar"]
    outputs = answer(lane, x=np.ones((2, 4), np.float32), k=np.asarray(3, np.float32))
    assert outputs["y"].tolist() == [[3.0] * 4] * 2


def test_a_run_that_fails_answers_with_tensorflows_code_and_message_and_the_next_one_works(
    serve: Callable[..., Lanes],
) -> None:
    lane = serve("several")["gather"]
    with pytest.raises(_core.StatusError, match=r"indices\[0\] = 9 is not in \[0, 3\)") as caught:
        answer(lane, i=np.asarray([9], np.int32))
    assert caught.value.code == Code.INVALID_ARGUMENT
    assert answer(lane, i=np.asarray([2, 0], np.int32))["y"].tolist() == [30.0, 10.0]


# --- memory that TensorFlow shares ------------------------------------------------------------------------------------


@pytest.mark.parametrize("signature", ["serving_default", "reshape", "slice"])
def test_outputs_that_are_their_inputs_memory_survive_the_reuse_of_slabs(
    serve: Callable[..., Lanes], signature: str
) -> None:
    lane = serve("aliases", num_batch_threads=3, max_batch_size=16)[signature]
    sent = [np.full((1 + i % 5, 4), i, np.float32) for i in range(600)]
    replies = [lane.submit({"x": x}, ANSWER_S) for x in sent]
    for x, reply in zip(sent, replies, strict=True):
        assert reply.wait(ANSWER_S)
        y = reply.outputs()["y"]
        assert len(y) == (1 if signature == "slice" else len(x))
        assert (y == x[0, 0]).all()


def test_a_buffer_that_a_variable_adopted_is_not_reused(serve: Callable[..., Lanes]) -> None:
    lanes = serve("aliases")
    last: list[list[float]] = answer(lanes["kept"])["kept"].tolist()
    for i in range(50):
        x = np.full((3, 4), i, np.float32)
        assert answer(lanes["assign"], x=x)["before"].tolist() == last
        last = x.tolist()
        answer(lanes["serving_default"], x=-x)
        assert answer(lanes["kept"])["kept"].tolist() == last


# --- what loading finds out -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("signature", "batched", "why"),
    [
        ("serving_default", True, "rows alone and together agree"),
        ("counter", False, "stateful: AssignAddVariableOp"),
        ("dropout", False, "stateful: RandomUniform"),
        ("mean", False, 'output "y" of a row changes with the rows beside it'),
        ("total", False, 'output "y" has no batch dimension: []'),
        ("flat", False, 'output "y" has no batch dimension: [12] for 3 rows'),
        ("probe_refused", True, "not probed: Shape of tensor"),
        ("scalar", False, 'input "k" has no batch dimension: []'),
        ("nothing", False, "it has no inputs"),
        ("fixed", False, 'input "x" has no batch dimension: [2,4]'),
    ],
)
def test_what_must_not_be_batched_is_found_at_load(
    load: Callable[[str], LoadedModel], signature: str, batched: bool, why: str
) -> None:
    found = load("unbatchable").signatures[signature]
    assert found.batched == batched
    assert found.why.startswith(why)
    [line] = [line for line in load("unbatchable").log_lines if line.startswith(f"unbatchable/{signature}:")]
    assert why in line


@pytest.mark.parametrize("name", ["half_plus_two", "dense", "tf1", "several"])
def test_ordinary_models_are_batched(load: Callable[[str], LoadedModel], name: str) -> None:
    assert all(found.batched for found in load(name).signatures.values())


def test_requests_that_the_model_brings_along_are_probed_in_place_of_made_up_rows(
    saved_models: Path, tmp_path: Path
) -> None:
    shutil.copytree(saved_models / "unbatchable", tmp_path / "m")
    path = tmp_path / "m" / "1" / WARMUP_FILE
    path.parent.mkdir()
    log = proto.message_class("tensorflow.serving.PredictionLog")()
    log.predict_log.request.model_spec.signature_name = "probe_refused"
    x = log.predict_log.request.inputs["x"]
    x.dtype = 1
    x.tensor_shape.dim.add(size=2)
    x.tensor_shape.dim.add(size=5)
    x.float_val.extend(range(10))
    record = log.SerializeToString()
    assert len(record) == 82
    path.write_bytes(struct.pack("<QI", 82, 0xB707EB25) + record + bytes(4))  # TFRecord, with the length's checksum
    found = model.load(tmp_path / "m", warm_up_seconds=0).signatures["probe_refused"]
    assert found.batched
    assert found.why == "rows alone and together agree"


def test_loading_changes_no_state_of_the_model(serve: Callable[..., Lanes]) -> None:
    assert answer(serve("unbatchable")["counter"], x=np.zeros((1, 4), np.float32))["y"].tolist() == [[1.0] * 4]


def test_batching_can_be_enabled_against_the_findings(saved_models: Path) -> None:
    loaded = model.load(saved_models / "unbatchable", enable_batching_for=["mean"], warm_up_seconds=0)
    assert loaded.signatures["mean"].batched
    assert loaded.signatures["mean"].why.startswith("enable_batching_for was set, though output")
    assert not loaded.signatures["counter"].batched
    with pytest.raises(InvalidArgument, match=r'"median", which is none of its signatures'):
        model.load(saved_models / "unbatchable", enable_batching_for=["median"])


def test_a_graph_that_calls_python_is_refused(saved_models: Path) -> None:
    with pytest.raises(FailedPrecondition) as caught:
        model.load(saved_models / "python_function")
    assert caught.value.message.startswith(
        f'{saved_models}/python_function/1: signature "serving_default" calls back into Python (PyFunc'
    )


def test_the_pool_of_a_wide_graph_is_chosen_by_measurement(load: Callable[[str], LoadedModel]) -> None:
    text = load("wide").signatures["serving_default"].warm_up
    assert re.search(r"operations run in (the executor's thread|TensorFlow's pool) \(\d+ against \d+ us at 1", text)


def test_a_configured_pool_is_used_as_it_is(saved_models: Path) -> None:
    loaded = model.load(saved_models / "half_plus_two", inter_op_parallelism=2, intra_op_parallelism=1)
    assert loaded.signatures["serving_default"].warm_up.endswith("operations run in TensorFlow's pool (as configured)")


def test_warming_stops_when_its_time_is_up(saved_models: Path) -> None:
    loaded = model.load(saved_models / "dense", max_batch_size=512, warm_up_seconds=0)
    text = loaded.signatures["serving_default"].warm_up
    assert text.startswith("warmed with 1 rows in")
    assert "out of time for 8, 64, 512" in text


def test_warming_runs_the_sizes_up_to_the_largest(saved_models: Path) -> None:
    loaded = model.load(saved_models / "dense", max_batch_size=100, warm_up_seconds=60)
    assert loaded.signatures["serving_default"].warm_up.startswith("warmed with 1, 8, 64, 100 rows in")


def test_a_loaded_model_says_what_it_is(load: Callable[[str], LoadedModel], saved_models: Path) -> None:
    loaded = load("half_plus_two")
    assert (loaded.name, loaded.version, loaded.path) == ("half_plus_two", 1, saved_models / "half_plus_two" / "1")
    assert "CPU:0" in loaded.devices
    assert loaded.log_lines[0].startswith(f"half_plus_two version 1: {loaded.path}, TensorFlow 2.")
    if loaded.gpu:
        assert loaded.log_lines[1].startswith("running on GPU:0")
    else:
        assert loaded.pinner is None
        assert re.fullmatch(r"no GPU found: running on CPU \(.+\)", loaded.log_lines[1])


# --- errors -----------------------------------------------------------------------------------------------------------


def one_line(call: Callable[[], Any]) -> HeadraceError:
    with pytest.raises(HeadraceError) as caught:
        call()
    assert "\n" not in caught.value.message
    return caught.value


def test_damaged_variables_are_one_line(saved_models: Path, tmp_path: Path) -> None:
    broken = tmp_path / "dense"
    shutil.copytree(saved_models / "dense", broken)
    (broken / "1" / "variables" / "variables.index").write_bytes(b"nothing of the kind")
    error = one_line(lambda: model.load(broken))
    assert error.message.startswith(f"{broken}/1: TensorFlow cannot load it: ")


def test_a_model_that_was_copied_without_its_variables_is_one_line(saved_models: Path, tmp_path: Path) -> None:
    broken = tmp_path / "dense"
    shutil.copytree(saved_models / "dense", broken, ignore=shutil.ignore_patterns("variables"))
    text = f"{broken}/1: broken, variables/variables.index is missing; copy the whole directory"
    assert one_line(lambda: model.load(broken)).message == text


def test_a_missing_tensorflow_prints_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    error = one_line(model.library_path)
    assert error.code == Code.FAILED_PRECONDITION
    assert error.message == "TensorFlow is not installed; install it with: pip install tensorflow"


def test_a_tensorflow_without_its_library_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "tensorflow").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    assert one_line(model.library_path).message.startswith(f"no libtensorflow_cc.so.2 in {tmp_path}/tensorflow; ")


def test_a_library_that_is_not_tensorflow_is_named() -> None:
    with pytest.raises(_core.StatusError, match="TensorFlow cannot be loaded: /no/such/library") as caught:
        _core.TensorFlow("/no/such/library.so")
    assert caught.value.code == Code.FAILED_PRECONDITION
    with pytest.raises(_core.StatusError, match=r"libm\.so\.6 has no function TF_Version"):
        _core.TensorFlow("libm.so.6")


def test_a_session_checks_what_it_is_asked_for(saved_models: Path) -> None:
    tensorflow = _core.TensorFlow(str(model.library_path()))
    session = tensorflow.load_saved_model(str(saved_models / "tf1" / "1"), ["serve"], b"")
    assert session.run({"x:0": np.ones((1, 2), np.float32)}, ["mul:0"])[0].tolist() == [[2.0, 3.0]]
    with pytest.raises(_core.StatusError, match='the graph has no tensor "none:0"'):
        session.run({}, ["none:0"])
    with pytest.raises(_core.StatusError, match='the graph has no tensor "x:1"'):
        session.run({}, ["x:1"])
    with pytest.raises(_core.StatusError, match='"x:one" is no name of a tensor'):
        session.run({}, ["x:one"])
    with pytest.raises(_core.StatusError, match='feed "x:0": got float64, the signature wants float32'):
        session.run({"x:0": np.ones((1, 2))}, ["mul:0"])
    specs = [_core.TensorSpec("x", 3, [-1, 2], "x:0")], [_core.TensorSpec("y", 1, [-1, 2], "mul:0")]
    with pytest.raises(_core.StatusError, match='input "x": the signature says int32, the graph has float'):
        session.runner(_core.Signature("f", *specs))
    with pytest.raises(_core.StatusError, match="meta graph def matching supplied tags"):
        tensorflow.load_saved_model(str(saved_models / "tf1" / "1"), ["train"], b"")


# --- living in one process with others --------------------------------------------------------------------------------

SERVE_ONE = """
import sys
import numpy as np
def serve_one(directory):
    from headrace import model
    from headrace.config import BatchingOptions
    from headrace.engine import Engine
    engine = Engine()
    engine.add(model.load(directory), BatchingOptions())
    [(_, lane)] = engine.lanes()
    reply = lane.submit({"x": np.ones(3, np.float32)}, 30.0)
    assert reply.wait(30.0)
    assert reply.outputs()["y"].tolist() == [2.5, 2.5, 2.5]
    assert engine.close(30.0)
"""

ORDERS = {
    "never": """
serve_one(sys.argv[1])
assert "tensorflow" not in sys.modules
assert "_pywrap_tensorflow" not in open("/proc/self/maps").read()
""",
    "before": "import tensorflow as tf\nserve_one(sys.argv[1])\nassert tf.add(1, 1).numpy() == 2",
    "after": "serve_one(sys.argv[1])\nimport tensorflow as tf\nassert tf.add(1, 1).numpy() == 2\nserve_one(sys.argv[1])",
}


@pytest.mark.parametrize("order", ORDERS)
def test_tensorflow_may_be_imported_before_or_after_or_never(saved_models: Path, order: str) -> None:
    run_python(SERVE_ONE + ORDERS[order], str(saved_models / "half_plus_two"))


USE_PYTHONS_LIBRARIES = """
import hashlib, ssl, zlib
assert hashlib.sha256(b"x").hexdigest() == "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"
assert hashlib.md5(b"x").hexdigest() == "9dd4e461268c8034f5c8564e155c67a6"
context = ssl.create_default_context()
context.minimum_version = ssl.TLSVersion.TLSv1_2
incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
client = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
try:
    client.do_handshake()
except ssl.SSLWantReadError:
    pass
assert len(outgoing.read()) > 100
text = b"abc" * 10000
assert zlib.decompress(zlib.compress(text)) == text
print(ssl.OPENSSL_VERSION, zlib.ZLIB_RUNTIME_VERSION)
"""


def test_pythons_ssl_hashlib_and_zlib_stay_their_own_when_imported_after_a_model_was_loaded(
    saved_models: Path,
) -> None:
    loaded = run_python(
        SERVE_ONE + "assert '_ssl' not in sys.modules\nserve_one(sys.argv[1])\n" + USE_PYTHONS_LIBRARIES,
        str(saved_models / "half_plus_two"),
    )
    assert loaded == run_python(USE_PYTHONS_LIBRARIES)


COMPARE_EXECUTORS = """
import sys, warnings
from pathlib import Path
import numpy as np
from headrace import _core, model, proto
from headrace.config import BatchingOptions
from headrace.engine import Engine
from headrace.probe import equal, probe_rows, repeated

def answers(loaded, executor):
    engine = Engine()
    engine.add(loaded, BatchingOptions(), executor=executor)
    found = {}
    for name, lane in engine.lanes():
        rows = probe_rows(lane.signature)
        batch = repeated(rows, 5) if loaded.signatures[lane.signature.name].batched else rows[0]
        reply = lane.submit(batch, 60.0)
        assert reply.wait(60.0)
        try:
            found[name] = reply.outputs()
        except _core.StatusError as error:
            found[name] = (error.code, error.message.splitlines()[0])
    assert engine.close(60.0)
    return found

compared = 0
for directory in sys.argv[1:]:
    loaded = model.load(directory, warm_up_seconds=0)
    native = answers(loaded, "native")
    python = answers(loaded, "python")
    assert native.keys() == python.keys()
    for name in native:
        if "dropout" in name:
            continue
        compared += 1
        if isinstance(native[name], tuple):
            assert native[name] == python[name], (name, native[name], python[name])
            continue
        for output in native[name]:
            assert native[name][output].dtype == python[name][output].dtype, name
            assert equal(native[name][output], python[name][output]), name
print(compared)
"""


def test_the_native_and_the_python_executor_answer_the_same(saved_models: Path) -> None:
    names = ["half_plus_two", "dense", "dtypes", "tf1", "aliases", "unbatchable", "several", "wide"]
    compared = run_python(COMPARE_EXECUTORS, *(str(saved_models / name) for name in names))
    assert int(compared) == 38
