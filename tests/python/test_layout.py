# SPDX-License-Identifier: Apache-2.0
"""The architecture's promises that a machine can check."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def sources(folder: str, *suffixes: str) -> list[Path]:
    return sorted(path for path in (ROOT / folder).rglob("*") if path.suffix in suffixes)


CPP = sources("cpp", ".h", ".cc")
PYTHON = sources("python", ".py")
PRODUCT = [*CPP, *PYTHON, *sources("python", ".pyi", ".proto")]
TESTS = [*sources("tests", ".h", ".cc", ".py"), *sources("bench", ".h", ".cc", ".py"), *sources("examples", ".py")]

# A file may include only files of its own layer or of one further left.
LAYERS = ["core", "wire", "run", "lane", "model", "router", "net", "bind"]

# A module may import only modules of its own layer or of one further up.
PYTHON_LAYERS = [
    {"_core", "channel_arguments", "config", "errors", "proto"},
    {"metrics", "model", "pem", "probe", "recorded", "saved_model", "tensor_proto"},
    {"engine", "executors", "tls"},
    {"batched_function", "batcher", "client", "lane", "predictor", "reply"},
    {"server"},
    {"tools"},
    {"cli"},
    {"__main__"},
]

# The only modules that may import TensorFlow's Python package.
TENSORFLOW = {"model.py", "demo.py"}

# Words that name no thing: such a line belongs beside its caller, or in the noun it is about.
NO_NOUNS = {"util", "utils", "helper", "helpers", "common", "misc", "manager", "base", "impl"}

LINES_MAX = 400
# What is one noun all the same.
LONG: dict[str, str] = {"python/headrace/_core.pyi": "the stub of one module"}

# Sources without a test file of their stem: where they are tested, or why there is nothing to test.
TESTED_ELSEWHERE = {
    "cpp/bind/array_request": "tests/python/test_bind_lane.py, tests/python/test_ndarray.py",
    "cpp/bind/bind_bench": "tests/python/test_bench.py",
    "cpp/bind/bind_model": "tests/python/test_engine.py",
    "cpp/bind/bind_net": "tests/python/test_native.py",
    "cpp/bind/bind_server": "tests/python/test_predict_codec.py",
    "cpp/bind/bind_signature": "tests/python/test_engine.py",
    "cpp/bind/bind_tensorflow": "tests/python/test_model.py",
    "cpp/bind/event_fd": "tests/python/test_bind_lane.py, tests/python/test_predict_codec.py",
    "cpp/bind/fork": "tests/python/test_engine.py",
    "cpp/bind/gil": "tests/python/test_engine.py",
    "cpp/bind/kept_object": "tests/python/test_bind_lane.py",
    "cpp/bind/module": "registers what the other files bind",
    "cpp/bind/predict_queue": "tests/python/test_predict_codec.py, tests/stress/test_callables_tsan.py",
    "cpp/bind/reply_queue": "tests/python/test_bind_lane.py",
    "cpp/bind/seconds": "tests/python/test_engine.py",
    "cpp/bind/slot": "tests/python/test_bind_lane.py",
    "cpp/bind/status_error": "tests/python/test_engine.py",
    "cpp/core/admission": "tests/cpp/test_lane.cc",
    "cpp/core/futex": "tests/cpp/test_parking.cc",
    "cpp/net/bench_connection": "tests/cpp/test_bench_client.cc",
    "cpp/bind/callers": "tests/python/test_bind_lane.py, tests/stress/test_callables_tsan.py",
    "cpp/net/byte_budget": "tests/cpp/test_message_reader.cc",
    "cpp/net/byte_stream": "tests/cpp/test_tls_stream.cc, tests/cpp/test_http2_connection.cc",
    "cpp/net/descriptor": "tests/cpp/test_listener.cc",
    "cpp/net/dispatcher": "tests/cpp/test_grpc_server.cc, tests/cpp/test_http2_connection.cc",
    "cpp/net/loop_group": "tests/cpp/test_grpc_server.cc, tests/cpp/test_http2_connection.cc",
    "cpp/net/message": "tests/cpp/test_message_reader.cc",
    "cpp/net/method_table": "tests/cpp/test_request_head.cc",
    "cpp/net/response_writer": "tests/cpp/test_grpc_server.cc, tests/cpp/test_http2_connection.cc",
    "cpp/net/server_loop": "tests/cpp/test_grpc_server.cc, tests/cpp/test_http2_connection.cc",
    "cpp/run/runner": "an interface",
    "cpp/run/tensorflow_api": "tests/cpp/test_tensorflow_library.cc",
    "python/headrace/__main__": "tests/e2e/test_serve.py",
    "python/headrace/predictor": "tests/python/test_client.py",
    "python/headrace/tools/bench_arrivals": "tests/python/test_bench.py",
    "python/headrace/tools/bench_messages": "tests/python/test_bench.py",
    "python/headrace/tools/bench_options": "tests/python/test_bench.py",
    "python/headrace/tools/closed_loop": "tests/python/test_demo.py",
    "python/headrace/tools/report": "tests/python/test_demo.py",
    "python/headrace/tools/served": "tests/python/test_demo.py",
}

TOP = [
    "pyproject.toml",
    "CMakeLists.txt",
    "CMakePresets.json",
    "Makefile",
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "LICENSE",
]


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def layer(path: Path) -> str:
    return path.relative_to(ROOT / "cpp").parts[0].split(".")[0]


def python_layer(module: str) -> int:
    """The place in PYTHON_LAYERS of "model" or "server.health"."""
    return next(place for place, modules in enumerate(PYTHON_LAYERS) if module.partition(".")[0] in modules)


def imported_modules(path: Path) -> set[str]:
    """The modules of the package that a file imports, anywhere in it, as "model" or "server.health"."""
    modules = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            assert node.module is not None
            if node.module == "headrace":
                modules |= {f"headrace.{alias.name}" for alias in node.names}
            else:
                modules.add(node.module)
    return {module.removeprefix("headrace.") for module in modules if module.startswith("headrace.")}


@pytest.mark.parametrize("file", TOP)
def test_the_top_holds_what_a_reader_looks_for(file: str) -> None:
    assert (ROOT / file).stat().st_size > 0


@pytest.mark.parametrize("path", CPP, ids=name)
def test_includes_point_one_way(path: Path) -> None:
    for included in re.findall(r'#include "([\w/]+)\.h"', path.read_text()):
        assert LAYERS.index(included.split("/")[0]) <= LAYERS.index(layer(path)), included


@pytest.mark.parametrize("path", [p for p in CPP if layer(p) != "bind"], ids=name)
def test_only_the_bindings_know_python(path: Path) -> None:
    assert not re.search(r"pybind11|Python\.h|\bpy::", path.read_text())


# The package's own __init__ hands out names of every layer.
@pytest.mark.parametrize("path", [p for p in PYTHON if name(p) != "python/headrace/__init__.py"], ids=name)
def test_imports_point_one_way(path: Path) -> None:
    module = path.relative_to(ROOT / "python" / "headrace").with_suffix("").parts[0]
    for imported in imported_modules(path):
        assert python_layer(imported) <= python_layer(module), imported


@pytest.mark.parametrize("path", PYTHON, ids=name)
def test_few_modules_import_tensorflow(path: Path) -> None:
    assert path.name in TENSORFLOW or not re.search(r"^\s*(import|from) tensorflow\b", path.read_text(), re.MULTILINE)


@pytest.mark.parametrize("path", CPP + PYTHON, ids=name)
def test_nothing_waits_by_sleeping(path: Path) -> None:
    assert not re.search(r"\bsleep(_for|_until)?\(", path.read_text())


@pytest.mark.parametrize("path", PRODUCT + TESTS, ids=name)
def test_every_source_names_its_licence_first(path: Path) -> None:
    comment = "#" if path.suffix in {".py", ".pyi"} else "//"
    first, second = [*path.read_text().splitlines(), "", ""][:2]
    line = second if first.startswith("#!") else first
    assert line == f"{comment} SPDX-License-Identifier: Apache-2.0"


@pytest.mark.parametrize("path", PRODUCT + TESTS, ids=name)
def test_files_are_named_after_nouns(path: Path) -> None:
    assert NO_NOUNS.isdisjoint(path.stem.lower().split("_"))


@pytest.mark.parametrize("path", PRODUCT, ids=name)
def test_a_source_file_is_one_noun(path: Path) -> None:
    lines = len(path.read_text().splitlines())
    assert lines <= LINES_MAX or name(path) in LONG, f"{lines} lines: one noun or two?"


# What a package's __init__ hands out is tested where it comes from.
@pytest.mark.parametrize("path", [*CPP, *(p for p in PYTHON if p.stem != "__init__")], ids=name)
def test_every_source_has_its_tests(path: Path) -> None:
    own = [suite for kind in ("cpp", "python", "e2e") for suite in (ROOT / "tests" / kind).glob(f"test_{path.stem}.*")]
    elsewhere = TESTED_ELSEWHERE.get(name(path.with_suffix("")), "")
    assert own or elsewhere, "has no tests"
    assert not (own and elsewhere), f"has {own}: needs no entry in TESTED_ELSEWHERE"


def test_what_is_listed_as_an_exception_still_is_one() -> None:
    for file in LONG:
        assert len((ROOT / file).read_text().splitlines()) > LINES_MAX
    for source, reason in TESTED_ELSEWHERE.items():
        assert list(ROOT.glob(f"{source}.*")), source
        for file in re.findall(r"\btests/[\w/]+\.\w+", reason):
            assert (ROOT / file).exists(), file
