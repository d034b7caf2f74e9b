# SPDX-License-Identifier: Apache-2.0
"""A closed loop of Predict calls over gRPC: a fixed number in flight, the next one sent when one returns."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import grpc

PREDICT = "/tensorflow.serving.PredictionService/Predict"


@dataclass
class Round:
    """What one closed loop measured."""

    seconds: float = 0.0
    latencies_s: list[float] = field(default_factory=list)  # of each call that was answered
    responses: dict[int, list[bytes]] = field(default_factory=dict)  # PredictResponse messages by index of the request
    errors: list[str] = field(default_factory=list)

    @property
    def requests_per_s(self) -> float:
        return len(self.latencies_s) / self.seconds

    def latency_ms(self, quantile: float) -> float:
        """The latency that this share of the answered calls did not exceed, in milliseconds."""
        ordered = sorted(self.latencies_s)
        return 1e3 * ordered[min(len(ordered) - 1, int(quantile * len(ordered)))]


async def closed_loop(address: str, requests: Sequence[bytes], *, in_flight: int, seconds: float) -> Round:
    """Sends `requests` (PredictRequest messages) over and over: each at least once, and for at least `seconds`.

    Messages travel as they are, so that the client spends its time on gRPC only; the responses are kept to be decoded
    later.  A call that fails ends up in `errors`; it raises nothing.
    """
    result = Round()
    numbers = iter(range(1 << 62))

    async with grpc.aio.insecure_channel(address) as channel:
        predict: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(PREDICT)
        await asyncio.wait_for(channel.channel_ready(), timeout=30)
        start = time.perf_counter()

        async def caller() -> None:
            for number in numbers:
                sent = time.perf_counter()
                if number >= len(requests) and sent - start >= seconds:
                    return
                index = number % len(requests)
                try:
                    response = await predict(requests[index])
                except grpc.aio.AioRpcError as error:
                    result.errors.append(f"{error.code().name}: {error.details()}")
                    if len(result.errors) >= in_flight:
                        return  # a server that is gone fails every call at once
                else:
                    result.latencies_s.append(time.perf_counter() - sent)
                    result.responses.setdefault(index, []).append(response)

        await asyncio.gather(*(caller() for _ in range(in_flight)))
        result.seconds = time.perf_counter() - start
    return result
