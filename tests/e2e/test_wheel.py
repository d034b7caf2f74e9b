# SPDX-License-Identifier: Apache-2.0
"""The wheel in dist/, as somebody gets it who has nothing of ours: `make test-wheel`."""

from __future__ import annotations

import json
import platform
import re
import subprocess
import venv
import zipfile
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import grpc
import pytest

pytestmark = pytest.mark.wheel

DIST = Path(__file__).parents[2] / "dist"
READY_SECONDS = 60

# Half of x, plus two: the "hello, world" of TensorFlow Serving.
EXPORT = """
import sys
import tensorflow as tf

class HalfPlusTwo(tf.Module):
    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, "x")])
    def __call__(self, x):
        return {"y": x / 2 + 2}

module = HalfPlusTwo()
tf.saved_model.save(module, sys.argv[1], signatures=module.__call__)
"""

# What TensorFlow's framework library exports of OpenSSL and zlib: taken from there, it would be BoringSSL's.
FOREIGN = re.compile(
    r"^(D?TLS|SSL|EVP|BIO|X509V?\d*|RSA|DSA|DH|BN|EC|ECDSA|ECDH|ERR|CRYPTO|OPENSSL(_sk)?|OSSL|ASN1|PEM|RAND|HMAC|CMAC|SHA\d+"
    r"|AES|PKCS\d+|OCSP|CMS|OBJ|CONF|NCONF|ENGINE|UI|ASYNC|COMP|BUF|DSO|GENERAL_NAMES?|i2[das]|d2i|[av]2i|X25519)_\w+$"
    r"|^(inflate|deflate|gz|crc32|adler32|compress|uncompress|zlib)\w*$"
)


def wheel() -> Path:
    [path] = DIST.glob("headrace-*.whl")
    return path


def output(*command: str | Path) -> str:
    return subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True).stdout


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Every shared object in the wheel, unpacked."""
    folder = tmp_path_factory.mktemp("wheel")
    with zipfile.ZipFile(wheel()) as archive:
        archive.extractall(folder)
    found = [path for path in folder.rglob("*") if re.search(r"\.so(\.|$)", path.name)]
    assert any(path.name.startswith("_core.") for path in found)
    return found


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin/ of a fresh virtual environment with the wheel and TensorFlow."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    output(python, "-m", "pip", "install", "--quiet", f"{wheel()}[tensorflow]")
    return folder / "bin"


@pytest.fixture(scope="module")
def address(environment: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where `headrace serve` of the fresh environment serves half_plus_two; it has ended well when the tests have."""
    model = tmp_path_factory.mktemp("models") / "half_plus_two"
    output(environment / "python", "-c", EXPORT, model / "1")
    command = [str(environment / "headrace"), "serve", str(model), "--port=0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        assert server.stdout is not None
        log = ""
        try:
            for line in server.stdout:
                log += line
                if found := re.search(r"(?:127\.0\.0\.1|0\.0\.0\.0|\[::\]|localhost):(\d+)", line):
                    yield f"127.0.0.1:{found[1]}"
                    break
            else:
                pytest.fail(f"the server ended without serving:\n{log}")
        finally:
            server.terminate()
            log += server.communicate(timeout=READY_SECONDS)[0]
    assert server.returncode == 0, log


def test_the_name_says_the_platform() -> None:
    assert wheel().name.endswith(f"-manylinux_2_36_{platform.machine()}.whl")


def test_the_source_distribution_holds_what_builds_it() -> None:
    [sdist] = DIST.glob("headrace-*.tar.gz")
    root = sdist.name.removesuffix(".tar.gz")
    files = set(output("tar", "--list", "--file", sdist).split())
    for file in ("CMakeLists.txt", "LICENSE", "cpp/lane.h", "python/headrace/_core.pyi", "tests/python/test_layout.py"):
        assert f"{root}/{file}" in files


def test_the_wheel_holds_types_licence_and_descriptors() -> None:
    with zipfile.ZipFile(wheel()) as archive:
        files = archive.namelist()
    assert {"headrace/py.typed", "headrace/_core.pyi", "headrace/proto/headrace.pb"} <= set(files)
    assert any(re.fullmatch(r"headrace-.*\.dist-info/licenses/LICENSE", file) for file in files)


def test_every_needed_library_is_bundled_or_allowed(libraries: list[Path]) -> None:
    policies = json.loads(resources.files("auditwheel.policy").joinpath("manylinux-policy.json").read_text())
    [policy] = [policy for policy in policies if policy["name"] == "manylinux_2_36"]
    allowed = {*policy["lib_whitelist"], *(library.name for library in libraries)}
    for library in libraries:
        needed = set(re.findall(r"\(NEEDED\).*\[(.+)\]", output("readelf", "--dynamic", "--wide", library)))
        # The loader of programs, which auditwheel allows by its name's start: every process has one.
        assert {name for name in needed if not name.startswith("ld-linux-")} <= allowed, library.name


def test_nothing_is_taken_from_an_openssl_or_zlib_of_the_process(libraries: list[Path]) -> None:
    for library in libraries:
        symbols = output("nm", "--dynamic", "--undefined-only", "--format=just-symbols", library).split()
        assert [symbol for symbol in symbols if FOREIGN.match(symbol.partition("@")[0])] == []


def test_the_command_of_a_fresh_environment_answers_predict(address: str) -> None:
    from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

    request = predict_pb2.PredictRequest()
    request.model_spec.name = "half_plus_two"
    request.inputs["x"].dtype = 1  # DT_FLOAT
    request.inputs["x"].tensor_shape.dim.add(size=3)
    request.inputs["x"].float_val.extend([1.0, 2.0, 5.0])
    with grpc.insecure_channel(address) as channel:
        response = prediction_service_pb2_grpc.PredictionServiceStub(channel).Predict(request, timeout=READY_SECONDS)
    [answer] = response.outputs.values()
    assert list(answer.float_val) == [2.5, 3.0, 4.5]
    assert response.model_spec.version.value == 1


def test_the_library_of_a_fresh_environment_imports_without_tensorflow(environment: Path) -> None:
    code = "import importlib.metadata, sys, headrace; print(importlib.metadata.version('headrace'), 'tensorflow' in sys.modules)"
    version, imported = output(environment / "python", "-c", code).split()
    assert wheel().name.startswith(f"headrace-{version}-")
    assert imported == "False"
