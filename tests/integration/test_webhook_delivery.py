"""Webhooks to a real receiver on loopback, which is allowed: with and without TLS, busy, away, slow and ill-behaved."""

from __future__ import annotations

import base64
import hashlib
import hmac
import itertools
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import trustme
from receiver import Receiver, receiving

from mosaic_tasks.webhooks import delivery
from mosaic_tasks.webhooks.delivery import Message, deliver, sender_to

pytestmark = pytest.mark.integration
SECRET = bytes(range(32))
MESSAGE = Message("msg_1", b'{"type":"batch.completed"}')


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOSAIC_WEBHOOK_SECRET", f"whsec_{base64.b64encode(SECRET).decode()}")
    monkeypatch.setenv("MOSAIC_WEBHOOK_ALLOW", "127.0.0.1, localhost")
    monkeypatch.setattr(delivery, "PAUSES_S", (0.0, 0.0))


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as started:
        yield started


def told(url: str) -> tuple[str, list[str]]:
    """Why a message was not taken, and what was said before each further attempt."""
    said: list[str] = []
    return deliver(sender_to(url), MESSAGE, told=said.append), said


def test_a_receiver_can_verify_what_comes(receiver: Receiver) -> None:
    assert told(receiver.url) == ("", [])
    [(headers, body)] = receiver.came
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    expected = base64.b64encode(hmac.digest(SECRET, signed, hashlib.sha256)).decode()
    assert headers["webhook-signature"] == f"v1,{expected}"
    assert (body, headers["content-type"], headers["webhook-id"]) == (
        MESSAGE.body,
        "application/json",
        "msg_1",
    )


def test_a_busy_receiver_is_asked_again_with_the_same_id(receiver: Receiver) -> None:
    receiver.statuses = [(503, {}), (429, {"Retry-After": "0"})]
    problem, said = told(receiver.url)
    assert (problem, receiver.ids()) == ("", ["msg_1"] * 3)
    assert "answers with status 503; once more in 0 s" in said[0]


def test_after_some_attempts_it_is_given_up(receiver: Receiver) -> None:
    receiver.statuses = [(500, {})] * 9
    problem, _ = told(receiver.url)
    assert problem.endswith("answers with status 500")
    assert len(receiver.came) == 3


def test_a_receiver_that_wants_to_be_left_alone_for_long_is(receiver: Receiver) -> None:
    receiver.statuses = [(429, {"Retry-After": "3600"})]
    assert told(receiver.url)[0].endswith("answers with status 429")
    assert len(receiver.came) == 1


@pytest.mark.parametrize("status", [400, 401, 404, 410])
def test_a_receiver_that_refuses_is_not_asked_again(receiver: Receiver, status: int) -> None:
    receiver.statuses = [(status, {})]
    assert told(receiver.url)[0].endswith(f"answers with status {status}")
    assert len(receiver.came) == 1


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_is_not_followed(receiver: Receiver, status: int) -> None:
    with receiving() as inside:
        receiver.statuses = [(status, {"Location": inside.url})]
        assert "redirects are not followed" in told(receiver.url)[0]
        assert (len(receiver.came), inside.came) == (1, [])


def test_nobody_there_is_told(receiver: Receiver) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        problem, said = told(f"http://127.0.0.1:{free.getsockname()[1]}/secret-token")
    assert "cannot be told: Connection refused" in problem
    assert len(said) == 2
    assert "secret-token" not in problem + "".join(said)


# -- names that lead elsewhere meanwhile ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answers", "taken"),
    [
        (["127.0.0.2", "127.0.0.2", "127.0.0.1", "127.0.0.1"], True),
        (["127.0.0.2", "127.0.0.1", "127.0.0.2", "127.0.0.2"], False),
    ],
)
def test_the_connection_goes_to_the_address_that_was_checked(
    answers: list[str], taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resolver that answers otherwise each time (DNS rebinding): first where it may lead to, then what is inside."""
    monkeypatch.setenv("MOSAIC_WEBHOOK_ALLOW", "127.0.0.2")
    resolve = socket.getaddrinfo

    def turning(host: str, *arguments: object, **options: object) -> object:
        return resolve(answers.pop(0) if host == "hooks.example" else host, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", turning)
    with receiving() as inside, receiving(at=("127.0.0.2", urlsplit(inside.url).port or 0)) as checked:
        problem, _ = told(checked.url.replace("127.0.0.2", "hooks.example"))
        assert inside.came == []
        assert (problem == "", len(checked.came)) == (taken, int(taken))


# -- TLS ---------------------------------------------------------------------------------------------------


@contextmanager
def secured(*names: str, trusted: Path | None = None) -> Iterator[Receiver]:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*names).configure_cert(context)
    if trusted:
        authority.cert_pem.write_to_path(str(trusted))
    with receiving(context) as receiver:
        yield receiver


def test_a_certificate_is_checked_for_the_name_and_the_connection_goes_to_the_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    with secured("localhost", trusted=tmp_path / "ca.pem") as receiver:
        asked = counted_resolver(monkeypatch)
        sender = sender_to(receiver.url.replace("127.0.0.1", "localhost"))
        asked.clear()
        assert deliver(sender, MESSAGE, told=pytest.fail) == ""
    assert asked.count("localhost") == 1
    assert receiver.came[0][0]["host"].startswith("localhost:")


def counted_resolver(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names that the resolver is asked for."""
    asked: list[str] = []
    resolve = socket.getaddrinfo

    def counted(host: str, *arguments: object, **options: object) -> object:
        asked.append(host)
        return resolve("127.0.0.1" if host == "localhost" else host, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", counted)
    return asked


@pytest.mark.parametrize(("names", "is_trusted"), [(("other.example",), True), (("127.0.0.1",), False)])
def test_a_wrong_or_unknown_certificate_is_refused(
    names: tuple[str, ...], is_trusted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_trusted:
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    with secured(*names, trusted=tmp_path / "ca.pem") as receiver:
        assert "certificate verify failed" in told(receiver.url)[0]
        assert receiver.came == []


# -- receivers that mean no good -----------------------------------------------------------------------------


@contextmanager
def answering(pieces: Callable[[], Iterator[bytes]]) -> Iterator[str]:
    """A server that answers each connection with these bytes."""

    def serve() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection, suppress(OSError):
                    for piece in pieces():
                        connection.sendall(piece)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def test_an_answer_without_end_is_not_read() -> None:
    with answering(lambda: itertools.repeat(b"x" * 4096)) as url:
        assert "something else than HTTP" in told(url)[0]


@pytest.mark.parametrize("text", [b"", b"SSH-2.0-x\r\n\r\n", b"HTTP/1.1 2000 \r\n\r\n", b"HTTP/1.1 200"])
def test_an_answer_that_is_no_http_is_told(text: bytes) -> None:
    with answering(lambda: iter([text])) as url:
        problem, said = told(url)
    assert "cannot be told" in problem
    assert len(said) == 2


def test_an_answer_that_trickles_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte comes well within the time that a read may take, and all of them would never end."""
    monkeypatch.setattr(delivery, "TIMEOUT_S", 0.3)
    monkeypatch.setattr(delivery, "PAUSES_S", ())
    stopped = threading.Event()

    def trickle() -> Iterator[bytes]:
        while not stopped.wait(0.02):
            yield b"x"

    with answering(trickle) as url:
        problem, _ = told(url)
        stopped.set()
    assert "cannot be told: " in problem
    assert "time" in problem
