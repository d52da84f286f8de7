"""Messages that nobody can work on are kept with the reason, once each, whatever dies; on a real server."""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from typer.testing import CliRunner

from mosaic_queues.dead_letters import DeadLetter, DeadLetters, dead_letters
from mosaic_queues.errors import InputError, RunFailed
from mosaic_queues.settings import settings
from mosaic_queues.unreadable import is_message
from mosaic_tasks import Flow, Workflow, submit
from mosaic_tasks.app import app
from mosaic_tasks.cli import application
from mosaic_tasks.cli.exits import ExitCode
from tests.integration import run_tools as tools
from tests.services import Pool, Workers, key_events

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("mosaic_process")]
QUEUE, IDS, LETTERS = "mosaic.cpu", "mosaic.dead", "mosaic.dead.letters"


@pytest.fixture
def echo() -> Workflow:
    flow = Flow("echo")
    flow.output(flow.tool(tools.echo, value=flow.input("x", int)))
    return flow.build()


def message(
    task: str | None = "mosaic.call", *, arguments: Any = ("r", ["0"]), body: str | None = None, **more: Any
) -> dict[str, Any]:
    """As kombu writes it into a list."""
    encoded = base64.b64encode(json.dumps([arguments, {}, {}]).encode()).decode()
    headers = {"id": uuid.uuid4().hex, **({"task": task} if task else {})}
    return {
        "body": encoded if body is None else body,
        "content-type": "application/json",
        "content-encoding": "utf-8",
        "headers": {**headers, "lang": "py", "argsrepr": "", "kwargsrepr": ""},
        "properties": {
            "correlation_id": headers["id"],
            "delivery_mode": 2,
            "delivery_info": {"exchange": "", "routing_key": QUEUE},
            "priority": 0,
            "body_encoding": "base64",
            "delivery_tag": uuid.uuid4().hex,
        },
        **more,
    }


def put(client: Redis, *messages: dict[str, Any] | str) -> None:
    for each in messages:
        client.lpush(QUEUE, each if isinstance(each, str) else json.dumps(each))


@contextmanager
def noting(client: Redis, count: int) -> Iterator[Callable[[], list[DeadLetter]]]:
    """Waits until there are so many letters; gives them, the oldest first."""

    def found() -> list[DeadLetter]:
        noted = (event for event in events if event == ("zadd", IDS))
        for _ in range(count):
            assert next(noted, None), "no further letter came"
        return listed()

    with key_events(client, "z") as events:
        yield found


def listed() -> list[DeadLetter]:
    with dead_letters(app) as letters:
        assert letters is not None
        return letters.all()[::-1]


BROKEN = {
    "a task of ours that is none": (message("mosaic.tidy"), "no task 'mosaic.tidy' is registered here"),
    "no calls": (message(arguments=["r"]), "its arguments are wrong: no run id and call ids in"),
    "calls that are none": (message(arguments=["r", [1]]), "its arguments are wrong"),
    "a body that is no base64": (message(body="a"), "its body cannot be decoded"),
    "a body that is no JSON": (message(body=base64.b64encode(b"{").decode()), "its body cannot be decoded"),
    "no body": (message(body=""), ""),
    "a format that is not accepted": (message(**{"content-type": "application/x-python-serialize"}), ""),
    "no task": (message(None), "it names no task"),
    "headers that are none": (message(headers="x"), "it names no task"),
}


@pytest.mark.parametrize("pool", ["prefork", "async", "solo"])
def test_what_nobody_can_work_on_is_kept_with_the_reason_and_stops_no_worker(
    pool: Pool, echo: Workflow, redis_client: Redis, workers: Workers
) -> None:
    put(redis_client, *(broken for broken, _ in BROKEN.values()))
    run = submit(echo, {"x": 7})
    with noting(redis_client, len(BROKEN)) as noted:
        worker = workers.start("mosaic_tasks.app", [QUEUE], pool=pool).wait_ready()
        found = {letter.id: letter for letter in noted()}
    assert run.result(30) == 7
    for case, (broken, reason) in BROKEN.items():
        letter = found.pop(broken["properties"]["delivery_tag"])
        assert reason in letter.reason, case
        assert (letter.queue, letter.worker, letter.message) == (QUEUE, worker.name, broken), case
        assert letter.at_ms > 1_700_000_000_000
    assert found == {}
    worker.stop()
    assert worker.returncode == 0
    assert (
        redis_client.hlen("unacked") == redis_client.zcard("unacked_index") == redis_client.llen(QUEUE) == 0
    )


