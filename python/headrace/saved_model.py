# SPDX-License-Identifier: Apache-2.0
"""A SavedModel as it lies on disk: which version, which signatures, which operations.  Reads files, runs nothing."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from google.protobuf import text_format
from google.protobuf.message import DecodeError

from headrace import _core, proto
from headrace.errors import FailedPrecondition, InvalidArgument, NotFound, PermissionDenied

SERVE_TAG = "serve"
SAVED_MODEL = ("saved_model.pb", "saved_model.pbtxt")

# Entries of signature_def that are not for clients: TensorFlow's own functions to initialize and train.
INTERNAL_SIGNATURE = re.compile(r"__saved_model_\w+")

# tensorflow.DataType's numbers without RESOURCE, VARIANT and the quantized types.
SERVED_DTYPES = frozenset((*range(1, 11), 14, 17, 18, 19, 22, 23))
REF_DTYPES = 100  # a reference to a float is 101

# Run Python in the process that exported the model, so never in a server.
PYTHON_OPS = frozenset(("PyFunc", "PyFuncStateless", "EagerPyFunc"))

# Stateful by their definition, yet a run leaves nothing behind that another run could see: reads of variables and
# tables, and calls.
READING_OPS = frozenset(
    (
        # variables
        "IsVariableInitialized",
        "ReadVariableOp",
        "ResourceGather",
        "ResourceGatherNd",
        "VarHandleOp",
        "VarIsInitializedOp",
        "Variable",
        "VariableShape",
        "VariableV2",
        # tables
        "AnonymousHashTable",
        "AnonymousMutableDenseHashTable",
        "AnonymousMutableHashTable",
        "AnonymousMutableHashTableOfTensors",
        "HashTable",
        "HashTableV2",
        "LookupTableExport",
        "LookupTableExportV2",
        "LookupTableFind",
        "LookupTableFindV2",
        "LookupTableSize",
        "LookupTableSizeV2",
        "MutableDenseHashTable",
        "MutableDenseHashTableV2",
        "MutableHashTable",
        "MutableHashTableOfTensors",
        "MutableHashTableOfTensorsV2",
        "MutableHashTableV2",
        # calls: what they call is looked at as well
        "Case",
        "If",
        "PartitionedCall",
        "StatefulPartitionedCall",
        "StatelessCase",
        "StatelessIf",
        "StatelessWhile",
        "While",
        "XlaCallModule",
        # placeholders
        "Placeholder",
        "PlaceholderV2",
        "PlaceholderWithDefault",
    )
)


@dataclass(frozen=True)
class VersionPath:
    """Where a version of a model lies."""

    name: str
    version: int
    directory: Path


def find_version(path: str | os.PathLike[str], name: str | None = None) -> VersionPath:
    """The version directory that `path` is, or the highest of the numbered ones in it.

    A name that reads as a 64-bit integer is a version: `00000123` is 123.  A SavedModel in a directory without a number
    is version 1.  The model's name is `name`, or that of the last directory of `path` that is not a version.
    Raises NotFound, PermissionDenied or InvalidArgument.
    """
    base = Path(os.path.abspath(path))  # noqa: PTH100  a link is a name of its own
    named = name or _model_name(base)
    entries = _entries(base)
    if any(file in entries for file in SAVED_MODEL):
        version = version_number(base.name)
        return VersionPath(named, 1 if version is None else version, base)
    versions = {version: entry for entry in sorted(entries) if (version := version_number(entry)) is not None}
    if not versions:
        raise NotFound(f"{base}: neither {SAVED_MODEL[0]} nor a numbered version directory in it")
    version = max(versions)
    directory = base / versions[version]
    if not any(file in _entries(directory) for file in SAVED_MODEL):
        raise NotFound(f"{directory}: no {SAVED_MODEL[0]} in it")
    return VersionPath(named, version, directory)


def version_number(name: str) -> int | None:
    """The version that a directory of this name holds, or None."""
    if not re.fullmatch(r"[0-9]+", name):
        return None
    number = int(name)
    return number if number < 1 << 63 else None


def _model_name(path: Path) -> str:
    names = [part for part in path.parts[1:] if version_number(part) is None]
    return names[-1] if names else "default"


def _entries(directory: Path) -> list[str]:
    try:
        entries = [entry.name for entry in directory.iterdir()]
    except FileNotFoundError:
        raise NotFound(f"{directory}: no such directory") from None
    except NotADirectoryError:
        raise InvalidArgument(f"{directory}: not a directory; give the model's directory") from None
    except PermissionError:
        for parent in reversed(directory.parents):
            if not os.access(parent, os.X_OK, effective_ids=True):
                raise _denied(parent, "execute") from None
        raise _denied(directory, "read and execute") from None
    except OSError as error:
        raise FailedPrecondition(f"{directory}: {error.strerror}") from None
    if not os.access(directory, os.X_OK, effective_ids=True):
        raise _denied(directory, "read and execute")
    return entries


def _denied(path: Path, needs: str) -> PermissionDenied:
    return PermissionDenied(f"{path}: permission denied for uid {os.geteuid()}; needs {needs}")


def check_readable(directory: Path) -> None:
    """Raises PermissionDenied for the first file or directory under `directory` that TensorFlow could not read."""
    for parent, _, files in os.walk(directory):
        if not os.access(parent, os.R_OK | os.X_OK, effective_ids=True):
            raise _denied(Path(parent), "read and execute")
        for file in files:
            path = Path(parent, file)
            if path.exists() and not os.access(path, os.R_OK, effective_ids=True):
                raise _denied(path, "read")


def read_graph(directory: Path) -> ServingGraph:
    """The MetaGraph for serving.  Raises NotFound, PermissionDenied or FailedPrecondition."""
    check_readable(directory)
    binary, text = (directory / file for file in SAVED_MODEL)
    saved_model = proto.message_class("tensorflow.SavedModel")()
    path = binary if binary.exists() else text
    try:
        content = path.read_bytes()
        if path == binary:
            saved_model.ParseFromString(content)
        else:
            text_format.Parse(content.decode(), saved_model, allow_unknown_field=True)
    except OSError as error:
        raise FailedPrecondition(f"{path}: {error.strerror}") from None
    except (DecodeError, UnicodeDecodeError, text_format.ParseError):
        raise FailedPrecondition(f"{path}: broken, it holds no SavedModel") from None
    if not saved_model.meta_graphs:
        raise FailedPrecondition(f"{path}: broken, it holds no graph")
    for meta_graph in saved_model.meta_graphs:
        if list(meta_graph.meta_info_def.tags) == [SERVE_TAG]:
            return ServingGraph(meta_graph)
    there = ", ".join(f'"{",".join(graph.meta_info_def.tags)}"' for graph in saved_model.meta_graphs)
    raise NotFound(f'{path}: no graph has the tag "{SERVE_TAG}" alone; there is {there}')


@dataclass(frozen=True)
class Unserved:
    """A signature that cannot be served, and why in words."""

    name: str
    why: str


class ServingGraph:
    """A MetaGraphDef: its signatures, and what each may run."""

    def __init__(self, meta_graph: Any) -> None:
        self._meta_graph = meta_graph

    @property
    def tensorflow_version(self) -> str:
        """The TensorFlow that exported it."""
        return str(self._meta_graph.meta_info_def.tensorflow_version)

    def signatures(self) -> tuple[list[_core.Signature], list[Unserved]]:
        """Those that can be served, serving_default first, and those that cannot."""
        served: list[_core.Signature] = []
        unserved: list[Unserved] = []
        for name in sorted(self._meta_graph.signature_def, key=lambda name: (name != "serving_default", name)):
            if INTERNAL_SIGNATURE.fullmatch(name):
                continue
            definition = self._meta_graph.signature_def[name]
            why = _unserved(definition)
            if why:
                unserved.append(Unserved(name, why))
            else:
                served.append(_core.Signature(name, _specs(definition.inputs), _specs(definition.outputs)))
        return served, unserved

    def signature_defs(self) -> bytes:
        """Every SignatureDef of the model, as a serialized SignatureDefMap: what GetModelMetadata tells of it.

        Bytes, since a message that is taken out of the MetaGraph would keep the whole of it.
        """
        made = proto.message_class("tensorflow.serving.SignatureDefMap")()
        for name in self._meta_graph.signature_def:
            made.signature_def[name].CopyFrom(self._meta_graph.signature_def[name])
        return bytes(made.SerializeToString(deterministic=True))

    def reachable_ops(self, signature: _core.Signature) -> frozenset[str]:
        """The operations that a run of the signature may execute, in functions too."""
        fed = {_node_name(spec.tensor_name) for spec in signature.inputs}
        waiting = [_node_name(spec.tensor_name) for spec in signature.outputs]
        seen: set[str] = set()
        ops: set[str] = set()
        while waiting:
            name = waiting.pop()
            node = self._nodes.get(name)
            if name in seen or name in fed or node is None:
                continue
            seen.add(name)
            ops |= self._ops_of(node)
            waiting += [_node_name(edge) for edge in node.input]
        return frozenset(ops)

    def stateful(self, ops: frozenset[str]) -> list[str]:
        """Those of `ops` that may see or leave something between runs.  One that the model does not describe may."""
        stateless = {op.name for op in self._meta_graph.meta_info_def.stripped_op_list.op if not op.is_stateful}
        return sorted(ops - stateless - READING_OPS - self._functions.keys())

    @cached_property
    def _nodes(self) -> dict[str, Any]:
        return {node.name: node for node in self._meta_graph.graph_def.node}

    @cached_property
    def _functions(self) -> dict[str, Any]:
        return {function.signature.name: function for function in self._meta_graph.graph_def.library.function}

    def _ops_of(self, node: Any) -> set[str]:
        """The node's operation and those of every function that it may call, directly or not."""
        ops = {node.op}
        waiting = [node.op, *_called(node)]
        seen: set[str] = set()
        while waiting:
            name = waiting.pop()
            function = self._functions.get(name)
            if name in seen or function is None:
                continue
            seen.add(name)
            for inner in function.node_def:
                ops.add(inner.op)
                waiting += [inner.op, *_called(inner)]
        return ops


