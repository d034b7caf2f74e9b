# SPDX-License-Identifier: Apache-2.0
"""The native core, as the bindings in cpp/bind expose it.  Everything here releases the GIL while it waits or runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, final

from numpy.typing import NDArray

__version__: str

def forbid_gil() -> None:
    """From now on other threads that come back from native code sleep for ever: the end of the process has begun."""

class StatusError(Exception):
    """A native call failed: `code` is gRPC's number, `message` says why, `cause` is what a callable raised."""

    code: int
    message: str
    cause: BaseException | None

@final
class TensorSpec:
    """One input or output.

    `dtype` is tensorflow.DataType's number, 0 where it is open; `shape` has -1 for open dimensions, None for an open
    rank.  A request may leave out an `optional` input: only requests with the same inputs share a batch.
    """

    def __init__(
        self, name: str, dtype: int, shape: Sequence[int] | None, tensor_name: str = "", optional: bool = False
    ) -> None: ...
    @property
    def name(self) -> str: ...
    @property
    def dtype(self) -> int: ...
    @property
    def shape(self) -> list[int] | None: ...
    @property
    def tensor_name(self) -> str: ...
    @property
    def optional(self) -> bool: ...

@final
class Signature:
    """What a lane takes and gives.  Without outputs they are open: each batch names its own in finish()."""

    def __init__(self, name: str, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> None: ...
    @property
    def name(self) -> str: ...
    @property
    def inputs(self) -> list[TensorSpec]: ...
    @property
    def outputs(self) -> list[TensorSpec]: ...

@final
class LaneOptions:
    """The limits and policy of one lane; config.py has the defaults."""

    def __init__(
        self,
        *,
        max_batch_size: int,
        batch_timeout_micros: int,
        max_enqueued_batches: int,
        policy: str,
        batched: bool,
        slab_bytes_max: int,
        waiting_bytes_max: int,
        log_batches: bool = False,
    ) -> None: ...
    @property
    def max_batch_size(self) -> int: ...
    @property
    def batch_timeout_micros(self) -> int: ...
    @property
    def max_enqueued_batches(self) -> int: ...
    @property
    def policy(self) -> str: ...
    @property
    def batched(self) -> bool: ...
    @property
    def slab_bytes_max(self) -> int: ...
    @property
    def waiting_bytes_max(self) -> int: ...
    @property
    def log_batches(self) -> bool: ...

class Runner:
    """What a lane's native executors run."""

@final
class TensorFlow:
    """TensorFlow's C API, loaded once per process from the file of libtensorflow_cc.so.2.

    Raises StatusError (FAILED_PRECONDITION) where the library cannot be loaded or lacks a function.
    """

    def __init__(self, library_path: str) -> None: ...
    @property
    def version(self) -> str: ...
    def load_saved_model(self, export_dir: str, tags: Sequence[str], config: bytes) -> Session:
        """Loads the MetaGraph with exactly these tags.  `config` is a serialized ConfigProto."""
    def list_devices(self, session: Session) -> list[tuple[str, str]]:
        """(name, type) of each device, such as ("/job:localhost/replica:0/task:0/device:CPU:0", "CPU")."""

@final
class Session:
    """A loaded SavedModel."""

    def run(
        self, feeds: Mapping[str, NDArray[Any]], fetches: Sequence[str], run_options: bytes = b""
    ) -> list[NDArray[Any]]:
        """Runs graph tensors ("x:0") by name.  Strings travel as object arrays of bytes; answers are owned copies."""
    def runner(self, signature: Signature, run_options: bytes = b"") -> Runner:
        """A runner of `signature`, whose specs carry tensor names.  `run_options` is a serialized RunOptions."""

@final
class SlabPinner:
    """Registers slabs with a GPU through libcuda.  `available` is False, and `reason` says why, where it cannot."""

    def __init__(self, library_path: str = "libcuda.so.1") -> None: ...
    @property
    def available(self) -> bool: ...
    @property
    def reason(self) -> str: ...

@final
class Timer:
    """The thread that serves windows and deadlines for all models of an engine."""

    def __init__(self) -> None: ...
    def close(self) -> None: ...

@final
class Batch:
    """A gathered batch in the hands of a Python executor.  Give it back with finish() or fail(), once."""

    @property
    def lane(self) -> Lane: ...
    @property
    def rows(self) -> int: ...
    @property
    def slot_rows(self) -> list[int]:
        """Rows of each request, in order; their sum is `rows`."""
    @property
    def inputs(self) -> dict[str, NDArray[Any]]:
        """Views of the slab, no copies; strings are object arrays of bytes.  An array that outlives the batch keeps its
        memory.  Optional inputs that the requests left out are not there."""
    def finish(self, outputs: Sequence[NDArray[Any]], names: Sequence[str] | None = None) -> None:
        """Answers every request from its rows of the outputs.

        They are in the signature's order or, where its outputs are open, have these `names`.
        """
    def fail(self, code: int, message: str, cause: BaseException | None = None) -> None:
        """Answers every request with an error; `code` is gRPC's, from 1 to 16.  Callers in this process get `cause`."""

@final
class Reply:
    """The promise of the outputs of one request."""

    def wait(self, timeout: float | None = None) -> bool:
        """Whether it is answered within `timeout` seconds.  Ctrl-C interrupts the wait within 100 ms."""
    def done(self) -> bool: ...
    def cancel(self) -> bool:
        """Whether this call answered the request, with CANCELLED; False once it was answered."""
    def outputs(self) -> dict[str, NDArray[Any]]:
        """Contiguous, writable arrays of the caller's own.  Raises StatusError if the request failed or is not answered yet."""

@final
class ReplyQueue:
    """Tells one reader, an event loop or a thread, which replies have been answered.

    fileno() turns readable once for all answers that nobody has taken yet: once per batch, not once per reply.
    """

    def __init__(self) -> None: ...
    def fileno(self) -> int: ...
    def watch(self, reply: Reply, token: object) -> None:
        """take() hands out `token` once, when the reply is answered; at once if it is already.  A reply can be watched
        by one queue (FAILED_PRECONDITION)."""
    def put(self, token: object) -> None:
        """take() hands out `token`."""
    def take(self) -> list[Any]:
        """The tokens since the last call; clears fileno()."""

@final
class Slot:
    """A private buffer for the rows of a request that is not queued yet."""

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """Writable views of the buffer, 64-byte aligned, by input name."""
    def submit(self, timeout: float | None = None) -> Reply:
        """Queues the request, once; the buffer must not be written from then on.  As Lane.submit()."""

@final
class Lane:
    @property
    def signature(self) -> Signature: ...
    @property
    def options(self) -> LaneOptions: ...
    def predict(
        self, inputs: Mapping[str, Any], timeout: float | None = None, cast: bool = False
    ) -> dict[str, NDArray[Any]]:
        """Queues one request and waits for its outputs; raises StatusError if it is refused or fails.

        If native executors serve the lane and one of them is idle, the calling thread may run the batch in its place:
        where 99 of 100 runs of that size took less than 50 ms, and end before the deadline.  Ctrl-C interrupts the
        wait within 100 ms, or after that run, and cancels the request.
        """
    def submit(
        self, inputs: Mapping[str, Any], timeout: float | None = None, cast: bool = False, announce: bool = True
    ) -> Reply:
        """Queues one request; `timeout` in seconds becomes its deadline.  Raises StatusError if it is refused.

        Arrays are copied: they may change once this returns.  Lists and numbers take the signature's dtype; an array
        of another dtype is INVALID_ARGUMENT, unless `cast` allows other numbers: integers that fit, and floats of
        another precision.  Without `announce` no sleeping executor is woken unless a batch is full: for callers that
        queue several and then call announce().
        """
    def announce(self) -> None: ...
    def reserve(
        self,
        rows: int,
        shapes: Mapping[str, Sequence[int]] | None = None,
        dtypes: Mapping[str, Any] | None = None,
    ) -> Slot:
        """A buffer for a request of `rows` rows.

        `shapes` (of one row, without the batch dimension) and `dtypes` are needed where the signature leaves them
        open.  INVALID_ARGUMENT for strings, for what contradicts the signature, and past its limits.
        """
    def stats(self) -> dict[str, Any]:
        """Counters since the start.  See core/stats.h for each name."""

@final
class Model:
    """A loaded model version: its lanes and the executors that serve them."""

    def __init__(self, name: str, version: int, timer: Timer) -> None: ...
    @property
    def name(self) -> str: ...
    @property
    def version(self) -> int: ...
    def add_lane(
        self,
        signature: Signature,
        options: LaneOptions,
        runner: Runner | None = None,
        pinner: SlabPinner | None = None,
    ) -> Lane:
        """Adds a lane; before start() or the first next().  Without a runner its batches come out of next()."""
    def start(self, num_batch_threads: int) -> None:
        """Starts native executors.  Raises StatusError where a lane has no runner (FAILED_PRECONDITION) or the system no
        more threads (RESOURCE_EXHAUSTED)."""
    def next(self) -> Batch | None:
        """Waits for a gathered batch of any lane; None once the model is closed and drained.  For Python executors."""
    def close(self, drain_timeout: float) -> bool:
        """Refuses new requests, runs what waits for up to `drain_timeout` seconds, answers the rest UNAVAILABLE and stops
        the executors.  False if a run was still going on and its executor had to be left behind."""

@final
class Router:
    """Which lane a request goes to, by model name, version and signature name."""

    def __init__(self) -> None: ...
    def add(self, model: Model, name: str | None = None) -> None:
        """Routes requests for `name`, by default the model's own, to the model."""

@final
class PredictQueue:
    """PredictRequest messages in, PredictResponse messages out, for a transport that is written in Python.

    Every submit() is answered by exactly one entry of take(), errors included.  fileno() turns readable when answers
    wait: once per batch, not once per request.
    """

    def __init__(self, router: Router) -> None: ...
    def fileno(self) -> int: ...
    def submit(self, token: int, message: bytes, timeout: float | None = None) -> None:
        """`token` names the request in cancel() and take(); it must not be in use."""
    def cancel(self, token: int) -> None: ...
    def take(self) -> list[tuple[int, int, str, bytes]]:
        """(token, code, message, response) of each answered request; clears fileno()."""
    def pending(self) -> int: ...
    def close(self) -> None: ...

@final
class HandlerCall:
    """One message of a call to one of GrpcServer's methods.  Answered once; one that is dropped is answered INTERNAL."""

    @property
    def path(self) -> str: ...
    @property
    def message(self) -> bytes: ...
    def answer(self, response: bytes) -> None: ...
    def fail(self, code: int, message: str) -> None:
        """`code` is one of gRPC's, but not OK."""

@final
class GrpcServer:
    """gRPC over HTTP/2 on threads of its own, which run no Python: Predict for the models of `router`, and health.

    `methods` are the paths of those that next_call() hands out, and whether they are streams of messages with one reply
    to each.  Times are in seconds, 0 for ever.
    """

    def __init__(
        self,
        router: Router,
        methods: Mapping[str, bool],
        *,
        handler_calls_max: int = 1000,
        loops: int = 1,
        message_bytes_max: int = 0x7FFFFFFF,
        header_bytes_max: int = 16384,
        streams_max: int = 1024,
        connections_max: int = 16384,
        requests_max: int = 65536,
        buffered_bytes_max: int = 1073741824,
        request: float = 60.0,
        idle: float = 0.0,
        age: float = 0.0,
        age_grace: float = 0.0,
        ping: float = 0.0,
        ping_answer: float = 20.0,
    ) -> None: ...
    def set_tls(self, private_key: str, certificate: str, client_ca: str, verify_client: bool) -> None:
        """Clients that connect from now on must talk TLS; connections that are open go on.

        PEM texts: a key without a passphrase, the server's certificate and what leads to a root, and whose certificates
        clients may have ("": nobody's).  With `verify_client` a client without one is refused.  Raises StatusError
        (INVALID_ARGUMENT), which says which text is wrong; then nothing changes.
        """
    def start(self, host: str, port: int, socket_path: str = "") -> int:
        """Listens and serves, once, on a unix socket too if there is a path; returns the port.

        Raises StatusError where it cannot listen.
        """
    def refuse(self) -> None:
        """Answers UNAVAILABLE to every call that comes from now on."""
    def stop(self, drain: float, send: float) -> bool:
        """Waits up to `drain` seconds for answers and `send` seconds until clients have them; ends every next_call().

        False if something was not answered in time, which was answered UNAVAILABLE then.
        """
    def next_call(self) -> HandlerCall | None:
        """Waits for a call; None once the server has stopped."""
    def set_health(self, service: str, serving: int) -> None:
        """`serving` is a grpc.health.v1 ServingStatus."""

@final
class LatencyHistogram:
    """How often each latency was seen, in HdrHistogram's buckets; nanoseconds to 1 to 3 significant digits."""

    def __init__(self, significant_digits: int = 3) -> None: ...
    def record(self, latency_ns: int) -> None: ...
    def count(self) -> int: ...
    def min_ns(self) -> int: ...
    def max_ns(self) -> int: ...
    def mean_ns(self) -> float: ...
    def quantile_ns(self, quantile: float) -> int:
        """What this share of the latencies, from 0 to 1, did not exceed; 0 where there are none."""
    def buckets(self) -> list[tuple[int, int, int]]:
        """(lowest_ns, highest_ns, count) of each bucket that is not empty, in order."""

@final
class BenchReport:
    """What a run of BenchClient has measured."""

    @property
    def by_code(self) -> dict[int, int]:
        """How many requests ended with each of gRPC's codes."""
    @property
    def texts(self) -> dict[int, str]:
        """The first message of each code but OK, percent-encoded as the server sent it."""
    @property
    def latency(self) -> LatencyHistogram:
        """Of the requests that ended with OK, from the time they were meant to be sent."""
    @property
    def lateness(self) -> LatencyHistogram:
        """How long after that time the requests of an open loop were sent."""
    @property
    def slice_ns(self) -> int: ...
    @property
    def slices(self) -> list[tuple[int, LatencyHistogram]]:
        """How many failed, and the latencies of the others, by the time of the answer."""
    @property
    def warm_up(self) -> int:
        """Answered requests that were not measured."""
    @property
    def unsent(self) -> int: ...
    @property
    def unanswered(self) -> int: ...
    @property
    def last_answer_ns(self) -> int:
        """From the end of the warm-up."""
    @property
    def answers(self) -> list[list[tuple[bytes, int]]]:
        """With keep_answers: the different messages that answered each of those sent, and how often."""
    @property
    def answers_dropped(self) -> int: ...
    @property
    def status(self) -> tuple[int, str]:
        """Why the run ended early; code 0 if it did not."""

@final
class BenchClient:
    """The load generator: sends `messages` in turn to a unary gRPC method.

    `arrivals_ns`, int64[n] in order from 0 on, makes it an open loop, else `concurrency` requests are under way, for
    `duration` seconds or until there were so many `requests`.  `timeout` is text for grpc-timeout.  Raises StatusError
    (INVALID_ARGUMENT) for what does not go together.
    """

    def __init__(
        self,
        host: str,
        port: str,
        path: str,
        messages: Sequence[bytes],
        *,
        connections: int = 1,
        threads: int = 1,
        concurrency: int = 1,
        duration: float | None = None,
        requests: int | None = None,
        arrivals_ns: NDArray[Any] | None = None,
        warm_up: float = 0.0,
        patience: float = 10.0,
        timeout: str = "",
        keep_answers: bool = False,
    ) -> None: ...
    def start(self) -> None:
        """Connects and begins; once.  Raises StatusError (UNAVAILABLE) where there is no such server."""
    def wait_for(self, limit: float) -> bool:
        """Waits up to `limit` seconds; whether the run is over."""
    def stop(self) -> None:
        """Ends the run; what is under way is abandoned."""
    def was_progress(self) -> tuple[int, int, int]:
        """(answered, failed, elapsed_ns), the warm-up included."""
    def take_report(self) -> BenchReport:
        """Ends the run, if it is not over; once."""
