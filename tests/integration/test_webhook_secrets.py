"""A secret in a webhook's URL, and the one that signs: on all ways that they go, nothing tells them."""

from __future__ import annotations

import base64
import json
import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import pytest
from receiver import Receiver, receiving
from redis import Redis
from typer.testing import CliRunner

from mosaic_queues.errors import InputError
from mosaic_tasks import submit
from mosaic_tasks.access.audit import audit_of
from mosaic_tasks.app import app
from mosaic_tasks.cli import application
from mosaic_tasks.execution.process import process_for
from mosaic_tasks.webhooks import delivery
from tests.integration.canaries import has, overheard, values
from tests.integration.collector import collecting
from tests.integration.completions_served import served, tool, workflow
from tests.integration.gateway_tools import GatewayProcess, gateway
from tests.integration.schedule_beats import Beats
from tests.services import READY_S, ServerForTests, Worker, key_events

pytestmark = [
    pytest.mark.integration,
    pytest.mark.usefixtures("mosaic_process"),
    pytest.mark.leaves("keys", reason="a schedule stays until somebody removes it"),
]
TOKEN, SIGNING = "c4n4ryt0ken", "c4n4rysign"
SECRET = base64.b64encode(f"{SIGNING}-{SIGNING}-{SIGNING}".encode()).decode()
GIVEN = {"MOSAIC_WEBHOOK_SECRET": f"whsec_{SECRET}", "MOSAIC_WEBHOOK_ALLOW": "127.0.0.1"}
WHERE_MEANT = re.compile(r"mosaic:webhook:[0-9a-f-]{36}|mosaic:schedule:hourly")
"""The keys of the server that hold a URL."""
REPORT = {
    "name": "report",
    "nodes": {"report": {"tool": "string:capwords", "with": {"s": "all is well"}}},
    "output": "report",
}
HELD = {
    "name": "held",
    "nodes": {"held": {"tool": "string:capwords", "with": {"s": "later"}, "queue": "nobody"}},
    "output": "held",
}


def secret_url(url: str) -> str:
    return f"{url}/{TOKEN}?token={TOKEN}"


def leaky(found: object) -> bool:
    return has(found, TOKEN, SIGNING)


class Hosts(NamedTuple):
    """Hosts of webhooks, by what they do."""

    taking: Receiver
    refusing: Receiver
    redirecting: Receiver
    failing: Receiver
    away: str

    def urls(self) -> dict[str, str]:
        found = {name: each if isinstance(each, str) else each.url for name, each in self._asdict().items()}
        return {name: secret_url(url) for name, url in found.items()}


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hosts]:
    for name, value in GIVEN.items():
        monkeypatch.setenv(name, value)
    with ExitStack() as stack:
        taking, refusing, redirecting, failing = (stack.enter_context(receiving()) for _ in range(4))
        refusing.statuses = [(400, {"X-Reason": TOKEN})] * 9
        redirecting.statuses = [(302, {"Location": secret_url(taking.url)})] * 9
        failing.statuses = [(500, {})] * 9
        away = stack.enter_context(socket.socket())
        away.bind(("127.0.0.1", 0))  # it does not listen
        yield Hosts(taking, refusing, redirecting, failing, f"http://127.0.0.1:{away.getsockname()[1]}/hook")


@pytest.fixture
def folder(hosts: Hosts, tmp_path: Path) -> Path:
    """Workflows for the gateway; one has a schedule that tells a webhook."""
    found = tmp_path / "workflows"
    found.mkdir()
    schedule = {"every": "1h", "webhook": secret_url(hosts.refusing.url)}
    (found / "report.yaml").write_text(json.dumps({**REPORT, "schedules": {"hourly": schedule}}))
    (found / "held.yaml").write_text(json.dumps(HELD))
    return found


@pytest.fixture
def started(redis_server: ServerForTests, tmp_path: Path) -> Iterator[Beats]:
    with Beats(redis_server.urls, tmp_path) as found:
        yield found


def mosaic(*words: object) -> str:
    """What the command says."""
    done = CliRunner().invoke(application, list(map(str, words)))
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.output


def test_no_way_of_a_webhook_tells_a_secret(
    hosts: Hosts,
    folder: Path,
    started: Beats,
    redis_client: Redis,
    redis_url: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    with collecting() as collector, overheard(redis_client) as commands:
        tracing = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "50"}
        env = {**GIVEN, **tracing, "MOSAIC_SWEEP_S": "0.1"}
        worker = started.start(
            "mosaic_tasks.app", ["mosaic.cpu"], env=env, args=("--loglevel", "DEBUG", "--task-events")
        )
        with gateway(folder, redis_url=redis_url, home=tmp_path, env=env) as running:
            runs, told = submitted(running, folder, hosts, worker, redis_client)
            told |= scheduled(folder, started, worker, redis_client)
            told |= looked_at(running, runs)
            collector.await_run(runs["taking"], calls=1)
        told |= {"gateway": running.log, "worker": worker.log, "spans": collector.raw}
    told["here"] = "".join(capfd.readouterr())
    assert [name for name, text in told.items() if leaky(text)] == []
    check_received(hosts)
    check_server(redis_client, commands, runs)


