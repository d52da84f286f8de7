"""The command that answers what Prometheus and KEDA ask: metrics."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from mosaic_tasks.cli.options import JsonOption
from mosaic_tasks.cli.output import print_json_line, to_json

if TYPE_CHECKING:
    from prometheus_client.core import CounterMetricFamily
    from redis import Redis

    from mosaic_queues.keys import Keys
    from mosaic_queues.liveness import LiveProcess
    from mosaic_queues.work import Work
    from mosaic_routing.inventory import EngineReport
    from mosaic_tasks.execution.mixtures.tallying import Figure, Tally

PORT = 9464
TEXT = "text/plain; version=0.0.4; charset=utf-8"
JSON = "application/json"
_AWAY_S = 10.0
"""A client that says nothing for so long is let go."""


class Figures(NamedTuple):
    """What is told at one moment.

    Attributes:
        queues: work of each queue.
        groups: work of each group of the topology: of all its queues, those of its workers alone included.
        workers: how many serve each queue.
        mixtures: what they came to so far.
    """

    queues: Mapping[str, Work]
    groups: Mapping[str, Work]
    workers: Mapping[str, int]
    engines: Sequence[EngineReport]
    mixtures: Sequence[Tally] = ()


def metrics(
    host: Annotated[
        str, typer.Option("--host", metavar="ADDRESS", help="Where to answer; nobody is asked who they are.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", "-p", min=0, max=65535, help="0: any that is free.")] = PORT,
    as_json: JsonOption = False,
) -> None:
    """Answer over HTTP what queues, workers, engines and mixtures do, until Ctrl-C.

    /metrics: all figures, in Prometheus's text format. /work/GROUP: of a group of the topology, as JSON: messages that
    wait, those that its workers have taken and not ended, and both together, by which KEDA scales. It says where it
    answers once it does; with --json as one line of JSON.

    \b
    Examples:
      mosaic metrics
      curl http://127.0.0.1:9464/metrics
      curl http://127.0.0.1:9464/work/cpu
    """
    from mosaic_queues.connection import connect, server_urls
    from mosaic_queues.keys import Keys
    from mosaic_queues.settings import settings

    signal.signal(signal.SIGTERM, _interrupt)  # the first process of a container has no default for it
    keys = Keys(settings().namespace)
    with (
        connect(server_urls().redis_url) as client,
        listening(host, port, lambda: _read(client, keys)) as server,
    ):
        url = f"http://{host}:{server.server_address[1]}/metrics"
        if as_json:
            print_json_line({"url": url})
        else:
            typer.echo(url)
        server.serve_forever()


def _interrupt(*_signal: Any) -> None:
    raise typer.Exit


def listening(host: str, port: int, read: Callable[[], Figures]) -> ThreadingHTTPServer:
    """A server that answers with what `read` finds, each time anew.

    Raises:
        typer.BadParameter: the address cannot be had.
    """

    class Handler(_Handler):
        figures = staticmethod(read)

    try:
        return ThreadingHTTPServer((host, port), Handler)
    except OSError as error:
        raise typer.BadParameter(f"cannot listen on {host}:{port}: {error.strerror or error}") from None


class _Handler(BaseHTTPRequestHandler):
    figures: Callable[[], Figures]
    timeout = _AWAY_S

    def do_GET(self) -> None:
        """One of the two kinds of page."""
        try:
            kind, text = _page(self.path, self.figures)
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


def _page(path: str, figures: Callable[[], Figures]) -> tuple[str, bytes]:
    """Content type and text of a page.

    Raises:
        LookupError: there is no such page.
    """
    _, kind, *group = path.partition("?")[0].split("/")
    if (kind, group) == ("metrics", []):
        return TEXT, exposition(figures()).encode()
    if kind != "work" or len(group) != 1:
        raise LookupError(path)
    found = figures().groups[group[0]]
    return JSON, to_json({**found._asdict(), "work": found.work}, indent=0).encode()


def _read(client: Redis, keys: Keys) -> Figures:
    from mosaic_queues.liveness import live_processes
    from mosaic_queues.topology import topology
    from mosaic_queues.work import work_of
    from mosaic_routing.inventory import engines
    from mosaic_routing.manifests.services import services
    from mosaic_routing.pool import pool
    from mosaic_tasks.app import app
    from mosaic_tasks.execution.mixtures.tallying import counted_mixtures

    processes = live_processes(client, keys)
    groups = {
        service.group.name: queues_of(service.queues, processes) for service in services(topology(), pool())
    }
    workers = served(processes)
    queues = work_of(app, [*workers, *(queue for each in groups.values() for queue in each)])
    return Figures(
        queues,
        together(groups, queues),
        workers,
        engines(client, keys=keys),
        counted_mixtures(client, keys),
    )


def served(processes: Sequence[LiveProcess]) -> dict[str, int]:
    """How many workers serve each queue."""
    found: dict[str, int] = {}
    for queue in (queue for process in processes for queue in process.queues):
        found[queue] = found.get(queue, 0) + 1
    return found


def queues_of(shared: Sequence[str], processes: Sequence[LiveProcess]) -> list[str]:
    """The queues of a group, with those that each of its workers has for itself."""
    from mosaic_routing.queues import DIRECT_PREFIX

    direct = (
        queue
        for process in processes
        if set(shared) <= set(process.queues)
        for queue in process.queues
        if queue.startswith(DIRECT_PREFIX)
    )
    return [*shared, *dict.fromkeys(direct)]


def together(groups: Mapping[str, Sequence[str]], queues: Mapping[str, Work]) -> dict[str, Work]:
    """The work of each group; what two groups serve counts for both."""
    from mosaic_queues.work import Work

    return {
        name: Work(
            sum(queues[queue].waiting for queue in served), sum(queues[queue].running for queue in served)
        )
        for name, served in groups.items()
    }


def exposition(figures: Figures) -> str:
    """All of it in Prometheus's text format. Names are public: dashboards and alerts go by them."""
    from prometheus_client import CollectorRegistry, Gauge, generate_latest

    from mosaic_routing.inventory import prometheus

    registry = CollectorRegistry()
    for name, about, label, values in _gauges(figures):
        gauge = Gauge(f"mosaic_{name}", about, [label], registry=registry)
        for key, value in values.items():
            gauge.labels(key).set(value)
    registry.register(_Mixtures(figures.mixtures))
    return generate_latest(registry).decode() + prometheus(figures.engines)


