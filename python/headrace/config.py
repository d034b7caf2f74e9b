# SPDX-License-Identifier: Apache-2.0
"""The options.  Each is one dataclass field with its default, unit, limits and help; flags and checks come from it."""

from __future__ import annotations

import dataclasses
import os
import typing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace import channel_arguments
from headrace.errors import InvalidArgument

if TYPE_CHECKING:
    from headrace import _core

MIB = 1 << 20

# Enough waiting rows for a burst, whatever the batch size.
WAITING_ROWS_DEFAULT = 4096
MAX_ENQUEUED_BATCHES_LEAST = 10


@dataclass(frozen=True)
class About:
    """What an option's field says besides its name, type and default."""

    help: str
    unit: str = ""
    least: float | None = None
    most: float | None = None
    choices: tuple[str, ...] = ()
    default: str = ""  # in words, where None stands for a rule
    aliases: tuple[str, ...] = ()  # further names of the flag
    flag: bool = True  # whether the command line has it


def option(
    default: Any,
    help: str,
    *,
    unit: str = "",
    least: float | None = None,
    most: float | None = None,
    choices: tuple[str, ...] = (),
    default_text: str = "",
    aliases: tuple[str, ...] = (),
    flag: bool = True,
) -> Any:
    """A dataclass field that is an option.  `least` and `most` are allowed themselves."""
    about = About(help, unit, least, most, choices, default_text, aliases, flag)
    return dataclasses.field(default=default, metadata={"about": about})


@dataclass(frozen=True)
class Option:
    """One option as flags, checks and docs see it."""

    name: str
    type: type
    default: Any
    about: About


def options_of(owner: type[Any]) -> tuple[Option, ...]:
    """The options of a dataclass, in order."""
    types = typing.get_type_hints(owner)
    return tuple(
        Option(field.name, _without_none(types[field.name]), field.default, field.metadata["about"])
        for field in dataclasses.fields(owner)
        if "about" in field.metadata
    )


def _without_none(hint: Any) -> Any:
    kinds = [kind for kind in typing.get_args(hint) if kind is not type(None)]
    return kinds[0] if kinds else hint


def check_options(values: Any) -> None:
    """Raises InvalidArgument for the first option whose value is of another type or outside its limits."""
    for option in options_of(type(values)):
        value = getattr(values, option.name)
        if value is None and option.default is None:
            continue
        problem = _problem(option, value)
        if problem:
            raise InvalidArgument(f"{option.name} is {value!r}; it must be {problem}")


def _problem(option: Option, value: Any) -> str:
    """What `value` should have been, or "" if it is right."""
    about = option.about
    types = (int, float) if option.type is float else (option.type,)
    if type(value) not in types:
        return {int: "a whole number", float: "a number", bool: "true or false", str: "text"}[option.type]
    if about.choices and value not in about.choices:
        return " or ".join(about.choices)
    unit = f" {about.unit}" if about.unit else ""
    if about.least is not None and about.most is not None and not about.least <= value <= about.most:
        return f"{about.least} to {about.most}{unit}"
    if about.least is not None and not value >= about.least:
        return f"at least {about.least}{unit}"
    return ""


