"""The command that answers what Prometheus and KEDA ask: metrics."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from mosaic_tasks.cli.options import JsonOption
from mosaic_tasks.cli.output import print_json_line, to_json

if TYPE_CHECKING:
    from redis import Redis

    from mosaic_tasks.observability.gathering import Figures

PORT = 9464
TEXT = "text/plain; version=0.0.4; charset=utf-8"
JSON = "application/json"
_AWAY_S = 10.0
"""A client that says nothing for so long is let go."""
_SERVER_S = 3.0
"""So long a command waits for the server, and once more after it was lost."""


def metrics(
    host: Annotated[
        str, typer.Option("--host", metavar="ADDRESS", help="Where to answer; nobody is asked who they are.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", "-p", min=0, max=65535, help="0: any that is free.")] = PORT,
    as_json: JsonOption = False,
) -> None:
    """Answer over HTTP what runs, queues, workers, engines and mixtures do, until Ctrl-C.

    /metrics: all figures, in Prometheus's text format. /work/GROUP: of a group of the topology, as JSON: messages that
    wait, those that its workers have taken and not ended, and both together, by which KEDA scales. It says where it
    answers once it does; with --json as one line of JSON.

    \b
    Examples:
      mosaic metrics --port 9464
      curl http://127.0.0.1:9464/metrics
      curl http://127.0.0.1:9464/work/cpu
    """
    from mosaic_queues.collector import end_loading
    from mosaic_queues.connection import connect, server_urls
    from mosaic_queues.keys import Keys
    from mosaic_queues.settings import settings
    from mosaic_tasks.app import app
    from mosaic_tasks.observability.gathering import gather

    signal.signal(signal.SIGTERM, _interrupt)  # the first process of a container has no default for it
    keys = Keys(settings().namespace)
    with (
        impatient(connect(server_urls().redis_url)) as client,
        listening(host, port, lambda: gather(app, client, keys)) as server,
    ):
        url = f"http://{host}:{server.server_address[1]}/metrics"
        if as_json:
            print_json_line({"url": url})
        else:
            typer.echo(url)
        end_loading()
        server.serve_forever()


def impatient(client: Redis) -> Redis:
    """A client of the same server which gives up before those who ask here do: Prometheus waits for 10 s."""
    from redis import ConnectionPool, Redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    pool = client.connection_pool
    hurry = {"socket_timeout": _SERVER_S, "socket_connect_timeout": _SERVER_S, "retry": Retry(NoBackoff(), 1)}
    options = {**pool.connection_kwargs, **hurry}
    return Redis.from_pool(ConnectionPool(connection_class=pool.connection_class, **options))


def _interrupt(*_signal: Any) -> None:
    raise typer.Exit


def listening(host: str, port: int, read: Callable[[], Figures]) -> ThreadingHTTPServer:
    """A server that answers with what `read` finds: anew, but for those who ask at the same time once.

    Raises:
        typer.BadParameter: the address cannot be had.
    """

    from mosaic_tasks.observability.once import Shared

    figures = Shared(read)

    class Handler(_Handler):
        pages = _Pages(figures.get, Shared(lambda: _exposed(figures.get())).get)

    try:
        return _Server((host, port), Handler)
    except OSError as error:
        raise typer.BadParameter(f"cannot listen on {host}:{port}: {error.strerror or error}") from None


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Who asked has hung up before the answer: that says nothing about this server."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Pages(NamedTuple):
    """What is asked for: the figures, and all of them as text."""

    figures: Callable[[], Figures]
    exposed: Callable[[], bytes]


class _Handler(BaseHTTPRequestHandler):
    pages: _Pages
    timeout = _AWAY_S

    def do_GET(self) -> None:
        """One of the two kinds of page."""
        try:
            kind, text = _page(self.path, self.pages)
        except LookupError:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        except Exception as error:  # noqa: BLE001  whoever asks again shall have an answer once the server is back
            from structlog import get_logger  # it brings rich, which no other command needs

            get_logger(__name__).warning("metrics.unknown", what="cannot say what there is", error=str(error))
            self.send_error(HTTPStatus.SERVICE_UNAVAILABLE)
            return
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_words: Any) -> None:
        """Says nothing: each question of Prometheus would be a line."""


def _exposed(figures: Figures) -> bytes:
    from mosaic_tasks.observability.exposition import exposition

    return exposition(figures).encode()


def _page(path: str, pages: _Pages) -> tuple[str, bytes]:
    """Content type and text of a page.

    Raises:
        LookupError: there is no such page.
    """
    _, kind, *group = path.partition("?")[0].split("/")
    if (kind, group) == ("metrics", []):
        return TEXT, pages.exposed()
    if kind != "work" or len(group) != 1:
        raise LookupError(path)
    found = pages.figures().groups[group[0]]
    return JSON, to_json({**found._asdict(), "work": found.work}, indent=0).encode()
