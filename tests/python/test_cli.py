# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import headrace.server.serve
import headrace.tools.demo
from headrace import cli
from headrace.config import BatchingOptions, GrpcOptions, ServeOptions, options_of
from headrace.errors import NotFound

if TYPE_CHECKING:
    from collections.abc import Callable

FLAGS = [
    option
    for owner in (ServeOptions, BatchingOptions, GrpcOptions)
    for option in options_of(owner)
    if option.about.flag
]


@pytest.fixture
def parse(monkeypatch: pytest.MonkeyPatch) -> Callable[..., ServeOptions]:
    """The options that `headrace serve ARGUMENTS` would serve with."""

    def parsed(*arguments: str) -> ServeOptions:
        served: list[ServeOptions] = []

        def serve(options: ServeOptions) -> int:
            served.append(options)
            return 0

        monkeypatch.setattr(headrace.server.serve, "serve", serve)
        assert cli.main(["serve", *arguments]) == 0
        [options] = served
        return options

    return parsed


@pytest.mark.parametrize(
    "arguments",
    [
        ["--max_batch_size=16"],
        ["--max_batch_size", "16"],
        ["--max-batch-size=16"],
        ["--max-batch-size", "16"],
        ["--batch_size=16"],
        ["--batch-size", "16"],
        ["--max_batch_size=3", "--batch_size=16"],
    ],
)
def test_a_flag_has_several_spellings_and_the_last_one_wins(
    parse: Callable[..., ServeOptions], arguments: list[str]
) -> None:
    assert parse("models/digits", *arguments).batching.max_batch_size == 16
    assert parse(*arguments, "models/digits").model_base_path == "models/digits"


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        ([], True),
        (["--enable_batching"], True),
        (["--enable_batching=true"], True),
        (["--enable_batching=false"], False),
        (["--enable_batching", "false"], False),
        (["--enable-batching=FALSE"], False),
        (["--enable_batching=0"], False),
        (["--enable_batching=false", "--enable_batching"], True),
    ],
)
def test_a_switch_takes_a_value_or_none(parse: Callable[..., ServeOptions], arguments: list[str], value: bool) -> None:
    assert parse(*arguments, "models/digits").batching.enable_batching is value


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("models/digits", "digits"),
        ("models/digits/", "digits"),
        ("/models/digits/3", "digits"),
        ("/models/digits/00000123/", "digits"),
        ("/models/digits/1/2", "digits"),
        ("/", "default"),
    ],
)
def test_a_path_names_the_model_after_its_directory(parse: Callable[..., ServeOptions], path: str, name: str) -> None:
    options = parse(path)
    assert (options.model_base_path, options.model_name) == (path, name)
    assert parse(path, "--model_name=other").model_name == "other"


def test_a_base_path_alone_means_the_model_default(parse: Callable[..., ServeOptions]) -> None:
    assert parse("--model_base_path=/models/digits").model_name == "default"
    assert parse("--model_base_path=/models/digits", "--model_name=d").model_name == "d"


def test_tensorflow_serving_s_command_line_works_as_it_is(parse: Callable[..., ServeOptions]) -> None:
    options = parse(
        "--port=8501",
        "--model_name=digits",
        "--model_base_path=/models/digits",
        "--enable_batching=true",
        "--tensorflow_intra_op_parallelism=2",
        "--tensorflow_inter_op_parallelism=3",
        "--per_process_gpu_memory_fraction=0.5",
    )
    assert options == ServeOptions(
        model_base_path="/models/digits",
        model_name="digits",
        port=8501,
        per_process_gpu_memory_fraction=0.5,
        tensorflow_intra_op_parallelism=2,
        tensorflow_inter_op_parallelism=3,
    )


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "COMMAND"),
        (["bake"], "bake"),
        (["serve"], "no model to serve"),
        (["serve", "m", "--rest_api_port=8501"], "--rest_api_port"),
        (["serve", "m", "-p", "1"], "-p"),
        (["serve", "m", "--max"], "--max"),
        (["serve", "m", "more"], "more"),
        (["serve", "m", "--port"], "--port"),
        (["serve", "m", "--port=http"], "--port"),
        (["serve", "m", "--port=65536"], "port is 65536; it must be 0 to 65535"),
        (["serve", "m", "--batch_timeout_micros", "-1"], "batch_timeout_micros is -1"),
        (["serve", "m", "--enable_batching=maybe"], "neither true nor false"),
        (["serve", "m", "--batching_policy=clever"], "clever"),
        (["serve", "m", "--per_process_gpu_memory_fraction=nan"], "per_process_gpu_memory_fraction is nan"),
        (["serve", "m", "--model_base_path=n"], "both name a model"),
        (["demo", "--keep=3"], "--keep"),
    ],
)
def test_a_wrong_command_line_is_one_clear_line_and_exit_2(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("headrace: ")
    assert complaint in err
    assert err.count("\n") == 1


def test_an_error_is_one_clear_line_and_exit_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_options: ServeOptions) -> int:
        raise NotFound("/models/digits: no such directory")

    monkeypatch.setattr(headrace.server.serve, "serve", fail)
    assert cli.main(["serve", "/models/digits"]) == 1
    assert capsys.readouterr() == ("", "headrace: /models/digits: no such directory\n")


def test_help_lists_every_flag_with_its_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["serve", "--help"])
    assert ended.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    for option in FLAGS:
        assert f"--{option.name} " in text, option.name
    assert "--batch_size" in text
    assert "--slab_bytes_max" not in text
    assert "(default: enough for 4096 rows, at least 10)" in text


def test_demo_gets_its_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[bool] = []

    def run(*, keep: bool) -> int:
        kept.append(keep)
        return 3

    monkeypatch.setattr(headrace.tools.demo, "run", run)
    assert cli.main(["demo"]) == 3
    assert cli.main(["demo", "--keep"]) == 3
    assert kept == [False, True]


def test_a_reader_who_stops_reading_causes_no_traceback() -> None:
    command = f"{sys.executable} -m headrace serve --help | true"
    ended = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert ended.stderr == ""
