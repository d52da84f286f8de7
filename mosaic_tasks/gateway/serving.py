"""Runs a gateway in this process, until it is asked to end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import uvicorn
from anyio.to_thread import current_default_thread_limiter
from fastapi import FastAPI
from redis.backoff import ExponentialWithJitterBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.retry import Retry

from mosaic_queues.connection import server_errors
from mosaic_queues.errors import ConfigurationError
from mosaic_queues.following import BLOCK_S
from mosaic_queues.settings import settings
from mosaic_tasks.access.addresses import is_loopback
from mosaic_tasks.access.gates import OpenGate, gate_for
from mosaic_tasks.app import app
from mosaic_tasks.execution.process import Process, close_all, ledger_url, process_for
from mosaic_tasks.gateway.application import application
from mosaic_tasks.gateway.callers import Gateway
from mosaic_tasks.gateway.catalog import Catalog
from mosaic_tasks.gateway.connections import BACKLOG, PatientProtocol
from mosaic_tasks.gateway.entrance import LOOPBACK
from mosaic_tasks.gateway.readers import Readers

ANSWER_S = BLOCK_S + 2.0
"""A server that takes longer to answer is away, as one that hangs: its clients are told so, and no request waits on."""
STOP_S = 10
"""Requests under way get so long to end."""
THREADS = 6
"""So many requests are worked on at once. More would wait for Python's lock instead, and each handing over of it costs:
with 40 threads, the default, a submission takes a third more of the processor."""
_PAUSES = ExponentialWithJitterBackoff(cap=2.0, base=0.05)
_SENT_BYTES = 131_072
"""The system holds so much for a client that does not read."""
_USER_TIMEOUT = getattr(socket, "TCP_USER_TIMEOUT", None)
"""After this the system gives up a client that takes nothing, also of what was sent before we gave it up."""


class Ready(NamedTuple):
    """A gateway that is about to answer.

    Attributes:
        is_open: nobody is asked who they are.
        run: answers until SIGINT or SIGTERM; calls its argument once it does.
    """

    url: str
    is_open: bool
    run: Callable[[Callable[[], None]], None]


@contextlib.contextmanager
def gateway_at(
    paths: Iterable[Path],
    *,
    host: str,
    port: int,
    require_key: bool,
    origins: Collection[str],
    allowed_hosts: Collection[str],
    forwarded_allow_ips: str,
) -> Iterator[Ready]:
    """A gateway of this process's app; what it opened is closed afterwards.

    Raises:
        ConfigurationError: a path or the address cannot be used, or it would be open to other machines.
        DefinitionError: a workflow is wrong.
        ServerError: the server behind it does not serve.
    """
    catalog = Catalog.of(paths)
    try:
        with server_errors(ledger_url(app)):
            _hurry(process_for(app))
            gate = gate_for(app, host=host, required=require_key)
        names = {*LOOPBACK, host.lower()} if is_loopback(host) else set[str]()
        hosts = {*names, *map(str.lower, allowed_hosts)} if names or allowed_hosts else ()
        web = application(Gateway(app, catalog, gate, origins), hosts=hosts)
        with _listening(host, port) as sock:

            def run(on_start: Callable[[], None]) -> None:
                _serve(web, sock, on_start=on_start, forwarded_allow_ips=forwarded_allow_ips)

            yield Ready(_url_of(sock), isinstance(gate, OpenGate), run)
    finally:
        close_all()


def _hurry(process: Process, answer_s: float = ANSWER_S) -> None:
    """Has the server's answers awaited for less long than a worker does, a minute and again and again: who asks over
    HTTP does not wait so long. A connection that breaks is made anew as elsewhere."""
    pool = process.client.connection_pool
    patient = process.client.get_retry()
    pool.set_retry(Retry(_PAUSES, patient.get_retries() if patient else 0, (RedisConnectionError,)))
    for each in (pool, process.once.connection_pool):
        each.connection_kwargs["socket_timeout"] = answer_s
        each.disconnect()
        each.reset()  # a connection that is there keeps its own patience


def _listening(host: str, port: int) -> socket.socket:
    """A socket that is bound there.

    Raises:
        ConfigurationError: the address cannot be had.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        sock = socket.socket(family, kind, protocol)
    except OSError as error:
        raise _unusable(host, port, error) from error
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SENT_BYTES)
        if _USER_TIMEOUT is not None:
            given_up_ms = int(2 * settings().gateway_patience_s * 1000)
            sock.setsockopt(socket.IPPROTO_TCP, _USER_TIMEOUT, given_up_ms)
        sock.bind(address)
    except OSError as error:
        sock.close()
        raise _unusable(host, port, error) from error
    return sock


def _unusable(host: str, port: int, error: OSError) -> ConfigurationError:
    return ConfigurationError(
        f"cannot listen on {host}:{port}: {error.strerror or error}; choose another --host or --port"
    )


def _url_of(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _serve(
    web: FastAPI, sock: socket.socket, *, on_start: Callable[[], None], forwarded_allow_ips: str
) -> None:
    """Answers requests until SIGINT or SIGTERM."""
    logging.getLogger("uvicorn.error").setLevel(
        logging.CRITICAL
    )  # what counts is logged by us, with its request
    config = uvicorn.Config(
        web,
        http=PatientProtocol,
        backlog=BACKLOG,
        log_config=None,
        access_log=False,
        server_header=False,
        ws="none",
        forwarded_allow_ips=forwarded_allow_ips,
        timeout_graceful_shutdown=STOP_S,
    )
    asyncio.run(_Server(config, web.state.readers, on_start).serve(sockets=[sock]))


class _Server(uvicorn.Server):
    """A server that sends its readers elsewhere when it ends, and ends by returning, also after a signal."""

    def __init__(self, config: uvicorn.Config, readers: Readers, on_start: Callable[[], None]) -> None:
        super().__init__(config)
        self._readers, self._on_start = readers, on_start

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Says so once it listens."""
        current_default_thread_limiter().total_tokens = THREADS
        await super().startup(sockets)
        if self.started:
            self._on_start()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Ends the streams, which would not end by themselves."""
        self._readers.stop()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals end it in order, and are not raised again afterwards."""
        loop, numbers = asyncio.get_running_loop(), (signal.SIGINT, signal.SIGTERM)
        for number in numbers:
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)