def _gauges(figures: Figures) -> Iterator[tuple[str, str, str, Mapping[str, int]]]:
    queues, groups = figures.queues, figures.groups
    waiting = {name: found.waiting for name, found in queues.items()}
    running = {name: found.running for name, found in queues.items()}
    yield "queue_waiting", "Messages that wait.", "queue", waiting
    yield "queue_running", "Messages that workers have taken and not ended.", "queue", running
    yield "queue_workers", "Workers that serve it.", "queue", figures.workers
    work = {name: found.work for name, found in groups.items()}
    yield "group_work", "Messages of all queues of a worker group, waiting or running.", "group", work


_ABOUT_MIXTURES: dict[Figure, str] = {
    "decided": "Mixtures that came to an end, by what decided.",
    "experts_asked": "Calls to experts of mixtures.",
    "experts_cut": "Calls to experts that were cut off, or not begun, since they were not needed any more.",
    "experts_unasked": "Calls to experts that were never made.",
    "aggregators_skipped": "Mixtures that did not need their aggregator or verifier.",
    "tokens_saved": "Tokens, estimated, of the calls that were cut off or never made.",
    "usd_saved": "US dollars, estimated, of the calls that were cut off or never made.",
}


class _Mixtures:
    """What mixtures came to, for a registry."""

    def __init__(self, tallies: Sequence[Tally]) -> None:
        self._tallies = tallies

    def collect(self) -> Iterator[CounterMetricFamily]:
        """A counter a figure."""
        from prometheus_client.core import CounterMetricFamily

        for figure, about in _ABOUT_MIXTURES.items():
            labels = ["workflow", "node", *(["by"] if figure == "decided" else [])]
            counter = CounterMetricFamily(f"mosaic_mixture_{figure}", about, labels=labels)
            for tally in self._tallies:
                if tally.figure == figure:
                    counter.add_metric([tally.workflow, tally.node, tally.by][: len(labels)], tally.amount)
            yield counter
