"""A server of one's own: over TLS, as a user with no more rights than needed."""

from __future__ import annotations

import contextlib
import secrets
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import trustme
from redis import Redis

from mosaic_queues.connection import connect, urls_of
from mosaic_queues.errors import ServerUnavailable
from mosaic_queues.settings import settings
from mosaic_tasks import Flow
from mosaic_tasks.app import install
from mosaic_tasks.execution.process import close_all
from tests.integration import run_tools as tools
from tests.services import Workers

pytestmark = pytest.mark.integration
RIGHTS = ["on", "~*", "&*", "+@all", "-@admin", "-@dangerous", "+info"]


@contextlib.contextmanager
def tls_in_front_of(socket_path: str, authority: trustme.CA) -> Iterator[int]:
    """Ends TLS on a port of the loopback address and passes the bytes on to a unix socket."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    listener = socket.create_server(("127.0.0.1", 0))
    opened: list[socket.socket] = []
    threads: list[threading.Thread] = []

    def pump(source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        for each in (source, sink):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def start(target, *arguments) -> None:
        threads.append(threading.Thread(target=target, args=arguments))
        threads[-1].start()

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                plain, _ = listener.accept()
                try:
                    secure = context.wrap_socket(plain, server_side=True)
                except (ssl.SSLError, OSError):
                    plain.close()
                    continue
                behind = socket.socket(socket.AF_UNIX)
                behind.connect(socket_path)
                opened.extend((secure, behind))
                start(pump, secure, behind)
                start(pump, behind, secure)

    start(accept)
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for each in opened:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join()
        for each in opened:
            each.close()


@pytest.fixture
def user(redis_client: Redis) -> Iterator[tuple[str, str]]:
    """Name and password of a user that exists for the test."""
    name, password = "mosaic-test", secrets.token_hex(8)
    redis_client.execute_command("ACL", "SETUSER", name, f">{password}", *RIGHTS)
    yield name, password
    redis_client.execute_command("ACL", "DELUSER", name)


@pytest.fixture
def secure_url(redis_url: str, user: tuple[str, str], tmp_path: Path) -> Iterator[str]:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    with tls_in_front_of(urlsplit(redis_url).path, authority) as port:
        yield f"rediss://{user[0]}:{user[1]}@localhost:{port}/0?ssl_ca_certs={tmp_path}/ca.pem"


def test_a_run_over_tls_as_a_user_of_few_rights(
    secure_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from celery import Celery

    from mosaic_tasks import submit

    monkeypatch.setenv("MOSAIC_REDIS_URL", secure_url)
    settings.cache_clear()
    app = install(Celery("secure", broker=urls_of(secure_url).broker_url, set_as_current=False))
    flow = Flow("secure")
    each = flow.tool(tools.double, for_each=flow.tool(tools.count, n=20), x="${item}", id="each")
    flow.output(each)
    try:
        with Workers(urls_of(secure_url), tmp_path) as workers, app:
            worker = workers.start("mosaic_tasks.app", ["mosaic.cpu"]).wait_ready()
            assert submit(flow.build(), app=app).result(timeout_s=30) == [2 * n for n in range(20)]
            assert urlsplit(secure_url).password not in worker.log
    finally:
        close_all()
        settings.cache_clear()


def test_a_wrong_password_is_told_without_the_password(secure_url: str) -> None:
    wrong = secure_url.replace(str(urlsplit(secure_url).password), "not-the-password")
    with pytest.raises(ServerUnavailable) as told:
        connect(wrong)
    assert "not-the-password" not in str(told.value)
    assert "mosaic-test" in str(told.value)


def test_an_unknown_authority_is_refused(secure_url: str) -> None:
    with pytest.raises(ServerUnavailable, match="certificate"):
        connect(secure_url.partition("?")[0])
