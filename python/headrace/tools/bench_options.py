# SPDX-License-Identifier: Apache-2.0
"""The options of `headrace bench`."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.config import check_options, option
from headrace.errors import InvalidArgument

PORT_DEFAULT = 8500
DURATION_DEFAULT_S = 10.0
WARM_UP_DEFAULT_S = 1.0
HOURS_24_S = 86_400.0


@dataclass(frozen=True)
class BenchOptions:
    """What to send where, and how.  Raises InvalidArgument for what does not go together."""

    target: str
    model_name: str = option("", "model to ask")
    signature_name: str = option("", "its signature", default_text="serving_default")
    model_version: int | None = option(None, "its version", least=0, default_text="the latest")
    rows: int | None = option(
        None, "rows of a request; of --npz files, which are cut into such requests", least=1, default_text="1"
    )
    open_size: int | None = option(
        None, "size of dimensions, other than the first, that the signature leaves open", least=0, default_text="none"
    )
    method: str = option("", "another unary method, as /package.Service/Method", default_text="Predict")
    concurrency: int = option(1, "closed loop: requests under way", least=1, most=65_536)
    connections: int = option(1, "connections to share them", least=1, most=1024)
    threads: int = option(1, "threads to share the connections", unit="threads", least=1, most=64)
    duration: float | None = option(
        None,
        "how long to measure",
        unit="seconds",
        least=0.001,
        most=HOURS_24_S,
        default_text=f"{DURATION_DEFAULT_S:g}, or for as long as the requests or the file take",
    )
    requests: int | None = option(None, "how many to measure", least=1, default_text="as many as the time allows")
    rate: float | None = option(
        None, "open loop: requests per second, however slow the server is", least=0.001, default_text="a closed loop"
    )
    arrivals: str = option(
        "poisson", "open loop: poisson, gamma, or a file with each request's time in seconds, one to a line"
    )
    cv: float | None = option(
        None,
        "of gamma: coefficient of variation of the time between requests",
        least=0.01,
        most=100.0,
        default_text="1",
    )
    seed: int = option(0, "of random data and arrivals", least=0)
    warm_up: float | None = option(
        None,
        "how long to send before measuring",
        unit="seconds",
        least=0.0,
        most=HOURS_24_S,
        default_text=f"{WARM_UP_DEFAULT_S:g}, 0 for a file of arrivals",
    )
    timeout: float | None = option(
        None, "deadline of each request", unit="seconds", least=0.001, most=HOURS_24_S, default_text="none"
    )
    patience: float = option(
        10.0, "how long to wait for answers at the end, or for any at all", unit="seconds", least=0.001, most=HOURS_24_S
    )
    verify: bool = option(False, "compare each answer with that of the same request sent alone")
    tolerance: float = option(
        1e-5, "of --verify: difference of floats allowed, as a share of their tensor's largest", least=0.0, most=1.0
    )
    server_pid: int | None = option(
        None, "process of a server on this machine, for its CPU per request", least=1, default_text="none"
    )
    json: bool = option(False, "print JSON instead of a table")
    plot: str = option("", "file for a plot of the latencies, such as out.png", default_text="none")
    npz: tuple[str, ...] = ()
    message: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_options(self)
        _ = self.address
        if self.method and not self.method.startswith("/"):
            raise InvalidArgument(f"method is {self.method!r}; it must be as /package.Service/Method")
        if self.method and not self.message:
            raise InvalidArgument("method needs --message=FILE: its request message, as it is sent")
        if self.npz and self.message:
            raise InvalidArgument("npz and message both say what to send; give one of them")
        if not self.model_name and not self.message:
            raise InvalidArgument("no model to ask: give --model_name, or --message=FILE")
        if self.threads > self.connections:
            raise InvalidArgument(f"threads is {self.threads}; each needs one of {self.connections} connections")
        if self.is_open_loop:
            if self.concurrency != 1:
                raise InvalidArgument("concurrency is of a closed loop, rate and arrivals are of an open one")
        elif self.connections > self.concurrency:
            raise InvalidArgument(
                f"connections is {self.connections}; each needs one of {self.concurrency} requests (--concurrency)"
            )
        if self.arrivals_file and self.rate is not None:
            raise InvalidArgument("rate and a file of arrivals both say when to send; give one of them")
        if self.cv is not None and self.arrivals != "gamma":
            raise InvalidArgument("cv is of --arrivals=gamma")
        if self.arrivals == "gamma" and self.rate is None:
            raise InvalidArgument("arrivals needs --rate")

    @property
    def address(self) -> tuple[str, str]:
        """Host and port."""
        if self.target.startswith("unix:"):
            raise InvalidArgument(f"{self.target}: only TCP can be measured; give HOST:PORT")
        host, colon, port = self.target.rpartition(":")
        if not colon or self.target.endswith("]"):
            host, port = self.target, str(PORT_DEFAULT)
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        if not host or not port.isdecimal() or not 0 < int(port) < 65_536:
            raise InvalidArgument(f"{self.target!r} is no HOST:PORT")
        return host, port

    @property
    def arrivals_file(self) -> str:
        return "" if self.arrivals in ("poisson", "gamma") else self.arrivals

    @property
    def is_open_loop(self) -> bool:
        return self.rate is not None or bool(self.arrivals_file)

    @property
    def warm_up_s(self) -> float:
        if self.warm_up is not None:
            return self.warm_up
        return 0.0 if self.arrivals_file else WARM_UP_DEFAULT_S

    @property
    def duration_s(self) -> float | None:
        """None where the number of requests ends the run."""
        if self.duration is None and self.requests is None and not self.arrivals_file:
            return DURATION_DEFAULT_S
        return self.duration
