"""An S3 server for tests: moto's, behind a layer that can lose replies after a write was done.

moto looks whether a key exists and then writes it, so two conditional puts could both win; S3's cannot,
and the layer lets one through at a time.
"""

import contextlib
import logging
import multiprocessing
import os
import random
import socket
import threading
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

BUCKET = "bucket"
_CONTROL = "/_test/"
_SETTINGS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_DEFAULT_REGION": "us-east-1",
}


@dataclass(frozen=True)
class S3Server:
    """A running server; `AWS_ENDPOINT_URL` names it."""

    endpoint: str

    def lose_replies(self, share: float) -> None:
        """From now on, lose this share of the replies to writes."""
        self._ask(f"lose/{share}")

    def set_conditions(self, *, heeded: bool) -> None:
        """Whether `If-None-Match` is heeded, which some stores do not."""
        self._ask(f"conditions/{'on' if heeded else 'off'}")

    def take_requests(self) -> list[tuple[str, str, str]]:
        """Method, path and range of each request since the last time."""
        lines = self._ask("requests").splitlines()
        return [(method, path, span) for method, path, span in (line.split("\t") for line in lines)]

    def put(self, key: str, content: bytes) -> None:
        """Write an object past every client."""
        request = urllib.request.Request(
            f"{self.endpoint}/{BUCKET}/{key}",
            data=content,
            method="PUT",
            headers={"Content-Type": "application/octet-stream"},
        )
        urllib.request.urlopen(request).read()

    def _ask(self, what: str) -> str:
        with urllib.request.urlopen(f"{self.endpoint}{_CONTROL}{what}") as reply:
            return str(reply.read().decode())


@contextlib.contextmanager
def run_s3_server() -> Iterator[S3Server]:
    """Run a server with one bucket in a process of its own."""
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(there,))
    process.start()
    there.close()
    before = {name: os.environ.get(name) for name in (*_SETTINGS, "AWS_ENDPOINT_URL")}
    try:
        server = S3Server(f"http://127.0.0.1:{here.recv()}")
        os.environ |= {**_SETTINGS, "AWS_ENDPOINT_URL": server.endpoint}
        request = urllib.request.Request(f"{server.endpoint}/{BUCKET}", method="PUT")
        urllib.request.urlopen(request).read()
        yield server
    finally:
        process.kill()
        process.join()
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


class _Layer:
    """Counts requests, orders conditional puts, and loses replies."""

    def __init__(self, app: Callable[..., Iterable[bytes]]) -> None:
        self._app = app
        self._create = threading.Lock()
        self._share = 0.0
        self._has_conditions = True
        self._random = random.Random(0)
        self._requests: list[str] = []

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        if path.startswith(_CONTROL):
            return self._control(path.removeprefix(_CONTROL), start_response)
        self._requests.append(f"{method}\t{path}\t{environ.get('HTTP_RANGE', '')}")
        if not self._has_conditions:
            environ.pop("HTTP_IF_NONE_MATCH", None)
        is_create = environ.get("HTTP_IF_NONE_MATCH") == "*"
        with self._create if is_create else contextlib.nullcontext():
            body = b"".join(self._app(environ, start_response))
        if method in ("PUT", "POST", "DELETE") and self._random.random() < self._share:
            connection = environ["werkzeug.socket"]
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            raise ConnectionAbortedError
        return [body]

    def _control(self, what: str, start_response: Any) -> Iterable[bytes]:
        reply = ""
        if what == "requests":
            reply, self._requests = "\n".join(self._requests), []
        elif what.startswith("lose/"):
            self._share = float(what.removeprefix("lose/"))
        else:
            self._has_conditions = what == "conditions/on"
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [reply.encode()]


def _serve(connection: Connection) -> None:
    from moto.server import create_backend_app
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
    app = _Layer(create_backend_app("s3"))
    server = make_server("127.0.0.1", 0, app, threaded=True)
    connection.send(server.port)
    server.serve_forever()
