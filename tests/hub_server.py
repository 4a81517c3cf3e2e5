"""A small Hugging Face Hub on this machine's loopback: real HTTP, so that real clients talk to it.

It counts requests and bytes, and fails on demand at a given request.
"""

import socket
import threading
import time
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import hub_api
import hub_xet
from hub_api import Reply, Request, answer
from hub_repositories import Repository
from hub_state import Hub, Seen


@contextmanager
def run_hub() -> Iterator[Hub]:
    """A server for as long as the context lasts."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
    )
    thread.start()
    try:
        yield hub
    finally:
        hub.heal()
        server.shutdown()
        server.server_close()
        thread.join()


_ROUTES = (*hub_api.ROUTES, *hub_xet.ROUTES)


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # a head and its body are two packets: the second would wait

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._handle()

    do_HEAD = do_POST = do_PUT = do_DELETE = do_GET

    def _handle(self) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        with self.hub.lock:
            number, self.hub.number = self.hub.number, self.hub.number + 1
            fault = self.hub.fault
        kind = fault.kind if fault is not None and fault.hits(number, self.path) else None
        if kind == "cut":
            self._note(content, Reply(0), 0)
            return self._drop()
        if kind in ("500", "401"):
            reply = Reply(int(kind), b'{"error": "no"}')
        else:
            if kind == "race" and (target := self._repository_of()) is not None:
                target.put("somebody-else.txt", str(number).encode())
            reply = self._answer(content)
        if kind == "lost":
            self._note(content, reply, 0)
            return self._drop()
        self._send(reply, kind, content)

    def _repository_of(self) -> Repository | None:
        return next(
            (r for n, r in self.hub.repositories.items() if f"{n}/" in f"{self.path}/"), None
        )

    def _answer(self, content: bytes) -> Reply:
        query = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(self.path).query))
        headers: Any = self.headers
        request = Request(self.hub, self.path, query, headers, content)
        return answer(self.command, request, _ROUTES)

    def _send(self, reply: Reply, kind: str | None, content: bytes) -> None:
        self._note(content, reply, 0 if self.command == "HEAD" else len(reply.body))
        self.send_response(reply.status)
        headers = {"Content-Type": "application/json", **reply.headers}
        for name, value in ({"Content-Length": str(len(reply.body))} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        try:
            if kind == "stall":
                self.wfile.write(reply.body[: len(reply.body) // 2])
                self.wfile.flush()
                self.hub.released.wait(20)
                self._drop()
            elif kind == "slow":
                for place in range(0, len(reply.body), 100):
                    self.wfile.write(reply.body[place : place + 100])
                    self.wfile.flush()
                    time.sleep(0.0002)
            else:
                self.wfile.write(reply.body)
        except OSError:  # the client has gone
            self.close_connection = True

    def _note(self, content: bytes, reply: Reply, sent: int) -> None:
        seen = Seen(
            self.command,
            self.path,
            self.headers.get("Range"),
            len(content),
            sent,
            reply.status,
        )
        with self.hub.lock:
            self.hub.seen.append(seen)

    def _drop(self) -> None:
        self.close_connection = True
        try:
            self.connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
