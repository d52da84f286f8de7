"""Where webhooks may go and how they are signed, without a receiver."""

from __future__ import annotations

import base64
import socket
import time
from typing import Any

import pytest

from mosaic_queues.errors import ConfigurationError, InputError
from mosaic_tasks import Workflow
from mosaic_tasks.app import app
from mosaic_tasks.definition.schedules import ScheduleSpec
from mosaic_tasks.gateway.runs import Submission
from mosaic_tasks.scheduling.schedules import Said
from mosaic_tasks.submission import opening_of
from mosaic_tasks.webhooks.configuration import Allowed, allowed, signing_secrets
from mosaic_tasks.webhooks.delivery import Message, deliver, sender_to
from mosaic_tasks.webhooks.pending import Pending
from mosaic_tasks.webhooks.posting import Answer, _answer, _head
from mosaic_tasks.webhooks.signing import signed_headers
from mosaic_tasks.webhooks.targets import resolved, target_of

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
NOBODY = Allowed()


def secret(byte: int, size: int = 32) -> str:
    return f"whsec_{base64.b64encode(bytes([byte]) * size).decode()}"


# -- signing -----------------------------------------------------------------------------------------------


def test_a_signature_is_that_of_the_standard(monkeypatch: pytest.MonkeyPatch) -> None:
    """The example that the libraries of Standard Webhooks are tested with."""
    monkeypatch.setenv("MOSAIC_WEBHOOK_SECRET", SECRET)
    headers = signed_headers(
        signing_secrets(),
        message="msg_p5jXN8AQM9LWM0D4loKWxJek",
        timestamp_s=1614265330,
        body=b'{"test": 2432232314}',
    )
    assert headers == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


