# SPDX-License-Identifier: Apache-2.0
"""When the requests of an open loop are sent."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headrace.errors import InvalidArgument
from headrace.tools.bench_options import BenchOptions

ARRIVALS_MAX = 100_000_000
NS_PER_S = 1e9


def arrivals_ns(options: BenchOptions) -> NDArray[np.int64]:
    """int64[n], in order, from the start of the warm-up.  Raises InvalidArgument for a file that is none of times."""
    times_s = _of_file(options.arrivals_file) if options.arrivals_file else _random(options)
    end_s = np.inf if options.duration_s is None else options.warm_up_s + options.duration_s
    times_s = times_s[: np.searchsorted(times_s, end_s)]
    if options.requests is not None:
        times_s = times_s[: np.searchsorted(times_s, options.warm_up_s) + options.requests]
    if not np.any(times_s >= options.warm_up_s):
        raise InvalidArgument("no request arrives in the time that is measured: raise the duration or the rate")
    return (times_s * NS_PER_S).astype(np.int64)


def _random(options: BenchOptions) -> NDArray[np.float64]:
    """Times with gamma-distributed intervals, at least as many as are wanted; of cv 1, that is a Poisson process."""
    assert options.rate is not None
    bounds = []
    if options.duration_s is not None:
        bounds.append((options.warm_up_s + options.duration_s) * options.rate)
    if options.requests is not None:
        bounds.append(options.warm_up_s * options.rate + options.requests)
    expected = min(bounds)
    if expected > ARRIVALS_MAX:
        raise InvalidArgument(f"rate and duration make {expected:.3g} requests; at most {ARRIVALS_MAX:,} are possible")
    cv = 1.0 if options.cv is None else options.cv
    shape = cv**-2
    random = np.random.default_rng(options.seed)
    times_s: NDArray[np.float64] = np.zeros(1)
    while not _suffices(times_s, options):
        more = random.gamma(shape, 1.0 / (shape * options.rate), size=int(expected) + 16)
        times_s = np.concatenate([times_s, times_s[-1] + np.cumsum(more)])
    return times_s[1:]


def _suffices(times_s: NDArray[np.float64], options: BenchOptions) -> bool:
    if options.duration_s is not None and times_s[-1] >= options.warm_up_s + options.duration_s:
        return True
    measured = times_s.size - int(np.searchsorted(times_s, options.warm_up_s))
    return options.requests is not None and measured > options.requests


def _of_file(path: str) -> NDArray[np.float64]:
    try:
        times_s: NDArray[np.float64] = np.sort(np.loadtxt(path, np.float64, ndmin=1))
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"{path}: {error}") from None
    if times_s.ndim != 1 or times_s.size == 0 or not np.all((times_s >= 0) & (times_s < 1e6)):
        raise InvalidArgument(f"{path}: must hold times in seconds from 0 on, one to a line")
    return times_s
