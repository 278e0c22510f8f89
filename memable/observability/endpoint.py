"""The HTTP endpoint of a worker: metrics and health, from a thread of its own, so that a blocked loop can be told."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from socketserver import TCPServer, ThreadingMixIn
from typing import TYPE_CHECKING, Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from memable.errors import SettingsError

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

_log = logging.getLogger("memable.endpoint")

_SILENCE_S: Final = 10.0
"""Who connects and asks for nothing is left after that."""

_POLL_S: Final = 0.1


def text_page(read: Callable[[], tuple[str, str]]) -> WSGIApplication:
    """A page that says one line: `read` returns the HTTP status, and the line."""

    def page(_: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        status, line = read()
        body = f"{line}\n".encode()
        headers = [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(body)))]
        start_response(status, [*headers, ("Cache-Control", "no-store")])
        return [body]

    return page


class Endpoint:
    """Serves `pages`, by their paths, until `close`. `SettingsError` if it cannot have the address."""

    def __init__(self, host: str, port: int, pages: Mapping[str, WSGIApplication]) -> None:
        self._pages = dict(pages)
        self._missing = text_page(lambda: ("404 Not Found", f"there is only {', '.join(pages)}"))
        try:
            family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
            self._server = _Server.of(family, address[:2])
        except (OSError, OverflowError) as error:
            raise SettingsError(
                f"MEMABLE_METRICS_PORT is {port} and MEMABLE_METRICS_HOST is {host!r}: nothing can be served there: "
                f"{error}"
            ) from None
        self._server.set_app(self._serve)
        self.host, self.port = host, int(self._server.server_address[1])
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_POLL_S,), name="memable-endpoint", daemon=True
        )

    def start(self) -> None:
        self._thread.start()
        _log.info("metrics and health are at %s", self.url)

    @property
    def url(self) -> str:
        """Where it is; the port is the one that was found where any would do."""
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    def close(self) -> None:
        """Serve no more; takes a moment."""
        if self._thread.is_alive():
            self._server.shutdown()
        self._server.server_close()

    def _serve(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        return self._pages.get(environ.get("PATH_INFO", ""), self._missing)(environ, start_response)


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    block_on_close = False

    @classmethod
    def of(cls, family: int, address: Any) -> _Server:
        kind: type[_Server] = type("_Server", (cls,), {"address_family": family})  # a server's socket is of its class's
        return kind(address, _Handler)

    def server_bind(self) -> None:
        # not as HTTPServer does, which asks the name service who we are
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        _log.debug("a request could not be answered", exc_info=True)


class _Handler(WSGIRequestHandler):
    timeout = _SILENCE_S

    def log_message(self, format: str, *args: Any) -> None:
        _log.debug(format, *args)

    def get_stderr(self) -> Any:
        return _Unheard()


class _Unheard:
    """Where wsgiref would write a traceback of a client that went away."""

    def write(self, text: str) -> None:
        _log.debug("%s", text)

    def flush(self) -> None: ...
