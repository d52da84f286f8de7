"""The web apps of `examples/`, run as their READMEs say, on a real server with a real worker."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from redis import Redis

from mosaic_tasks import get_run, list_runs
from tests.integration.gateway_tools import Told
from tests.integration.stream_tools import await_told, open_engines
from tests.integration.web_apps import EXAMPLES, Example, WebApp, WebApps, sent_events, text_of
from tests.services import READY_S, Worker, Workers

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("mosaic_process")]

ANSWER = "The parcel is late. It left Oslo on Monday, and is \U0001f69a on its way." * 4
WRITERS: list[Example] = ["fastapi_app", "django_app"]
"""Those that show a text while it is written."""


@pytest.fixture
def apps(redis_url: str, tmp_path: Path) -> Iterator[WebApps]:
    with WebApps.writing(ANSWER, redis_url=redis_url, directory=tmp_path) as started:
        yield started


@pytest.fixture
def writing(workers: Workers, apps: WebApps) -> Worker:
    """A worker whose engine holds after its first words until it is opened."""
    return apps.start_worker(workers)


def manage(apps: WebApps, *words: str) -> str:
    command = [sys.executable, "-m", "django_app.manage", *words]
    return subprocess.run(command, env=apps.environment, check=True, capture_output=True, text=True).stdout


def posted(app: WebApp, path: str, **form: str) -> str:
    """Fills in a form; answers where it leads."""
    with httpx2.Client(base_url=app.url, timeout=READY_S) as client:
        page = client.get(path if path == "/" else "/").text
        hidden = dict(re.findall(r'name="(key|csrfmiddlewaretoken)" value="([^"]+)"', page))
        answer = client.post(path, data={**hidden, **form})
    assert answer.status_code in (302, 303), answer.text
    return app.url + answer.headers["location"]


def started(apps: WebApps, example: Example) -> tuple[WebApp, str]:
    """An app, and the page of a run that it started."""
    if example == "django_app":
        manage(apps, "migrate")
    app = apps.start(example)
    return app, posted(app, "/" if example == "django_app" else "/summaries", text="Where is my parcel?")


@pytest.mark.parametrize("example", WRITERS)
def test_it_shows_the_text_as_it_is_written_and_goes_on_after_it_was_killed(
    apps: WebApps, writing: Worker, redis_client: Redis, example: Example
) -> None:
    app, page = started(apps, example)
    assert httpx2.get(page, timeout=READY_S).status_code == 200
    if example == "django_app":
        await_told(redis_client, "asked writer", 1)
        redis_client.delete("test:told:asked writer", "test:bell:asked writer")
        open_engines(redis_client, "writer")
    with sent_events(f"{page}/stream") as events:
        first = next(events)
        app.process.kill()
    open_engines(redis_client, "writer")
    again = apps.start(example, port=app.port)
    with sent_events(f"{page}/stream", after=first.id) as events:
        rest = list(events)
    assert first.kind == "text"
    assert text_of(iter(rest), text_of(iter([first]))) == ANSWER
    assert offsets(rest) == sorted(offsets(rest))
    assert offsets(rest)[0] == len(first.data["value"])
    assert rest[-1] == Told("", "over", {"status": "done", "error": ""})
    with sent_events(f"{page}/stream") as events:  # somebody who comes late
        assert text_of(events) == ANSWER
    assert again.process.returncode is None


def offsets(events: list[Told]) -> list[int]:
    return [event.data["offset"] for event in events if event.kind == "text"]


@pytest.mark.parametrize(
    ("example", "path", "form"),
    [
        ("fastapi_app", "/summaries", {"text": "Where is my parcel?"}),
        ("flask_app", "/panels", {"question": "How many edges does a cube have?"}),
    ],
)
def test_a_second_click_is_not_a_second_run(
    apps: WebApps, example: Example, path: str, form: dict[str, str]
) -> None:
    app = apps.start(example)
    pages = {posted(app, path, key="7" * 32, **form) for _ in range(3)}
    assert len(pages) == 1
    assert len(list_runs()) == 1


@pytest.mark.parametrize(
    ("example", "path"), [("fastapi_app", "/summaries"), ("flask_app", "/panels"), ("django_app", "/tickets")]
)
def test_what_is_not_known_is_not_found(apps: WebApps, example: Example, path: str) -> None:
    if example == "django_app":
        manage(apps, "migrate")
    app = apps.start(example)
    for unknown in ("00000000-0000-7000-8000-000000000000", "..%2f..%2fetc%2fpasswd", "%00"):
        assert httpx2.get(f"{app.url}{path}/{unknown}", timeout=READY_S).status_code == 404


def test_the_panel_tells_who_answered_what_came_of_it_and_goes_on_after_it_was_killed(
    apps: WebApps, workers: Workers, redis_client: Redis, tmp_path: Path
) -> None:
    (tmp_path / "examples").symlink_to(EXAMPLES)
    queues, gates = ("mosaic.cpu", "mosaic.api.replay"), ("--include", "tests.integration.hedge_gates")
    workers.start("mosaic_tasks.app", queues, pool="async", concurrency=8, args=gates).wait_ready()
    app = apps.start("flask_app")
    page = posted(app, "/panels", question="How many edges does a cube have?")
    assert httpx2.get(page, timeout=READY_S).status_code == 200
    before: list[Told] = []
    with sent_events(f"{page}/events") as events:
        while not thinking(before):
            before.append(next(events))
        app.process.kill()  # while its reader waits for the experts, who think
    open_engines(redis_client, "geographer", "physicist", "historian", "chair")
    apps.start("flask_app", port=app.port)
    with sent_events(f"{page}/events", after=before[-1].id) as events:
        told = [*before, *events]
    assert all(line.endswith((" is asked", " thinks")) for line in lines(before))
    assert sum(line.endswith("has answered") for line in lines(told)) == 2
    assert (told[-1].kind, str(told[-1].data)) == ("over", "12")
    ids = [event.id for event in told if event.kind == "told"]
    assert len(set(ids)) == len(ids)  # from behind each a browser can go on
    with sent_events(f"{page}/events") as events:  # somebody who comes late
        assert list(events) == told


def lines(events: list[Told]) -> list[str]:
    return [line for event in events if event.kind == "told" for line in event.data]


def thinking(events: list[Told]) -> bool:
    return sum(line.endswith(" thinks") for line in lines(events)) == 2


class TestTickets:
    """Enqueueing and the transaction of the web app."""

    @pytest.fixture(autouse=True)
    def database(self, apps: WebApps) -> None:
        manage(apps, "migrate")

    def shell(self, apps: WebApps, code: str) -> subprocess.CompletedProcess[str]:
        ready = "import os, django_app.asgi\n"
        command = [sys.executable, "-c", ready + code]
        return subprocess.run(command, env=apps.environment, check=False, capture_output=True, text=True)

    def test_what_is_rolled_back_starts_no_run(self, apps: WebApps) -> None:
        code = """
