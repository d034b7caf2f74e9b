# SPDX-License-Identifier: Apache-2.0
"""GetModelMetadata: the signatures of what is served, as TensorFlow Serving tells them.

Thread safety: everything from any thread, if a catalogue is replaced rather than changed while it is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace import _core, proto
from headrace.errors import InvalidArgument, NotFound, Unavailable

# What is served: a model's name -> version -> its SignatureDefs, as a serialized SignatureDefMap.
Catalogue = Mapping[str, Mapping[int, bytes]]

# The one kind of metadata there is.
SIGNATURE_DEF = "signature_def"

PREDICT_METHOD_NAME = "tensorflow/serving/predict"


class Metadata:
    """Answers GetModelMetadata from a catalogue, which is looked at anew for each request."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue

    def get(self, message: bytes) -> bytes:
        """The answer to a GetModelMetadataRequest, and every error, as TensorFlow Serving has them.

        Raises InvalidArgument for a request that is not complete, NotFound for a model or version that is not here
        and Unavailable for a version's label, since there are none.
        """
        request = proto.message_class("tensorflow.serving.GetModelMetadataRequest").FromString(message)
        if not request.HasField("model_spec"):
            raise InvalidArgument("Missing ModelSpec")
        if not request.metadata_field:
            raise InvalidArgument("GetModelMetadataRequest must specify at least one metadata_field")
        for field in request.metadata_field:
            if field != SIGNATURE_DEF:
                raise InvalidArgument(f"Metadata field {field} is not supported")
        version, definitions = self._find(request.model_spec)
        response = proto.message_class("tensorflow.serving.GetModelMetadataResponse")()
        response.model_spec.name = request.model_spec.name
        response.model_spec.version.value = version
        packed = response.metadata[SIGNATURE_DEF]
        packed.type_url = "type.googleapis.com/tensorflow.serving.SignatureDefMap"
        packed.value = definitions
        return bytes(response.SerializeToString())

    def _find(self, spec: Any) -> tuple[int, bytes]:
        """The version that is asked for, the highest where none is, and its SignatureDefs; errors as in cpp/router."""
        if not spec.name:
            raise InvalidArgument("ModelSpec has no name specified.")
        choice = spec.WhichOneof("version_choice")
        if choice == "version_label":
            raise Unavailable(f"Model labels does not init yet.{spec.version_label}")
        versions = self._catalogue.get(spec.name, {})
        if choice == "version":
            if spec.version.value not in versions:
                raise NotFound(f"Servable not found for request: Specific({spec.name}, {spec.version.value})")
            return spec.version.value, versions[spec.version.value]
        if not versions:
            raise NotFound(f"Servable not found for request: Latest({spec.name})")
        latest = max(versions)
        return latest, versions[latest]


def signature_defs(signatures: Mapping[str, _core.Signature], method_name: str = PREDICT_METHOD_NAME) -> bytes:
    """A serialized SignatureDefMap of signatures that no SavedModel describes, such as those of callables.

    A dtype that is open becomes DT_INVALID, a rank that is open unknown_rank; outputs that are open are left out.
    """
    made = proto.message_class("tensorflow.serving.SignatureDefMap")()
    for name, signature in signatures.items():
        definition = made.signature_def[name]
        definition.method_name = method_name
        for specs, infos in ((signature.inputs, definition.inputs), (signature.outputs, definition.outputs)):
            for spec in specs:
                _describe(spec, infos[spec.name])
    return bytes(made.SerializeToString(deterministic=True))


def _describe(spec: _core.TensorSpec, info: Any) -> None:
    """Fills in a TensorInfo."""
    if spec.tensor_name:
        info.name = spec.tensor_name
    info.dtype = spec.dtype
    if spec.shape is None:
        info.tensor_shape.unknown_rank = True
        return
    info.tensor_shape.SetInParent()  # no dimensions at all: a scalar
    for size in spec.shape:
        info.tensor_shape.dim.add(size=size)