def submitted(
    running: GatewayProcess, folder: Path, hosts: Hosts, worker: Worker, redis_client: Redis
) -> tuple[dict[str, str], dict[str, object]]:
    """Runs whose ends are told, or cannot be: by what their hosts do. And what the gateway answered."""
    runs, told = dict[str, str](), dict[str, object]()
    with running.client() as http, key_events(redis_client, "gh") as heard:
        worker.wait_ready()
        for name, url in {**hosts.urls(), "held": secret_url(hosts.taking.url)}.items():
            body = {"workflow": "held" if name == "held" else "report", "webhook": url}
            answer = http.post("/v1/runs", json=body, headers={"Idempotency-Key": name})
            told[f"POST {name}"] = f"{answer.headers} {answer.text}"
            runs[name] = answer.json()["run_id"]
        runs["client"] = submit(folder / "report.yaml", webhook=secret_url(hosts.refusing.url)).id
        for name in ("refusing", "redirecting", "client"):
            worker.wait_said(f"run={runs[name]} tries=1")  # it is given up
        next(each for each in heard if is_each_tried(runs))
    return runs, told


def is_each_tried(runs: dict[str, str]) -> bool:
    """Whether the one was told, and the others are to be told later."""
    read = process_for(app).webhooks.read
    later = [read(runs[name]) for name in ("failing", "away")]
    return read(runs["taking"]) is None and all(each is not None and each.tries >= 1 for each in later)


def scheduled(folder: Path, started: Beats, worker: Worker, redis_client: Redis) -> dict[str, object]:
    """A schedule that is added, looked at, started by hand and by beat, and then cannot be told any more."""
    told: dict[str, object] = {"add": mosaic("schedule", "add", folder / "report.yaml")}
    by_hand = json.loads(mosaic("schedule", "run", "hourly", "--json"))["run"]
    redis_client.hincrby("mosaic:schedule:hourly", "last", -3_600)
    with key_events(redis_client, "l") as heard:
        beat = started.beat()
        next(key for _, key in heard if key == "mosaic:schedule:hourly:runs")
    told |= {f"schedule {words}": mosaic("schedule", *words.split()) for words in ("list", "show hourly")}
    told |= {
        f"{words} json": mosaic("schedule", *words.split(), "--json") for words in ("list", "show hourly")
    }
    by_beat = json.loads(mosaic("schedule", "show", "hourly", "--json"))["runs"][0]["run"]
    for run in (by_hand, by_beat):
        worker.wait_said(f"run={run} tries=1")
    beat.stop()
    return {**told, "beat": beat.log}


def looked_at(running: GatewayProcess, runs: dict[str, str]) -> dict[str, object]:
    """All that can be looked at."""
    told: dict[str, object] = {}
    with running.client() as http:
        whole = [
            "/",
            "/workers",
            "/metrics",
            "/openapi.json",
            "/v1/runs",
            "/v1/workflows",
            "/v1/models",
        ]
        each = [f"/v1/runs/{run}{part}" for run in runs.values() for part in ("", "/explain")]
        pages = [f"/runs/{run}" for run in runs.values()]
        streams = [f"/v1/runs/{runs['client']}/{part}" for part in ("events", "stream")]
        for path in (*whole, "/v1/workflows/report", *each, *pages, *streams):
            answer = http.get(path)
            assert answer.status_code in (200, 303, 307), (path, answer.text)
            told[path] = f"{answer.headers} {answer.text}"
    for run in runs.values():
        for command in ("explain", "status"):
            told[f"{command} {run}"] = mosaic(command, run) + mosaic(command, run, "--json")
    told["events"] = mosaic("events", runs["failing"], "--json")
    told["audit"] = mosaic("keys", "audit", "--json") + str(audit_of(app).last(1_000))
    told["inspect"] = app.control.inspect(timeout=1).conf(with_defaults=True)
    return told


def check_received(hosts: Hosts) -> None:
    """The secrets were on their way: else there was nothing to find."""
    for host in (hosts.taking, hosts.refusing, hosts.redirecting, hosts.failing):
        assert host.came
        assert not any(leaky(body) for _, body in host.came)
    assert len(hosts.taking.came) == 1  # redirects do not lead there


def check_server(redis_client: Redis, commands: list[str], runs: dict[str, str]) -> None:
    """A URL stands at its place alone, for as long as it is to be told, and no message or event carries it."""
    found = {key for key, value in values(redis_client).items() if leaky(value)}
    untold = {f"mosaic:webhook:{runs[name]}" for name in ("failing", "away", "held")}
    assert found == {*untold, "mosaic:schedule:hourly"}
    carrying = [command for command in commands if leaky(command)]
    assert carrying
    assert [command for command in carrying if not WHERE_MEANT.search(command)] == []
    assert not any(has(command, SIGNING) for command in commands)


