# SPDX-License-Identifier: Apache-2.0
"""Which version, which signatures, which operations: read from files that these tests write themselves."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format

from headrace import proto
from headrace.errors import FailedPrecondition, HeadraceError, InvalidArgument, NotFound, PermissionDenied
from headrace.saved_model import check_readable, find_version, read_graph, version_number

# A graph that calls a function, which calls another; `x` is fed and `y` fetched.
CALLS = """
meta_info_def {
  tags: "serve" tensorflow_version: "2.21.0"
  stripped_op_list {
    op { name: "Placeholder" } op { name: "Add" } op { name: "Mul" } op { name: "NoOp" } op { name: "StatelessIf" }
    op { name: "StatefulPartitionedCall" is_stateful: true } op { name: "VarHandleOp" is_stateful: true }
    op { name: "ReadVariableOp" is_stateful: true } op { name: "RandomUniform" is_stateful: true }
    op { name: "EagerPyFunc" is_stateful: true } op { name: "AssignAddVariableOp" is_stateful: true }
  }
}
graph_def {
  node { name: "x" op: "Placeholder" }
  node { name: "v" op: "VarHandleOp" }
  node { name: "call" op: "StatefulPartitionedCall" input: "x" input: "v" input: "^before"
         attr { key: "f" value { func { name: "outer" } } } attr { key: "Tin" value { } } }
  node { name: "before" op: "NoOp" }
  node { name: "branch" op: "StatelessIf" input: "call:1"
         attr { key: "branches" value { list { func { name: "inner" } func { name: "random" } } } } }
  node { name: "bump" op: "AssignAddVariableOp" input: "v" }
  node { name: "plus" op: "Add" input: "call" input: "call" }
  node { name: "odd" op: "Undescribed" input: "x" }
  node { name: "old" op: "inner" input: "x" }
  library {
    function { signature { name: "outer" }
      node_def { name: "read" op: "ReadVariableOp" }
      node_def { name: "c" op: "StatefulPartitionedCall" attr { key: "f" value { func { name: "inner" } } } } }
    function { signature { name: "inner" } node_def { name: "m" op: "Mul" }
      node_def { name: "again" op: "StatefulPartitionedCall" attr { key: "f" value { func { name: "outer" } } } } }
    function { signature { name: "random" } node_def { name: "r" op: "RandomUniform" } }
    function { signature { name: "python" } node_def { name: "p" op: "EagerPyFunc" } }
  }
}
"""

PLUS = 'name: "plus:0"'
FLOATS = "dtype: DT_FLOAT tensor_shape { dim { size: -1 } dim { size: 3 } }"


def signature_text(name: str, output: str = PLUS, info: str = FLOATS) -> str:
    return f"""signature_def {{ key: "{name}" value {{
      inputs {{ key: "x" value {{ name: "x:0" {FLOATS} }} }}
      outputs {{ key: "y" value {{ {output} {info} }} }} }} }}"""


def write(directory: Path, *meta_graphs: str, text: bool = False) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    saved_model = proto.message_class("tensorflow.SavedModel")(saved_model_schema_version=1)
    for meta_graph in meta_graphs:
        text_format.Parse(meta_graph, saved_model.meta_graphs.add())
    if text:
        (directory / "saved_model.pbtxt").write_text(text_format.MessageToString(saved_model) + "unheard_of: 3\n")
    else:
        (directory / "saved_model.pb").write_bytes(saved_model.SerializeToString())
    return directory


@pytest.fixture(name="calls")
def written_calls(tmp_path: Path) -> Path:
    outputs = {"serving_default": "plus:0", "branch": "branch:0", "bump": "bump", "odd": "odd:0", "old": "old:0"}
    signatures = (signature_text(name, f'name: "{output}"') for name, output in outputs.items())
    return write(tmp_path / "calls" / "1", CALLS + "".join(signatures))


def message(expected: type[HeadraceError], call: Callable[[], Any]) -> str:
    with pytest.raises(expected) as caught:
        call()
    return caught.value.message


# --- versions ---------------------------------------------------------------------------------------------------------


def test_the_highest_numbered_version_is_taken(tmp_path: Path) -> None:
    for version in ("2", "00000123", "99", "tmp-500", "-7", "1e3", str(1 << 63)):
        write(tmp_path / "digits" / version, CALLS)
    found = find_version(tmp_path / "digits")
    assert (found.name, found.version, found.directory.name) == ("digits", 123, "00000123")


def test_a_version_directory_can_be_named_itself(tmp_path: Path) -> None:
    write(tmp_path / "digits" / "7", CALLS)
    found = find_version(tmp_path / "digits" / "7")
    assert (found.name, found.version) == ("digits", 7)
    assert find_version(str(tmp_path / "digits" / "7") + "/", "other").name == "other"


def test_a_saved_model_without_a_number_is_version_1(tmp_path: Path) -> None:
    found = find_version(write(tmp_path / "digits", CALLS))
    assert (found.name, found.version) == ("digits", 1)


def test_a_relative_path_is_named_after_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "digits" / "1", CALLS)
    monkeypatch.chdir(tmp_path / "digits")
    assert find_version(".").name == "digits"


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("1", 1),
        ("00000123", 123),
        (str((1 << 63) - 1), (1 << 63) - 1),
        (str(1 << 63), None),
        ("-1", None),
        ("+1", None),
        ("1_0", None),
        ("1.0", None),
        ("\u0661", None),
        ("", None),
    ],
)
def test_a_version_is_what_reads_as_a_64_bit_integer(name: str, version: int | None) -> None:
    assert version_number(name) == version


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    assert message(NotFound, lambda: find_version(tmp_path / "none")) == f"{tmp_path}/none: no such directory"


def test_a_file_is_no_model_directory(tmp_path: Path) -> None:
    path = write(tmp_path, CALLS) / "saved_model.pb"
    assert message(InvalidArgument, lambda: find_version(path)).startswith(f"{path}: not a directory")


def test_a_directory_without_a_model_says_what_was_looked_for(tmp_path: Path) -> None:
    (tmp_path / "variables").mkdir()
    text = message(NotFound, lambda: find_version(tmp_path))
    assert text == f"{tmp_path}: neither saved_model.pb nor a numbered version directory in it"


def test_a_version_without_a_model_says_which(tmp_path: Path) -> None:
    (tmp_path / "3").mkdir()
    assert message(NotFound, lambda: find_version(tmp_path)) == f"{tmp_path}/3: no saved_model.pb in it"


# --- permissions ------------------------------------------------------------------------------------------------------


@pytest.fixture
def unprivileged() -> Iterator[int]:
    """Runs the test as a user that permissions apply to; gives its id."""
    if os.geteuid() != 0:
        yield os.geteuid()
        return
    nobody = 65534
    os.seteuid(nobody)
    yield nobody
    os.seteuid(0)


@pytest.fixture
def open_path(tmp_path: Path) -> Path:
    """tmp_path, which everybody may enter."""
    for directory in (tmp_path, *tmp_path.parents[:2]):
        directory.chmod(0o755)
    return tmp_path


def test_an_unreadable_directory_names_the_user_and_what_is_needed(
    open_path: Path, request: pytest.FixtureRequest
) -> None:
    digits = open_path / "digits"
    write(digits / "1", CALLS)
    digits.chmod(0o000)
    uid = request.getfixturevalue("unprivileged")
    text = message(PermissionDenied, lambda: find_version(digits))
    assert text == f"{digits}: permission denied for uid {uid}; needs read and execute"
    text = message(PermissionDenied, lambda: find_version(digits / "1"))
    assert text == f"{digits}: permission denied for uid {uid}; needs execute"


def test_a_directory_that_can_be_listed_but_not_entered_is_unreadable(
    open_path: Path, request: pytest.FixtureRequest
) -> None:
    version = write(open_path / "digits" / "1", CALLS)
    version.chmod(0o644)
    uid = request.getfixturevalue("unprivileged")
    text = message(PermissionDenied, lambda: find_version(open_path / "digits"))
    assert text == f"{version}: permission denied for uid {uid}; needs read and execute"


def test_an_unreadable_file_of_variables_is_named(open_path: Path, request: pytest.FixtureRequest) -> None:
    version = write(open_path / "1", CALLS)
    variables = version / "variables"
    variables.mkdir()
    (variables / "variables.index").write_bytes(b"")
    check_readable(version)
    (variables / "variables.index").chmod(0o000)
    uid = request.getfixturevalue("unprivileged")
    text = message(PermissionDenied, lambda: read_graph(version))
    assert text == f"{variables}/variables.index: permission denied for uid {uid}; needs read"


# --- graphs -----------------------------------------------------------------------------------------------------------


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, CALLS) / "saved_model.pb"
    path.write_bytes(path.read_bytes()[:-5])
    assert message(FailedPrecondition, lambda: read_graph(tmp_path)) == f"{path}: broken, it holds no SavedModel"
    path.write_bytes(b"")
    assert message(FailedPrecondition, lambda: read_graph(tmp_path)) == f"{path}: broken, it holds no graph"


def test_a_model_in_text_is_read_as_well(tmp_path: Path) -> None:
    write(tmp_path, CALLS + signature_text("serving_default"), text=True)
    served, _ = read_graph(tmp_path).signatures()
    assert [signature.name for signature in served] == ["serving_default"]
    (tmp_path / "saved_model.pbtxt").write_text("meta_graphs {")
    assert message(FailedPrecondition, lambda: read_graph(tmp_path)).endswith("broken, it holds no SavedModel")


def test_only_the_graph_for_serving_is_taken(tmp_path: Path) -> None:
    train = CALLS.replace('tags: "serve"', 'tags: "serve" tags: "train"') + signature_text("trained")
    write(tmp_path, train, CALLS + signature_text("served"))
    served, _ = read_graph(tmp_path).signatures()
    assert [signature.name for signature in served] == ["served"]
    write(tmp_path, train)
    text = message(NotFound, lambda: read_graph(tmp_path))
    assert text.endswith('saved_model.pb: no graph has the tag "serve" alone; there is "serve,train"')


def test_signatures_have_sorted_names_and_open_dimensions(tmp_path: Path) -> None:
    signature = """signature_def { key: "f" value {
      inputs { key: "z" value { name: "x:0" dtype: DT_STRING tensor_shape { unknown_rank: true } } }
      inputs { key: "a" value { name: "v:0" dtype: DT_HALF tensor_shape { } } }
      outputs { key: "y" value { name: "call:1" dtype: DT_BFLOAT16 tensor_shape { dim { size: -1 } dim { size: 5 } } } }
      outputs { key: "b" value { name: "plus" dtype: 101 } } } }"""
    write(tmp_path, CALLS + signature)
    [served], _ = read_graph(tmp_path).signatures()
    inputs = [(spec.name, spec.dtype, spec.shape, spec.tensor_name) for spec in served.inputs]
    outputs = [(spec.name, spec.dtype, spec.shape, spec.tensor_name) for spec in served.outputs]
    assert inputs == [("a", 19, [], "v:0"), ("z", 7, None, "x:0")]
    assert outputs == [("b", 1, None, "plus"), ("y", 14, [-1, 5], "call:1")]


def test_serving_default_comes_first_and_tensorflows_own_are_left_out(tmp_path: Path) -> None:
    names = ("__saved_model_init_op", "b", "serving_default", "a")
    write(tmp_path, CALLS + "".join(map(signature_text, names)))
    served, unserved = read_graph(tmp_path).signatures()
    assert [signature.name for signature in served] == ["serving_default", "a", "b"]
    assert unserved == []


def test_signatures_are_told_as_the_model_has_them_served_or_not(tmp_path: Path) -> None:
    odd = 'coo_sparse { values_tensor_name: "v:0" }'
    texts = [signature_text("f"), signature_text("sparse", odd), signature_text("__saved_model_init_op")]
    graph = read_graph(write(tmp_path / "m" / "1", CALLS + "".join(texts)))
    told = proto.message_class("tensorflow.serving.SignatureDefMap").FromString(graph.signature_defs())
    written = text_format.Parse("".join(texts), proto.message_class("tensorflow.MetaGraphDef")())
    assert dict(told.signature_def) == dict(written.signature_def)


@pytest.mark.parametrize(
    ("info", "why"),
    [
        (f"{PLUS} dtype: DT_RESOURCE", 'output "y" is of type resource'),
        (f"{PLUS} dtype: DT_VARIANT", 'output "y" is of type variant'),
        (f"{PLUS} dtype: DT_QINT8", 'output "y" is of type qint8'),
        (f"{PLUS} dtype: 99", 'output "y" is of type 99'),
        ("dtype: DT_FLOAT coo_sparse { }", 'output "y" is not one dense tensor'),
        ("dtype: DT_FLOAT composite_tensor { }", 'output "y" is not one dense tensor'),
    ],
)
def test_a_signature_of_other_than_dense_known_tensors_is_not_served(tmp_path: Path, info: str, why: str) -> None:
    write(tmp_path, CALLS + signature_text("good") + signature_text("bad", "", info))
    served, unserved = read_graph(tmp_path).signatures()
    assert [signature.name for signature in served] == ["good"]
    assert [(other.name, other.why) for other in unserved] == [("bad", why)]


def found_ops(directory: Path, name: str) -> tuple[frozenset[str], list[str]]:
    graph = read_graph(directory)
    served, _ = graph.signatures()
    ops = graph.reachable_ops(next(signature for signature in served if signature.name == name))
    return ops, graph.stateful(ops)


def test_operations_of_called_functions_are_reached_and_others_are_not(calls: Path) -> None:
    ops, stateful = found_ops(calls, "serving_default")
    assert ops == {"Add", "StatefulPartitionedCall", "VarHandleOp", "NoOp", "ReadVariableOp", "Mul"}
    assert stateful == []


def test_functions_in_a_list_are_reached(calls: Path) -> None:
    ops, stateful = found_ops(calls, "branch")
    assert "RandomUniform" in ops
    assert stateful == ["RandomUniform"]


def test_what_lies_behind_a_fed_tensor_is_not_reached(calls: Path) -> None:
    assert "Placeholder" not in found_ops(calls, "odd")[0]


def test_an_assignment_is_stateful(calls: Path) -> None:
    assert found_ops(calls, "bump")[1] == ["AssignAddVariableOp"]


def test_an_operation_that_the_model_does_not_describe_counts_as_stateful(calls: Path) -> None:
    assert found_ops(calls, "odd")[1] == ["Undescribed"]


def test_a_function_called_as_an_operation_is_looked_into(calls: Path) -> None:
    ops, stateful = found_ops(calls, "old")
    assert {"inner", "Mul", "ReadVariableOp"} <= ops
    assert stateful == []
