# SPDX-License-Identifier: Apache-2.0
"""Servers for the tests that only ask, one process for each model, transport and executor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
import tensorflow as tf

from tests.e2e.served import Client, Served
from tests.models import save

if TYPE_CHECKING:
    from pathlib import Path

Ask = Callable[[str], Client]


@pytest.fixture(scope="session", params=["grpcio", "native"])
def transport(request: pytest.FixtureRequest) -> str:
    """Each transport: all of them must answer the same."""
    return str(request.param)


@pytest.fixture(scope="session", params=["native", "python"])
def executor(request: pytest.FixtureRequest) -> str:
    """Each executor: both must answer the same."""
    return str(request.param)


@pytest.fixture(scope="session")
def slow_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that takes about x milliseconds for its largest x, and answers x."""
    root = tmp_path_factory.mktemp("slow") / "slow"
    matrix = tf.random.stateless_normal([256, 256], [1, 2]) / 16.0

    def call(x: Any) -> Any:
        turns = tf.cast(tf.reduce_max(x), tf.int32)
        _, product = tf.while_loop(
            lambda i, _: i < turns, lambda i, product: (i + 1, tf.tanh(product @ matrix)), (0, matrix)
        )
        return {"y": x + 0.0 * product[0, 0]}

    save(root / "1", {"serving_default": (call, {"x": ([None], "float32")})})
    return root


@pytest.fixture(scope="session")
def ask(saved_models: Path, transport: str, executor: str) -> Iterator[Ask]:
    """A client of a server of the model of that name; the server is started when it is first asked."""
    clients: dict[str, Client] = {}
    with ExitStack() as servers:

        def client(model: str) -> Client:
            if model not in clients:
                server = servers.enter_context(
                    Served(saved_models / model, "--port=0", f"--grpc_transport={transport}", f"--executor={executor}")
                )
                clients[model] = Client(server.address, model)
            return clients[model]

        yield client
        for each in clients.values():
            each.channel.close()