@pytest.mark.parametrize("pool", ["prefork", "async"])
@pytest.mark.parametrize(
    "text", ["rubbish", '{"a": 1}', "[]", '{"properties": {"delivery_tag": 5}}', "\udcff"]
)
def test_what_is_no_message_is_kept_as_text(
    text: str, pool: Pool, echo: Workflow, redis_client: Redis, workers: Workers
) -> None:
    raw = text.encode(errors="surrogateescape")
    redis_client.lpush(QUEUE, raw)
    with noting(redis_client, 1) as noted:
        workers.start("mosaic_tasks.app", [QUEUE], pool=pool).wait_ready()
        [letter] = noted()
    assert (letter.text, letter.message) == (raw.decode(errors="backslashreplace"), None)
    assert letter.reason.startswith("no message that kombu can read: ")
    assert letter.queue == QUEUE
    assert submit(echo, {"x": 7}).result(30) == 7


def test_a_message_of_a_user_s_own_tasks_stays_celerys(
    echo: Workflow, redis_client: Redis, workers: Workers
) -> None:
    worker = workers.start("tests.integration.burying_app", [QUEUE]).wait_ready()
    put(redis_client, message("reports.gone"), message("reports.echo", body="a"))
    worker.wait_said("Received unregistered task of type 'reports.gone'")
    worker.wait_said("Can't decode message body")
    assert submit(echo, {"x": 7}).result(30) == 7
    assert listed() == []
    assert redis_client.hlen("unacked") == 0


@pytest.mark.parametrize("pool", ["solo", "async"])
@pytest.mark.parametrize("dies", ["before", "after"])
def test_a_worker_that_dies_around_it_loses_nothing_and_notes_nothing_twice(
    dies: str, pool: Pool, redis_client: Redis, workers: Workers
) -> None:
    broken = message("mosaic.tidy")
    put(redis_client, broken)
    first = workers.start("tests.integration.burying_app", [QUEUE], pool=pool, env={"TEST_DIES": dies})
    first.wait()
    is_noted = dies == "after"
    assert len(listed()) == is_noted
    assert redis_client.hlen("unacked") == (not is_noted)
    with noting(redis_client, 0 if is_noted else 1) as noted:
        workers.start(
            "tests.integration.burying_app", [QUEUE], pool=pool, env={"TEST_DIES": "never"}
        ).wait_ready()
        [letter] = noted()
    assert (letter.id, letter.task) == (broken["properties"]["delivery_tag"], "mosaic.tidy")
    assert letter.message is not None
    assert letter.message["body"] == broken["body"]
    assert redis_client.hlen("unacked") == redis_client.llen(QUEUE) == 0


def test_what_was_put_back_meanwhile_is_somebody_else_s_to_note(redis_client: Redis) -> None:
    with app.connection_for_write() as connection, connection.channel() as channel:
        taken = channel.Message(message("mosaic.tidy"), channel=channel)
        channel.qos.append(taken, taken.delivery_tag)
        channel.qos.restore_by_tag(taken.delivery_tag)
        letters = DeadLetters(channel)
        assert letters.bury(taken, "a reason", worker="w") is False
        assert letters.all() == []
        assert redis_client.llen(QUEUE) == 1


def test_a_call_that_kills_its_processes_is_kept_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, workers: Workers
) -> None:
    flow = Flow("deadly")
    flow.output(flow.tool(tools.die))
    limits = {"MOSAIC_MAX_LOSSES": "1", "MOSAIC_LIVENESS_S": "1", "MOSAIC_SWEEP_S": "0.2"}
    worker = workers.start("mosaic_tasks.app", [QUEUE], pool="prefork", env=limits).wait_ready()
    run = submit(flow.build())
    with pytest.raises(RunFailed, match="CallLost: the process that ran it died 1 times"):
        run.result(60)
    [letter] = listed()
    assert letter.reason == "CallLost: the process that ran it died 1 times"
    assert (letter.id, letter.run, letter.calls, letter.queue) == (f"{run.id}:0", run.id, ("0",), QUEUE)
    assert letter.worker == worker.name
    told = CliRunner().invoke(application, ["dead", "requeue", letter.id])
    assert told.exit_code == ExitCode.USAGE
    assert f"run the call again with: mosaic rerun {run.id} --node NODE" in told.stderr


def test_the_oldest_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOSAIC_DEAD_LETTERS", "3")
    settings.cache_clear()
    with dead_letters(app) as letters:
        assert letters is not None
        for number in range(5):
            letters.add(DeadLetter(id=f"{number}", reason="a reason"))
        letters.add(DeadLetter(id="3", reason="another reason"))
        assert {letter.id: letter.reason for letter in letters.all()} == {
            "2": "a reason",
            "4": "a reason",
            "3": "another reason",
        }