def test_while_a_secret_is_replaced_both_sign(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOSAIC_WEBHOOK_SECRET", f"{secret(1)} {secret(2)}")
    both = signed_headers(signing_secrets(), message="m", timestamp_s=1, body=b"")["webhook-signature"]
    monkeypatch.setenv("MOSAIC_WEBHOOK_SECRET", secret(2))
    old = signed_headers(signing_secrets(), message="m", timestamp_s=1, body=b"")["webhook-signature"]
    assert both.split()[1] == old
    assert len(both.split()) == 2


@pytest.mark.parametrize("word", ["", "hush-hush", "whsec_", "whsec_!!!", secret(1, 23), secret(1, 65)])
def test_a_secret_that_is_none_is_refused_and_not_shown(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOSAIC_WEBHOOK_SECRET", word)
    with pytest.raises(ConfigurationError, match="make one with: python") as refused:
        signing_secrets()
    assert word in ("", "whsec_") or word not in str(refused.value)


def test_what_a_receiver_says_before_its_answer_is_passed_over() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n")
        theirs.sendall(b"HTTP/1.1 429 Busy\r\nretry-after: 5\r\n\r\n")
        assert _answer(_head(ours, time.monotonic() + 30)) == Answer(429, 5.0)


# -- where to ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://example.com/", "has no TLS"),
        ("ftp://example.com/", "a webhook has a URL such as https"),
        ("file:///etc/passwd", "a webhook has a URL such as https"),
        ("https:///path", "a webhook has a URL such as https"),
        ("//example.com/", "a webhook has a URL such as https"),
        ("https://user:password@example.com/", "names a user"),
        ("https://example.com\\@127.0.0.1/", "names a user or has a backslash"),
        ("https://example.com/\r\nHost: other", "others than URLs have"),
        ("https://exa mple.com/", "others than URLs have"),
        (f"https://example.com/{'a' * 2048}", "more than 2048 characters"),
        ("https://example.com:0/", "a webhook has a URL such as"),
        ("https://example.com:99999/", "malformed"),
        ("https://[::1/", "malformed"),
        ("https://a..b/", "is no name"),
        (f"https://{'a' * 64}.com/", "is no name"),
        ("https://ex%61mple.com/", "is no name"),
        ("https://0x7f000001/", "oddly spelled"),
        ("https://0X7F.1/", "oddly spelled"),
        ("https://2130706433/", "oddly spelled"),
        ("https://127.1/", "oddly spelled"),
        ("https://0/", "oddly spelled"),
        ("https://0177.0.0.1/", "oddly spelled"),
        ("https://127.0.0.1./", "oddly spelled"),
        ("https://127.0.0.1/", "no public address"),
        ("https://10.0.0.1/", "no public address"),
        ("https://172.16.0.1/", "no public address"),
        ("https://192.168.1.1/", "no public address"),
        ("https://100.100.100.200/", "no public address"),
        ("https://169.254.169.254/latest/meta-data", "no public address"),
        ("https://168.63.129.16/", "no public address"),
        ("https://0.0.0.0/", "no public address"),
        ("https://192.0.0.192/", "no public address"),
        ("https://192.88.99.1/", "no public address"),
        ("https://224.0.0.1/", "no public address"),
        ("https://255.255.255.255/", "no public address"),
        ("https://[::]/", "no public address"),
        ("https://[::1]/", "no public address"),
        ("https://[::127.0.0.1]/", "no public address"),
        ("https://[::ffff:127.0.0.1]/", "no public address"),
        ("https://[::ffff:a9fe:a9fe]/", "no public address"),
        ("https://[64:ff9b::7f00:1]/", "no public address"),
        ("https://[2002:7f00:1::]/", "no public address"),
        ("https://[2001:0:7f00:1::]/", "no public address"),
        ("https://[64:ff9b:1::7f00:1]/", "no public address"),
        ("https://[64:ff9b:0:1::7f00:1]/", "no public address"),
        ("https://[::ffff:0:7f00:1]/", "no public address"),
        ("https://[2606:4700::5efe:7f00:1]/", "no public address"),
        ("https://[3fff::1]/", "no public address"),
        ("https://[4000::1]/", "no public address"),
        ("https://[fec0::1]/", "no public address"),
        ("https://[fd00:ec2::254]/", "no public address"),
        ("https://[fe80::1]/", "no public address"),
        ("https://[ff02::1]/", "no public address"),
    ],
)
def test_a_url_that_may_lead_inside_is_refused(url: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        target_of(url, NOBODY)


def test_public_addresses_may_be_told() -> None:
    for url in ("https://8.8.8.8/", "https://[2606:4700::1111]:8443/hook?a=b", "https://[64:ff9b::808:808]/"):
        target_of(url, NOBODY)
    for url in ("https://[::ffff:8.8.8.8]/", "https://[2002:808:808::1]/"):
        target_of(url, NOBODY)
    target = target_of("https://Hooks.Example.com:8443/a/b?c=d#e", NOBODY)
    assert (target.host, target.port, target.path) == ("hooks.example.com", 8443, "/a/b?c=d")
    assert target.place == "https://Hooks.Example.com:8443"


def answers(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> list[str]:
    """Has the resolver say this, and returns the names that it was asked for."""
    asked: list[str] = []

    def resolve(name: str, port: int, **_options: Any) -> list[Any]:
        asked.append(name)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    return asked


@pytest.mark.parametrize("inside", ["127.0.0.1", "169.254.169.254", "::1", "10.0.0.8"])
def test_a_name_that_leads_inside_is_refused_also_by_one_of_its_addresses(
    inside: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = answers(monkeypatch, "8.8.8.8", inside)
    with pytest.raises(InputError, match=f"leads to {inside}, which is no public address"):
        resolved(target_of("https://localhost./", NOBODY), NOBODY)
    assert asked == ["localhost"]


def test_what_is_allowed_by_name_or_network_may_be_told_without_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOSAIC_WEBHOOK_ALLOW", "hooks.internal., 10.1.0.0/16 ::1")
    permitted = allowed()
    answers(monkeypatch, "10.2.0.1")
    assert resolved(target_of("http://hooks.internal/", permitted), permitted)
    target_of("http://10.1.2.3/", permitted)
    target_of("https://[::1]/", permitted)
    with pytest.raises(InputError, match="has no TLS"):
        target_of("http://10.2.0.1/", permitted)
    with pytest.raises(InputError, match="has no TLS"):
        resolved(target_of("http://other.internal/", permitted), permitted)
    with pytest.raises(InputError, match=r"leads to 10\.2\.0\.1"):
        resolved(target_of("https://other.internal/", permitted), permitted)


def test_a_network_that_is_none_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOSAIC_WEBHOOK_ALLOW", "10.0.0.0/33")
    with pytest.raises(ConfigurationError, match=r"'10\.0\.0\.0/33', which is no network"):
        allowed()


def test_a_name_that_leads_elsewhere_later_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOSAIC_WEBHOOK_SECRET", SECRET)
    answers(monkeypatch, "8.8.8.8")
    sender = sender_to("https://hooks.example.com/token")
    answers(monkeypatch, "127.0.0.1")
    problem = deliver(sender, Message("m", b"{}"), told=pytest.fail)
    assert "leads to 127.0.0.1" in problem
    assert "token" not in problem + repr(sender)
    answers(monkeypatch, "127.0.0.1")
    with pytest.raises(InputError, match="leads to"):
        sender_to("https://hooks.example.com/")


def test_what_holds_the_url_does_not_show_it() -> None:
    url = "https://198.41.0.4/token?key=token"
    nodes = {"echo": {"tool": "string:capwords", "with": {"s": "a"}}}
    workflow = Workflow.from_data({"name": "echo", "nodes": nodes, "output": "echo"})
    holders = [
        target_of(url, NOBODY),
        Pending("run", url, since_ms=0, tries=0, body=b""),
        Said(workflow="echo", plan="hash", webhook=url),
        ScheduleSpec(cron="0 7 * * MON", webhook=url),
        Submission(workflow="echo", webhook=url),
        opening_of(app, workflow, None, key=None, webhook=url),
    ]
    assert [shown for shown in map(repr, holders) if "token" in shown] == []