def _called(node: Any) -> Iterator[str]:
    for value in node.attr.values():
        kind = value.WhichOneof("value")
        if kind == "func":
            yield value.func.name
        elif kind == "list":
            yield from (function.name for function in value.list.func)


def _node_name(edge: str) -> str:
    """The node of "node", "node:1" or "^node"."""
    return edge.removeprefix("^").partition(":")[0]


def _unserved(definition: Any) -> str:
    """Why the signature cannot be served, or ""."""
    if not definition.outputs:
        return "it has no outputs"
    for what, infos in (("input", definition.inputs), ("output", definition.outputs)):
        for name in sorted(infos):
            info = infos[name]
            if info.WhichOneof("encoding") != "name":
                return f'{what} "{name}" is not one dense tensor'
            if info.dtype % REF_DTYPES not in SERVED_DTYPES:
                return f'{what} "{name}" is of type {_dtype_name(info.dtype)}'
    return ""


def _dtype_name(dtype: int) -> str:
    value = proto.pool().FindEnumTypeByName("tensorflow.DataType").values_by_number.get(dtype % REF_DTYPES)
    return str(dtype) if value is None else str(value.name).removeprefix("DT_").lower()


def _specs(infos: Any) -> list[_core.TensorSpec]:
    return [
        _core.TensorSpec(name, info.dtype % REF_DTYPES, _shape(info), info.name) for name, info in sorted(infos.items())
    ]


def _shape(info: Any) -> list[int] | None:
    if not info.HasField("tensor_shape") or info.tensor_shape.unknown_rank:
        return None
    return [dim.size for dim in info.tensor_shape.dim]
