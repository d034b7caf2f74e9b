# SPDX-License-Identifier: Apache-2.0
"""Servers for the tests that only ask, one process for each model, transport and executor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from tests.e2e.served import Client, Served

if TYPE_CHECKING:
    from pathlib import Path

Ask = Callable[[str], Client]


@pytest.fixture(scope="session", params=["grpcio"])
def transport(request: pytest.FixtureRequest) -> str:
    """Each transport: all of them must answer the same."""
    return str(request.param)


@pytest.fixture(scope="session", params=["native", "python"])
def executor(request: pytest.FixtureRequest) -> str:
    """Each executor: both must answer the same."""
    return str(request.param)


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
