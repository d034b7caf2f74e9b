# SPDX-License-Identifier: Apache-2.0
"""The `headrace` command: its arguments, and one clear line for every error.

Flags are made from the options and spelt as TensorFlow Serving spells them: `--x=v`, `--x v`, and for true-or-false
options `--x`, `--x=true` and `--x=false`; `--max-batch-size` is `--max_batch_size`.  The last one given wins.
Exit codes: 0, 1 for what went wrong while running, 2 for a wrong command line.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, TextIO

from headrace.config import BatchingOptions, GrpcOptions, Option, ServeOptions, options_of
from headrace.errors import HeadraceError, InvalidArgument
from headrace.tools.bench_options import BenchOptions

EXIT_FAILED = 1
EXIT_USAGE = 2

TRUE = ("true", "t", "yes", "1")
FALSE = ("false", "f", "no", "0")

DESCRIPTION = "Serves TensorFlow models, gathering small requests into full batches."
SERVE_DESCRIPTION = """
Serves a SavedModel as tensorflow.serving.PredictionService over gRPC.

  headrace serve models/digits                        models/digits/1, models/digits/2 ...: the highest version
  headrace serve models/digits/1 --port=9000          this version, as model digits
  headrace serve --model_name=digits --model_base_path=/models/digits --port=8500
"""

BENCH_DESCRIPTION = """
Sends a TensorFlow Serving or Headrace server requests over gRPC and says how it answers them.

  headrace bench localhost:8500 --model_name=digits --concurrency=64 --connections=4     64 at a time
  headrace bench localhost:8500 --model_name=digits --rate=2000                          2000 per second

