# SPDX-License-Identifier: Apache-2.0
"""`headrace serve`: load, serve, log, drain."""

from __future__ import annotations

import importlib
import logging
import os
import sys
import threading
from typing import TYPE_CHECKING, NoReturn

from headrace.config import ServeOptions
from headrace.metrics import IntervalLog
from headrace.server.ports import check_port
from headrace.server.signals import StopSignals

if TYPE_CHECKING:
    from headrace.engine import Engine
    from headrace.server.grpc_server import GrpcServer
    from headrace.server.health import Health

logger = logging.getLogger("headrace")

HOST = "0.0.0.0"
LOG_INTERVAL_S = 10.0

# How long stopping may take: for requests to be answered, then for clients to receive the answers.
DRAIN_S = 30.0
SEND_S = 5.0

TRANSPORT = "headrace.server.grpc_server"

# How long one Python thread may keep the others waiting: the event loop must not wait 5 ms for an executor.
SWITCH_INTERVAL_S = 0.0002


def serve(options: ServeOptions) -> int:
    """Serves until SIGINT or SIGTERM, and returns the exit code.  Raises HeadraceError if it cannot serve.

    The main thread only waits for signals, so that they are heard while a model loads and while requests drain.
    """
    _set_up_process()
    with StopSignals() as signals:
        starting = signals.run(lambda: Serving(options), "headrace-start")
        told_to_stop = False
        while not starting.done():
            told_to_stop = signals.wait()
            if told_to_stop and not starting.done():
                logger.info("stopped while starting")
                _exit_now(0)
        serving = starting.result()
        logger.info("serving %s", serving.where)
        while not told_to_stop and not signals.wait(LOG_INTERVAL_S):
            serving.log_interval()
        logger.info("stopping: answering the requests that were accepted")
        stopping = signals.run(serving.stop, "headrace-stop")
        while not stopping.done():
            if signals.wait() and not stopping.done():
                logger.info("stopped by a second signal")
                _exit_now(1)
        if not stopping.result():
            logger.error("stopped: a run that had not returned after %.0f s was left behind", DRAIN_S)
            _exit_now(1)
    logger.info("stopped")
    return 0


class Serving:
    """A server of one model; it serves once this is constructed."""

    def __init__(self, options: ServeOptions) -> None:
        check_port(HOST, options.port)
        # Much of loading a model is reading TensorFlow's library from disk: import the transport meanwhile.
        importing = threading.Thread(target=importlib.import_module, args=(TRANSPORT,), daemon=True)
        importing.start()
        self._engine, name = _load(options)
        importing.join()
        self._health, self._grpc, port = _listen(self._engine, options)
        self._interval = IntervalLog(self._engine.lanes())
        self.where = f"{name} on {HOST}:{port}"

    def log_interval(self) -> None:
        for line in self._interval.lines():
            logger.info("%s", line)

    def stop(self) -> bool:
        """Answers what was accepted and stops; False if a run had to be left behind."""
        self._health.stop()
        ended = self._engine.close(DRAIN_S)
        self._grpc.stop(SEND_S)
        return ended


def _load(options: ServeOptions) -> tuple[Engine, str]:
    """An engine that serves the model, and the model in words."""
    from headrace import model
    from headrace.engine import Engine

    loaded = model.load(
        options.model_base_path,
        name=options.model_name,
        max_batch_size=options.batching.max_batch_size,
        per_process_gpu_memory_fraction=options.per_process_gpu_memory_fraction,
        intra_op_parallelism=options.tensorflow_intra_op_parallelism,
        inter_op_parallelism=options.tensorflow_inter_op_parallelism,
    )
    engine = Engine()
    for line in (*loaded.log_lines, *engine.add(loaded, options.batching, executor=options.executor)):
        logger.info("%s", line)
    return engine, f"{loaded.name} version {loaded.version}"


def _listen(engine: Engine, options: ServeOptions) -> tuple[Health, GrpcServer, int]:
    from headrace.server.grpc_server import GrpcServer
    from headrace.server.health import Health
    from headrace.server.services import PREDICTION_SERVICE, control_services

    health = Health([PREDICTION_SERVICE, PREDICTION_SERVICE.rpartition(".")[2]])
    server = GrpcServer(engine.router, control_services(health), health)
    port = server.start(HOST, options.port)
    health.serve()
    return health, server, port


def _set_up_process() -> None:
    """What only a command may do to its process."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logging.raiseExceptions = False  # a reader of the log who goes away is no reason to complain
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    # What the libraries have to say of a taken port or a missing GPU, we say in one line.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def _exit_now(code: int) -> NoReturn:
    """Ends the process without waiting for anything: threads may still be inside TensorFlow."""
    logging.shutdown()
    os._exit(code)
