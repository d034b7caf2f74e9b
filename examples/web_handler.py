# SPDX-License-Identifier: Apache-2.0
"""A SavedModel in a threaded web server: every request brings a row or a few, and the model runs full batches.

Ctrl-C ends it.

    make demo KEEP=1                                 # trains a model and leaves it in models/digits
    python examples/web_handler.py models/digits
    python -c 'import json; print(json.dumps({"x": [[0.5] * 64]}))' | curl localhost:8000 -d @-
"""

from __future__ import annotations

import contextlib
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import headrace

TIMEOUT_S = 1.0


class Handler(BaseHTTPRequestHandler):
    """POST {"input": [row, ...]} is answered by {"output": [row, ...]}; each request has a thread of its own."""

    protocol_version = "HTTP/1.1"
    batcher: headrace.Batcher

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        try:
            outputs = self.batcher.predict(json.loads(body), timeout=TIMEOUT_S)
        except ValueError as error:  # not JSON, or headrace.InvalidArgument: lists take the signature's dtype, or fail
            self.answer(400, {"error": str(error)})
        except headrace.Unavailable as error:  # too many are waiting
            self.answer(503, {"error": str(error)})
        except headrace.DeadlineExceeded as error:
            self.answer(504, {"error": str(error)})
        else:
            self.answer(200, {name: value.tolist() for name, value in outputs.items()})

    def answer(self, status: int, content: object) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def main(path: str = "models/digits", port: str = "8000") -> None:
    with headrace.Batcher(headrace.load(path)) as batcher:
        Handler.batcher = batcher
        with ThreadingHTTPServer(("127.0.0.1", int(port)), Handler) as server:
            print(f"http://127.0.0.1:{server.server_port}", flush=True)
            with contextlib.suppress(KeyboardInterrupt):
                server.serve_forever()
        counted = batcher.stats()
    print(f"{counted['requests']} requests, {counted['batches']} runs of the model")


if __name__ == "__main__":
    main(*sys.argv[1:])
