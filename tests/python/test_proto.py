# SPDX-License-Identifier: Apache-2.0
"""The messages are TensorFlow's and TensorFlow Serving's, byte for byte."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from headrace import proto

# Prints every field and enum value of the messages named on stdin, as TensorFlow's own modules have them; then
# round-trips one message of ours, to see that both live in one process.
THEIRS = """
import importlib, json, sys
from google.protobuf import descriptor_pool, symbol_database
for module in sys.argv[1:]:
    importlib.import_module(module)
pool = descriptor_pool.Default()
names = json.load(sys.stdin)
found = {}
for name in names["messages"]:
    try:
        message = pool.FindMessageTypeByName(name)
    except KeyError:
        continue
    found[name] = {
        field.name: [field.number, field.type, (field.message_type or field.enum_type).full_name
                     if field.message_type or field.enum_type else None,
                     field.has_presence, bool(field.containing_oneof)]
        for field in message.fields}
for name in names["enums"]:
    found[name] = {value.name: value.number for value in pool.FindEnumTypeByName(name).values}
from headrace import proto
ours = proto.message_class("tensorflow.ConfigProto")(intra_op_parallelism_threads=3)
theirs = pool.FindMessageTypeByName("tensorflow.ConfigProto")
assert ours.DESCRIPTOR is not theirs
json.dump(found, sys.stdout)
"""

MODULES = ["tensorflow.core.protobuf.saved_model_pb2", "tensorflow.core.protobuf.config_pb2"]
SERVING_MODULES = ["tensorflow_serving.apis.prediction_service_pb2", "tensorflow_serving.apis.prediction_log_pb2"]


def message_names() -> dict[str, list[str]]:
    names: list[str] = []

    def add(message: Any) -> None:
        if not message.GetOptions().map_entry:
            names.append(message.full_name)
        for nested in message.nested_types:
            add(nested)

    for file in ("tensor.proto", "saved_model.proto", "serving.proto"):
        for message in proto.pool().FindFileByName(file).message_types_by_name.values():
            add(message)
    return {"messages": names, "enums": ["tensorflow.DataType"]}


def their_fields(modules: list[str]) -> dict[str, dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-c", THEIRS, *modules],
        input=json.dumps(message_names()),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if "No module named 'tensorflow" in done.stderr:
        pytest.skip(done.stderr.splitlines()[-1])
    assert done.returncode == 0, done.stderr
    found: dict[str, dict[str, Any]] = json.loads(done.stdout)
    return found


def check_against(theirs: dict[str, dict[str, Any]], package: str) -> int:
    checked = 0
    for name in message_names()["messages"]:
        if name.rpartition(".")[0] != package and not name.startswith(f"{package}."):
            continue
        if name not in theirs:
            continue
        for field in proto.pool().FindMessageTypeByName(name).fields:
            kind = field.message_type or field.enum_type
            ours = [
                field.number,
                field.type,
                kind.full_name if kind else None,
                field.has_presence,
                bool(field.containing_oneof),
            ]
            assert ours == theirs[name][field.name], f"{name}.{field.name}"
            checked += 1
    return checked


def test_messages_have_tensorflows_names_numbers_and_types() -> None:
    theirs = their_fields(MODULES)
    assert check_against(theirs, "tensorflow") >= 60
    for value in proto.pool().FindEnumTypeByName("tensorflow.DataType").values:
        assert theirs["tensorflow.DataType"][value.name] == value.number


def test_messages_have_tensorflow_servings_names_numbers_and_types() -> None:
    assert check_against(their_fields([*MODULES, *SERVING_MODULES]), "tensorflow.serving") >= 16


def test_the_service_is_the_one_that_clients_call() -> None:
    service = proto.pool().FindServiceByName("tensorflow.serving.PredictionService")
    for name in ("Predict", "GetModelMetadata"):
        method = service.methods_by_name[name]
        assert method.input_type.full_name == f"tensorflow.serving.{name}Request"
        assert method.output_type.full_name == f"tensorflow.serving.{name}Response"


def test_a_message_class_is_made_once() -> None:
    assert proto.message_class("tensorflow.SavedModel") is proto.message_class("tensorflow.SavedModel")


def test_an_unknown_message_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        proto.message_class("tensorflow.NoSuchMessage")