Requests are random data for the model's signature, .npz files or messages as they are.  A latency counts from the time
at which its request was meant to be sent.  Exits with 1 where requests fail or the rate is not held.
"""
BENCH_FILES = {
    "npz": "file with one array for each input: one request, or many of --rows; may be given several times",
    "message": "file with a request message as it is sent; may be given several times",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        return _run(arguments)
    except HeadraceError as error:
        print(f"headrace: {error}", file=sys.stderr)
        return EXIT_FAILED
    except BrokenPipeError:
        return EXIT_FAILED
    except KeyboardInterrupt:
        return 130
    finally:
        _flush(sys.stdout)
        _flush(sys.stderr)


def _flush(stream: TextIO) -> None:
    """Writes what is left: at exit, a reader who has gone would cost a message and the exit code."""
    try:
        stream.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _run(arguments: Sequence[str]) -> int:
    try:
        parsed = vars(_parser().parse_args(_as_argparse_wants(arguments)))
        command: Callable[[dict[str, Any]], Callable[[], int]] = parsed.pop("command")
        run = command(parsed)
    except InvalidArgument as error:
        print(f"headrace: {error}", file=sys.stderr)
        return EXIT_USAGE
    return run()


class _Parser(argparse.ArgumentParser):
    """argparse, but an error is one line and is ours to print."""

    def error(self, message: str) -> NoReturn:
        raise InvalidArgument(f"{message} (see {self.prog} --help)")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="headrace", description=DESCRIPTION, allow_abbrev=False)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    serve = commands.add_parser(
        "serve",
        help="serve a model",
        description=SERVE_DESCRIPTION,
        usage="headrace serve [PATH] [--flag=value ...]",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    serve.set_defaults(command=_serve)
    serve.add_argument("path", nargs="?", metavar="PATH", help="the model's directory; its name becomes the model's")
    for owner in (ServeOptions, BatchingOptions, GrpcOptions):
        for option in options_of(owner):
            if option.about.flag:
                _add_flag(serve, option)

    demo = commands.add_parser(
        "demo",
        help="train a small model, serve it with and without batching and show the difference",
        description="Trains a small model on handwritten digits, serves it with and without batching, shows both.",
        allow_abbrev=False,
    )
    demo.set_defaults(command=_demo)
    demo.add_argument("--keep", action="store_true", help="keep serving the model afterwards, until Ctrl-C")

    bench = commands.add_parser(
        "bench",
        help="measure a server under load",
        description=BENCH_DESCRIPTION,
        usage="headrace bench HOST:PORT --model_name=NAME [--flag=value ...]",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    bench.set_defaults(command=_bench)
    bench.add_argument("target", metavar="HOST:PORT", help="the server")
    for option in options_of(BenchOptions):
        _add_flag(bench, option)
    for name, help_text in BENCH_FILES.items():
        bench.add_argument(f"--{name}", action="append", metavar="FILE", default=argparse.SUPPRESS, help=help_text)
    return parser


def _add_flag(parser: argparse.ArgumentParser, option: Option) -> None:
    about = option.about
    default = about.default or (str(option.default).lower() if option.type is bool else str(option.default))
    text = about.help + (f" (default: {default})" if default else "")
    names = [f"--{name}" for name in (option.name, *about.aliases)]
    placeholder = about.unit.upper() or {int: "N", float: "X", str: "TEXT"}.get(option.type)
    shape: dict[str, Any] = {"type": option.type, "metavar": placeholder}
    if about.choices:
        shape = {"choices": about.choices}
    elif option.type is bool:
        shape = {"type": _truth, "metavar": "true|false", "nargs": "?", "const": True}
    parser.add_argument(*names, dest=option.name, default=argparse.SUPPRESS, help=text, **shape)


def _truth(text: str) -> bool:
    if text.lower() not in TRUE + FALSE:
        raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")
    return text.lower() in TRUE


def _as_argparse_wants(arguments: Sequence[str]) -> list[str]:
    """Underscores for dashes in names, and `--x` as `--x=true` unless true or false follows: it never takes a path."""
    owners = (ServeOptions, BatchingOptions, GrpcOptions, BenchOptions)
    switches = {o.name for owner in owners for o in options_of(owner) if o.type is bool}
    wanted = []
    for argument, following in itertools.zip_longest(arguments, arguments[1:]):
        spelt, equals, value = argument.partition("=")
        if spelt.startswith("--"):
            name = spelt[2:].replace("-", "_")
            bare_switch = name in switches and not equals and following not in ("true", "false")
            wanted.append(f"--{name}=true" if bare_switch else f"--{name}{equals}{value}")
        else:
            wanted.append(argument)
    return wanted


def _serve(given: dict[str, Any]) -> Callable[[], int]:
    path = given.pop("path")
    if path is not None:
        if "model_base_path" in given:
            raise InvalidArgument("PATH and --model_base_path both name a model's directory; give one of them")
        given["model_base_path"] = path
        given.setdefault("model_name", _name_of(path))
    if not given.get("model_base_path"):
        raise InvalidArgument("no model to serve: give its directory, as in: headrace serve models/digits")
    options = ServeOptions(
        **_given_of(ServeOptions, given),
        batching=BatchingOptions(**_given_of(BatchingOptions, given)),
        grpc=GrpcOptions(**_given_of(GrpcOptions, given)),
    )

    def run() -> int:
        from headrace.server.serve import serve

        return serve(options)

    return run


def _given_of(owner: type[Any], given: dict[str, Any]) -> dict[str, Any]:
    """Those of the options that were given that are the owner's."""
    return {option.name: given[option.name] for option in options_of(owner) if option.name in given}


def _name_of(path: str) -> str:
    """A model is called what its directory is called, but for version numbers: models/digits/3 is digits."""
    names = [name for name in Path(path).absolute().parts[1:] if not name.isdecimal()]
    return names[-1] if names else "default"


def _demo(given: dict[str, Any]) -> Callable[[], int]:
    def run() -> int:
        from headrace.tools import demo

        return demo.run(keep=given["keep"])

    return run


def _bench(given: dict[str, Any]) -> Callable[[], int]:
    values: dict[str, Any] = {name: tuple(value) if name in BENCH_FILES else value for name, value in given.items()}
    options = BenchOptions(**values)

    def run() -> int:
        from headrace.tools import bench

        return bench.run(options)

    return run