from functools import partial
from django.db import transaction
from django_app.tickets.models import Ticket
from django_app.tickets.submitting import submit_ticket
try:
    with transaction.atomic():
        ticket = Ticket.objects.create(text="Never mind.")
        transaction.on_commit(partial(submit_ticket, ticket))
        raise RuntimeError("rolled back")
except RuntimeError:
    print(Ticket.objects.count())
"""
        done = self.shell(apps, code)
        assert (done.stdout, done.returncode) == ("0\n", 0), done.stderr
        assert list_runs() == []

    @pytest.mark.parametrize("when", ["before", "after"])
    def test_a_process_that_dies_around_the_submission_loses_no_ticket_and_doubles_none(
        self, apps: WebApps, when: str
    ) -> None:
        code = f"""
from types import SimpleNamespace
from django.test import Client
from django_app.tickets import submitting
submit = submitting.submit
def dying(*args, **options):
    {"submit(*args, **options)" if when == "after" else "pass"}
    os.kill(os.getpid(), 9)
submitting.submit = dying
Client(headers={{"host": "localhost"}}).post("/", {{"text": "Where is my parcel?"}})
"""
        assert self.shell(apps, code).returncode == -9
        assert len(list_runs()) == (1 if when == "after" else 0)
        assert manage(apps, "submit_tickets") == "submitted 1 of 1\n"
        assert manage(apps, "submit_tickets") == "submitted 0 of 0\n"
        assert len(list_runs()) == 1

    def test_a_ticket_waits_while_the_server_is_away(self, apps: WebApps, tmp_path: Path) -> None:
        away = {**apps.environment, "MOSAIC_REDIS_URL": f"unix://{tmp_path}/nobody.sock"}
        code = """
from django.test import Client
from django_app.tickets.models import Ticket
answer = Client(headers={"host": "localhost"}).post("/", {"text": "Where is my parcel?"})
print(answer.status_code, [ticket.run_id for ticket in Ticket.objects.all()])
"""
        here, apps.environment = apps.environment, away
        done = self.shell(apps, code)
        assert done.stdout == "302 ['']\n", done.stderr
        assert "waits for `submit_tickets`" in done.stderr
        apps.environment = here
        assert manage(apps, "submit_tickets") == "submitted 1 of 1\n"
        (run,) = list_runs()
        assert get_run(run.run_id).plan().name == "triage"


def test_the_examples_keep_hostile_text_as_text(apps: WebApps) -> None:
    manage(apps, "migrate")
    app = apps.start("django_app")
    page = posted(app, "/", text="<script>alert(1)</script>")
    shown: Any = httpx2.get(page, timeout=READY_S).text + httpx2.get(app.url, timeout=READY_S).text
    assert "<script>alert" not in shown
    assert "&lt;script&gt;alert(1)" in shown