WRONG: list[Any] = [
    f"https://user:{TOKEN}@example.com/hook",
    f"https://{TOKEN}@example.com/hook",
    f"{TOKEN}:x-oauth@example.com/hook",
    f"{TOKEN}@example.com/hook",
    f"ftp://user:{TOKEN}@example.com/hook",
    f"http://203.0.113.1/{TOKEN}?token={TOKEN}",
    f"https://10.0.0.1/{TOKEN}?token={TOKEN}",
    f"https://[::1/{TOKEN}",
    f"https://example.com:99999/{TOKEN}",
    f"https://example.com/\n{TOKEN}",
    f"https://example.com/{TOKEN * 200}",
    f"https://user:{TOKEN}/@example.com/hook",
    {"url": f"https://example.com/{TOKEN}"},
    [f"https://example.com/{TOKEN}"],
]


def test_a_webhook_that_is_wrong_is_refused_without_being_shown(
    capfd: pytest.CaptureFixture[str], redis_client: Redis
) -> None:
    told: list[object] = []
    with (
        served(workflow("echo", {"answer": tool("echo", value=1)})) as url,
        httpx2.Client(base_url=url, timeout=READY_S, trust_env=False) as http,
    ):
        for wrong in WRONG:
            body = {"workflow": "echo", "inputs": {"question": "?"}, "webhook": wrong}
            answer = http.post("/runs", json=body, headers={"Idempotency-Key": "k"})
            assert answer.status_code == 422, answer.text
            told.append(answer.text)
        malformed = json.dumps(body).encode()[:-1] + b', "webhook": "' + TOKEN.encode() + b'"'
        answer = http.post("/runs", content=malformed, headers={"Content-Type": "application/json"})
        assert answer.status_code == 400
        told.append(answer.text)
    told += [str(audit_of(app).last(1_000)), *capfd.readouterr(), *values(redis_client).values()]
    assert [text for text in told if leaky(text)] == []


def test_a_schedule_whose_webhook_is_wrong_is_refused_without_showing_it(tmp_path: Path) -> None:
    file = tmp_path / "report.yaml"
    times = {"every": "1h"}
    schedules: list[Any] = [{"hourly": {**times, "webhook": wrong}} for wrong in WRONG]
    schedules += [{"hourly": [{"webhook": WRONG[0]}]}, [{"webhook": WRONG[0]}]]
    schedules += [{"hourly": {"webhook": WRONG[0]}}, {"hourly": {**times, "webhok": WRONG[0]}}]
    for schedule in schedules:
        file.write_text(json.dumps({**REPORT, "schedules": schedule}))
        told = mosaic("--debug", "schedule", "add", file)
        assert "webh" in told or "schedules" in told
        assert not leaky(told), told


def test_a_batch_tells_no_secret(
    hosts: Hosts, started: Beats, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, redis_client: Redis
) -> None:
    monkeypatch.setattr(delivery, "PAUSES_S", (0.0,))
    started.start("mosaic_tasks.app", ["mosaic.cpu"]).wait_ready()
    words = batch_words(tmp_path, monkeypatch)
    told = {}
    for name in ("refusing", "redirecting", "failing", "away", "taking"):
        told[name] = mosaic("--debug", *words, "--webhook", hosts.urls()[name])
        assert ("the webhook was not told" in told[name]) == (name != "taking"), told[name]
    written = [file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()]
    found = [*told.values(), *written, *values(redis_client).values()]
    assert [text for text in found if leaky(text)] == []
    check_received(hosts)


def batch_words(place: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A command for a batch of one line in this directory, whose report is made."""
    monkeypatch.chdir(place)
    Path("report.yaml").write_text(json.dumps(REPORT))
    Path("in.jsonl").write_text("{}\n")
    return ["batch", "report.yaml", "--inputs", "in.jsonl", "--output", "out/", "--format", "html"]


@pytest.mark.parametrize("wrong", [url for url in WRONG if isinstance(url, str)])
def test_clients_refuse_a_wrong_one_without_showing_it(
    wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError) as refused:
        submit(workflow("echo", {"answer": tool("echo", value=1)}), {"question": "?"}, webhook=wrong)
    told = mosaic("--debug", *batch_words(tmp_path, monkeypatch), "--webhook", wrong)
    assert "webhook" in told
    assert not leaky(f"{refused.value!r} {told}")


@pytest.mark.parametrize("wrong", [SECRET, f"whsec_{SIGNING}", f"whsec_{SECRET},whsec_{SECRET}"])
def test_a_wrong_signing_secret_is_not_shown(
    wrong: str, hosts: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOSAIC_WEBHOOK_SECRET", wrong)
    told = mosaic("--debug", *batch_words(tmp_path, monkeypatch), "--webhook", hosts.urls()["taking"])
    assert "MOSAIC_WEBHOOK_SECRET is no secret of a webhook" in told
    assert not leaky(told)
