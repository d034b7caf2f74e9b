# SPDX-License-Identifier: Apache-2.0
"""`headrace serve`: load, serve, log, drain.

What takes long to import is imported once signals are heard.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
import threading
from typing import TYPE_CHECKING, NoReturn

from headrace.config import ServeOptions
from headrace.server.ports import check_port, check_socket_path
from headrace.server.signals import StopSignals

if TYPE_CHECKING:
    from headrace.server.server import Server
    from headrace.server.ssl_config import SslConfigFile

logger = logging.getLogger("headrace")

HOST = "0.0.0.0"
LOG_INTERVAL_S = 10.0

# How long the requests that were accepted may take when it stops.
DRAIN_S = 30.0

SERVER = "headrace.server.server"

# How long one Python thread may keep the others waiting: the event loop must not wait 5 ms for an executor.
SWITCH_INTERVAL_S = 0.0002


def serve(options: ServeOptions) -> int:
    """Serves until SIGINT or SIGTERM, and returns the exit code.  Raises HeadraceError if it cannot serve.

    The main thread only waits for signals, so that they are heard while a model loads and while requests drain.
    """
    _set_up_process()
    with StopSignals() as signals:
        loading = signals.run(lambda: _load(options), "headrace-load")
        told_to_stop = False
        while not loading.done():
            told_to_stop = signals.wait()
            if told_to_stop and not loading.done():
                logger.info("stopped while starting")
                _exit_now(0)
        server = loading.result()
        starting = signals.run(server.start, "headrace-start")
        while not starting.done():
            # Clients may have found it before this thread hears of it: from here on it is stopped as one that serves.
            if signals.wait():
                if told_to_stop:
                    _stop_by_second_signal()
                told_to_stop = True
        starting.result()
        from headrace.metrics import IntervalLog

        interval = IntervalLog(server.lanes())
        while not told_to_stop and not signals.wait(LOG_INTERVAL_S):
            for line in interval.lines():
                logger.info("%s", line)
        logger.info("stopping: answering the requests that were accepted")
        stopping = signals.run(lambda: server.stop(DRAIN_S), "headrace-stop")
        while not stopping.done():
            if signals.wait() and not stopping.done():
                _stop_by_second_signal()
        stopped_well = stopping.result()
        for line in interval.lines():  # what was done since the last time
            logger.info("%s", line)
        if not stopped_well:
            logger.error("stopped: a run that had not returned after %.0f s was left behind", DRAIN_S)
            _exit_now(1)
    logger.info("stopped")
    return 0


def _load(options: ServeOptions) -> Server:
    """A server of the model, which is to be started."""
    check_port(HOST, options.port, option="--port")
    if options.grpc_socket_path:
        check_socket_path(options.grpc_socket_path, option="--grpc_socket_path")
    tls = _tls(options.ssl_config_file)
    # Much of loading a model is reading TensorFlow's library from disk: import the server meanwhile.
    importing = threading.Thread(target=importlib.import_module, args=(SERVER,), daemon=True)
    importing.start()
    try:
        from headrace import model

        loaded = model.load(
            options.model_base_path,
            name=options.model_name,
            max_batch_size=options.batching.max_batch_size,
            per_process_gpu_memory_fraction=options.per_process_gpu_memory_fraction,
            intra_op_parallelism=options.tensorflow_intra_op_parallelism,
            inter_op_parallelism=options.tensorflow_inter_op_parallelism,
        )
    finally:
        importing.join()  # Python must not end while it imports
    from headrace.server.server import Server

    return Server(
        {loaded.name: loaded},
        host=HOST,
        port=options.port,
        grpc_socket_path=options.grpc_socket_path,
        options=options.batching,
        executor=options.executor,
        grpc_transport=options.grpc_transport,
        grpc_options=options.grpc,
        tls=tls,
    )


def _tls(ssl_config_file: str) -> SslConfigFile | None:
    """Reads the file too: whoever has made a mistake in it need not wait until the model has been loaded."""
    if not ssl_config_file:
        return None
    from headrace.server.ssl_config import SslConfigFile

    tls = SslConfigFile(ssl_config_file)
    tls.read()
    return tls


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


def _stop_by_second_signal() -> NoReturn:
    logger.info("stopped by a second signal")
    _exit_now(1)


def _exit_now(code: int) -> NoReturn:
    """Ends the process without waiting for anything: threads may still be inside TensorFlow."""
    logging.shutdown()
    os._exit(code)