@dataclass(frozen=True)
class BatchingOptions:
    """How the requests of a model become batches.  Raises InvalidArgument for a value outside its limits."""

    max_batch_size: int = option(
        64, "largest batch, and largest request", unit="rows", least=1, most=1 << 20, aliases=("batch_size",)
    )
    batch_timeout_micros: int = option(
        0,
        "how long a lone request waits for company; setting it above 0 selects --batching_policy=timeout",
        unit="microseconds",
        least=0,
        most=3_600_000_000,
    )
    batching_policy: str | None = option(
        None,
        "adaptive: run what waits as soon as an executor is free; timeout: TensorFlow Serving's rule, a batch that is"
        " not full waits batch_timeout_micros",
        choices=("adaptive", "timeout"),
        default_text="timeout if batch_timeout_micros is above 0, else adaptive",
    )
    max_enqueued_batches: int | None = option(
        None,
        "full batches' worth of requests that may wait; one more is refused as UNAVAILABLE",
        unit="batches",
        least=1,
        most=1 << 20,
        default_text=f"enough for {WAITING_ROWS_DEFAULT} rows, at least {MAX_ENQUEUED_BATCHES_LEAST}",
    )
    num_batch_threads: int | None = option(
        None,
        "batches of one model that run at a time",
        unit="threads",
        least=1,
        most=1024,
        default_text="2 on a GPU, else a quarter of the cores, at least 1",
    )
    enable_batching: bool = option(True, "whether requests share batches")
    slab_bytes_max: int = option(
        256 * MIB,
        "memory of one batch's inputs; max_batch_size is lowered to fit",
        unit="bytes",
        least=4096,
        flag=False,
    )
    waiting_bytes_max: int = option(
        512 * MIB, "memory of the requests that wait for one model", unit="bytes", least=4096, flag=False
    )
    log_batches: bool = option(False, "print one line per batch")

    def __post_init__(self) -> None:
        check_options(self)

    @property
    def policy(self) -> str:
        """The policy in force: "adaptive" or "timeout"."""
        return self.batching_policy or ("timeout" if self.batch_timeout_micros > 0 else "adaptive")

    @property
    def enqueued_batches(self) -> int:
        """The limit in force on waiting requests, in full batches."""
        if self.max_enqueued_batches is not None:
            return self.max_enqueued_batches
        return max(MAX_ENQUEUED_BATCHES_LEAST, -(-WAITING_ROWS_DEFAULT // self.max_batch_size))

    def batch_threads(self, *, gpu: bool) -> int:
        """The executors in force for one model."""
        if self.num_batch_threads is not None:
            return self.num_batch_threads
        return 2 if gpu else max(1, len(os.sched_getaffinity(0)) // 4)

    def fitted(self, row_bytes: int) -> BatchingOptions:
        """These options with max_batch_size low enough that rows of `row_bytes` bytes fit in slab_bytes_max."""
        rows = max(1, self.slab_bytes_max // max(1, row_bytes))
        return self if rows >= self.max_batch_size else dataclasses.replace(self, max_batch_size=rows)

    def wait_text(self) -> str:
        """The policy in words, for the log."""
        if self.batching_policy is not None:
            reason = "batching_policy was set"
        else:
            reason = f"batch_timeout_micros was {'set' if self.batch_timeout_micros > 0 else 'not set'}"
        if self.policy == "timeout" and self.batch_timeout_micros > 0:
            wait = f"waits up to {duration_text(self.batch_timeout_micros)}"
        else:
            wait = "never waits for others"
        return f"policy {self.policy}, a lone request {wait} ({reason})"

    def lane_options(self, *, batched: bool) -> _core.LaneOptions:
        """What the native core wants; `batched` says whether the signature's requests may share batches."""
        from headrace import _core

        return _core.LaneOptions(
            max_batch_size=self.max_batch_size,
            batch_timeout_micros=self.batch_timeout_micros,
            max_enqueued_batches=self.enqueued_batches,
            policy=self.policy,
            batched=batched,
            slab_bytes_max=self.slab_bytes_max,
            waiting_bytes_max=self.waiting_bytes_max,
            log_batches=self.log_batches,
        )


@dataclass(frozen=True)
class GrpcOptions:
    """What the native gRPC transport may take.  Raises InvalidArgument for a value outside its limits.

    Sizes are in bytes, times in seconds.  Past a limit a request is refused as RESOURCE_EXHAUSTED, and one that is too
    slow as DEADLINE_EXCEEDED.  grpcio has limits of its own: only `grpc_channel_arguments` say something to it.
    """

    grpc_loops: int = option(
        1, "native transport: threads that receive requests and send replies", unit="threads", least=1, most=64
    )
    grpc_message_bytes_max: int = option(
        (1 << 31) - 1, "native transport: largest message", unit="bytes", least=1, most=(1 << 31) - 1
    )
    grpc_header_bytes_max: int = option(
        16 << 10, "native transport: largest header block of a request", unit="bytes", least=1024, most=1 << 20
    )
    grpc_streams_max: int = option(
        1 << 10, "native transport: requests at a time on one connection", unit="requests", least=1, most=1 << 20
    )
    grpc_connections_max: int = option(
        1 << 14, "native transport: connections at a time", unit="connections", least=1, most=1 << 20
    )
    grpc_requests_max: int = option(
        1 << 16,
        "native transport: requests at a time on all connections; one more is refused as RESOURCE_EXHAUSTED",
        unit="requests",
        least=1,
        most=1 << 30,
    )
    grpc_buffered_bytes_max: int = option(
        1 << 30,
        "native transport: memory of the messages that are being received and sent; a request that does not fit is"
        " refused as RESOURCE_EXHAUSTED",
        unit="bytes",
        least=4096,
        most=1 << 50,
    )
    grpc_request_seconds: float = option(
        60.0,
        "native transport: how long a request may take to come in whole, and a client to take any of its reply; 0: for"
        " ever",
        unit="seconds",
        least=0.0,
        most=31_536_000.0,
    )
    grpc_idle_seconds: float = option(
        0.0,
        "native transport: a connection without requests is closed after so long",
        unit="seconds",
        least=0.0,
        most=31_536_000.0,
        default_text="0: never",
    )
    grpc_channel_arguments: str = option(
        "",
        "k=v,k=v: gRPC's channel arguments; the native transport takes those that limit connections, messages and"
        " metadata, over the options above, and warns of the others",
        default_text="none",
    )

    def __post_init__(self) -> None:
        check_options(self)
        channel_arguments.parse(self.grpc_channel_arguments)

    @property
    def channel_arguments(self) -> dict[str, int | str]:
        """The channel arguments by their names."""
        return channel_arguments.parse(self.grpc_channel_arguments)


@dataclass(frozen=True)
class ServeOptions:
    """What `headrace serve` serves, and how.  Raises InvalidArgument for a value outside its limits."""

    model_base_path: str = option("", "directory of the model: one SavedModel, or numbered versions of it")
    model_name: str = option("default", "name that clients ask for", default_text="default, or PATH's directory name")
    port: int = option(8500, "port for gRPC; 0 takes a free one", least=0, most=65535)
    grpc_socket_path: str = option("", "path of a unix socket that serves gRPC as well", default_text="none")
    grpc_transport: str = option(
        "native",
        "what serves gRPC: native, threads of our own, without Python; grpcio, Python's gRPC",
        choices=("native", "grpcio"),
    )
    ssl_config_file: str = option(
        "",
        "TensorFlow Serving's SSLConfig as text: the server's key and certificate, with which connections are encrypted,"
        " and the CA of its clients; read again when it changes",
        default_text="none: connections are not encrypted",
    )
    executor: str = option(
        "native",
        "native: TensorFlow's C API on native threads; python: TensorFlow's Python package, slower, for comparison",
        choices=("native", "python"),
    )
    per_process_gpu_memory_fraction: float = option(
        0.0, "share of a GPU's memory to take at start", least=0.0, most=1.0, default_text="0: grow as needed"
    )
    tensorflow_intra_op_parallelism: int = option(
        0, "threads that one operation may use", unit="threads", least=0, most=4096, default_text="0: one per core"
    )
    tensorflow_inter_op_parallelism: int = option(
        0,
        "operations of one batch that may run at a time",
        unit="threads",
        least=0,
        most=4096,
        default_text="0: chosen for each signature at start",
    )
    batching: BatchingOptions = BatchingOptions()
    grpc: GrpcOptions = GrpcOptions()

    def __post_init__(self) -> None:
        check_options(self)


def duration_text(micros: float) -> str:
    """A length of time for people: 12 us, 1.5 ms, 2 s."""
    for scale, unit in ((1e6, "s"), (1e3, "ms")):
        if micros >= scale:
            return f"{micros / scale:.3g} {unit}"
    return f"{micros:.3g} us"