def test_they_lie_under_the_name_of_the_topology(
    tmp_path: Path, redis_client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "topology.yaml"
    path.write_text(
        "version: 1\ndead_letter: lost.and.found\nworkers: [{name: a, class: cpu, queues: [a]}]\n"
    )
    monkeypatch.setenv("MOSAIC_TOPOLOGY", str(path))
    settings.cache_clear()
    with dead_letters(app) as letters:
        assert letters is not None
        letters.add(DeadLetter(id="1", reason="a reason"))
    assert set(redis_client.scan_iter("*")) == {b"lost.and.found", b"lost.and.found.letters"}


class TestCommands:
    """`mosaic dead`."""

    @pytest.fixture
    def noted(self, redis_client: Redis) -> dict[str, Any]:
        """A message that became a letter."""
        broken = message("mosaic.tidy", properties=message()["properties"] | {"priority": 9})
        with app.connection_for_write() as connection, connection.channel() as channel:
            taken = channel.Message(broken, channel=channel)
            channel.qos.append(taken, taken.delivery_tag)
            DeadLetters(channel).bury(taken, "no such task", worker="w1")
        return broken

    def mosaic(self, *words: str) -> Any:
        return CliRunner().invoke(application, ["dead", *words])

    def test_none(self) -> None:
        assert self.mosaic("list").stdout == "there are no dead letters\n"
        assert self.mosaic("list", "--json").stdout == "[]\n"
        assert self.mosaic("requeue", "--all").stdout == "put back: none\n"

    def test_they_are_listed_and_shown(self, noted: dict[str, Any]) -> None:
        name = noted["properties"]["delivery_tag"]
        assert all(
            part in self.mosaic("list").stdout for part in (name, QUEUE, "mosaic.tidy", "no such task")
        )
        [told] = json.loads(self.mosaic("list", "--json").stdout)
        assert told["message"] == noted
        shown = self.mosaic("show", name).stdout
        assert "reason:  no such task\n" in shown
        assert json.loads(shown.partition("message: ")[2]) == noted
        assert json.loads(self.mosaic("show", name, "--json").stdout) == told

    def test_a_message_goes_back_into_its_list_as_it_was_and_only_once(
        self, noted: dict[str, Any], redis_client: Redis
    ) -> None:
        name = noted["properties"]["delivery_tag"]
        told, after = self.mosaic("requeue", name).stdout.splitlines()
        assert told == f"put back: {name}"
        assert after.startswith("next: a worker of their queues takes them up")
        [raw] = redis_client.lrange(f"{QUEUE}\x06\x169", 0, -1)  # type: ignore[misc]
        assert (json.loads(raw), is_message(raw)) == (noted, True)
        again = self.mosaic("requeue", name)
        assert (again.exit_code, "there is no dead letter" in again.stderr) == (ExitCode.USAGE, True)
        assert redis_client.exists(IDS, LETTERS) == 0

    def test_all_leaves_what_cannot_be_sent(self, noted: dict[str, Any]) -> None:
        with dead_letters(app) as letters:
            assert letters is not None
            letters.add(DeadLetter(id="r:0", reason="CallLost", run="r", calls=("0",)))
        name = noted["properties"]["delivery_tag"]
        assert json.loads(self.mosaic("requeue", "--all", "--json").stdout) == [name]
        assert [letter.id for letter in listed()] == ["r:0"]
        assert self.mosaic("drop", "--all").stdout == "forgotten: r:0\n"
        assert listed() == []

    @pytest.mark.parametrize("words", [["requeue"], ["drop"], ["drop", "--all", "x"]])
    def test_what_is_meant_is_asked(self, words: list[str]) -> None:
        answer = self.mosaic(*words)
        assert (answer.exit_code, "name the dead letters, or give --all" in answer.stderr) == (
            ExitCode.USAGE,
            True,
        )

    def test_nothing_is_done_to_one_when_another_is_not_there(self, noted: dict[str, Any]) -> None:
        assert self.mosaic("drop", noted["properties"]["delivery_tag"], "x").exit_code == ExitCode.USAGE
        assert len(listed()) == 1

    def test_a_message_that_runs_again_is_as_good_as_any(
        self, echo: Workflow, redis_client: Redis, workers: Workers
    ) -> None:
        run = submit(echo, {"x": 7})
        raw: Any = redis_client.rpop(QUEUE)
        with app.connection_for_write() as connection, connection.channel() as channel:
            taken = channel.Message(json.loads(raw), channel=channel)
            channel.qos.append(taken, taken.delivery_tag)
            DeadLetters(channel).bury(taken, "an old worker", worker="w1")
        [letter] = listed()
        assert (letter.run, letter.calls) == (run.id, ("0",))
        self.mosaic("requeue", letter.id)
        worker = workers.start("mosaic_tasks.app", [QUEUE], env={"MOSAIC_OUTBOX_GRACE_S": "60"})
        worker.wait_ready()
        assert run.result(30) == 7


def test_a_broken_letter_says_so() -> None:
    with dead_letters(app) as letters:
        assert letters is not None
        with pytest.raises(InputError, match="there is no dead letter 'x'"):
            letters.get("x")
