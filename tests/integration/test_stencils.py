"""Messages made from stencils: they are what Celery and kombu make, and a run's opening may send them."""

from __future__ import annotations

import base64
import itertools
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from celery import Celery
from redis import Redis
from redis.exceptions import ResponseError

from mosaic_queues.ledger import Ledger
from mosaic_queues.outbox import Outbox
from mosaic_queues.settings import Settings
from mosaic_queues.stencils import PLAN_HEADER, WEIGHT_HEADER, Stencil
from mosaic_queues.streams import Letter
from mosaic_tasks import Workflow, submit
from mosaic_tasks.app import app
from mosaic_tasks.execution.process import process_for
from mosaic_tasks.execution.strategy import strategy
from mosaic_tasks.pool import TaskPool as AsyncPool

pytestmark = pytest.mark.integration
QUEUE, PREFIX = "q", "ns:"
CALLS = ["0.0", "0.1", "0.2", "0.3", "0.4"]
PAIRED = {"batch_size": lambda _queue, _calls: 2}
ECHO = {"name": "echo", "nodes": {"one": {"tool": "builtins:dict"}}, "output": "one"}


def app_of(broker_url: str, **transport: Any) -> Celery:
    made = Celery("stencils", broker=broker_url, set_as_current=False)
    made.conf.broker_transport_options = transport
    return made


def alike(raw: bytes) -> Any:
    """A message without what is its own; its body is read."""
    message = json.loads(raw)
    ids = {message["headers"].pop("id"), message["properties"].pop("correlation_id")}
    assert len(ids) == 1
    assert message["properties"].pop("delivery_tag")
    message["body"] = json.loads(base64.b64decode(message["body"]))
    return message


def sent(client: Redis, outbox: Outbox, priority: int) -> list[Any]:
    """What is in the lists after a call, calls together, a fan-out and what closes it were published."""
    outbox.publish("run", [(QUEUE, ["0"])], priority=priority)
    outbox.publish("run", [(QUEUE, CALLS), ("other", ["1"])], priority=priority, plan="hash", **PAIRED)
    outbox.publish_chord("run", [(QUEUE, CALLS)], (QUEUE, ["0.c"]), priority=priority, plan="hash", **PAIRED)
    outbox.publish("run", [(QUEUE, ["0.c"]), (QUEUE, ["2.m"])], priority=priority)
    keys = sorted(key for key in client.keys("*") if client.type(key) == b"list")
    found = [(key, [alike(raw) for raw in reversed(client.lrange(key, 0, -1))]) for key in keys]
    client.delete(*keys)
    groups = [
        message["headers"] for _, messages in found for message in messages if message["headers"]["group"]
    ]
    assert len({headers["group"] for headers in groups}) == 1
    for headers in groups:
        headers["group"] = "the one of its chord"
    return found


@pytest.mark.parametrize("priority", [0, 6])
@pytest.mark.parametrize("transport", [{}, {"global_keyprefix": PREFIX}], ids=["plain", "prefix"])
def test_they_are_what_celery_and_kombu_make(
    redis_client: Redis,
    broker_url: str,
    priority: int,
    transport: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with app_of(broker_url, **transport) as made:
        ours = sent(redis_client, Outbox(made, clock=lambda: 1.5), priority)
        monkeypatch.setattr(Stencil, "cut", lambda *_: None)
        theirs = sent(redis_client, Outbox(made, clock=lambda: 1.5), priority)
    assert ours == theirs
    messages = dict(ours)[next(key for key, _ in ours if b"other" not in key)]
    assert [message["headers"].get(WEIGHT_HEADER, 1) for message in messages] == [1, 2, 2, 1, 2, 2, 1, 1, 1]
    assert [message["headers"]["group_index"] for message in messages[4:7]] == [0, 1, 2]


def test_many_messages_keep_their_order(redis_client: Redis, broker_url: str) -> None:
    calls = [f"0.{item}" for item in range(1234)]
    with app_of(broker_url) as made:
        assert Outbox(made).publish("run", [(QUEUE, calls)])
    raws = reversed(redis_client.lrange(QUEUE, 0, -1))
    assert [json.loads(base64.b64decode(json.loads(raw)["body"]))[0][1][0] for raw in raws] == calls


def test_messages_of_which_each_is_made_by_itself_are_left_to_kombu(
    redis_client: Redis, broker_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of an app whose headers name the trace that each is sent in."""
    numbers = itertools.count()
    with app_of(broker_url) as made:
        make = made.amqp.as_task_v2

        def traced(*given: Any, **options: Any) -> Any:
            message = make(*given, **options)
            message.headers["trace"] = next(numbers)
            return message

        monkeypatch.setattr(made.amqp, "as_task_v2", traced)
        assert Outbox(made).publish("run", [(QUEUE, ["0", "1", "2"])])
    traces = [json.loads(raw)["headers"]["trace"] for raw in reversed(redis_client.lrange(QUEUE, 0, -1))]
    assert traces == [2, 3, 4]  # after the two that were compared


def test_a_compressed_message_is_left_to_kombu(redis_client: Redis, broker_url: str) -> None:
    with app_of(broker_url) as made, made.connection_for_write() as connection:

        def send(channel: Any) -> None:
            made.amqp.Producer(channel, auto_declare=False).publish({}, routing_key=QUEUE, compression="gzip")

        assert Stencil.cut(connection.default_channel, send) is None


def test_an_opening_that_is_not_prepared_opens_nothing(redis_client: Redis) -> None:
    """Where the server refuses to enter the run, and says so to whoever submits it."""
    ledger, run_id = Ledger(redis_client), uuid4().hex
    options: dict[str, Any] = {
        "plan": "p",
        "plan_data": b"plan",
        "name": "n",
        "inputs": b"",
        "roots": [(QUEUE, ["0"])],
        "retention_s": 60,
        "max_run_s": 60,
        "entered_ms": 1,
        "letters": [Letter("0", QUEUE, "list", "one")],
    }
    assert ledger.open_run(uuid4().hex, **options).is_sent
    redis_client.delete("mosaic:runs")
    redis_client.set("mosaic:runs", "no set", ex=60)
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        ledger.open_run(run_id, **options)
    assert redis_client.exists(ledger.keys.run(run_id)[0]) == 0
    assert redis_client.llen("list") == 1
    redis_client.delete("mosaic:runs")
    assert ledger.open_run(run_id, **options).is_sent
    assert redis_client.zscore("mosaic:runs", run_id) == 1


def test_a_queue_that_expires_is_left_to_kombu(redis_client: Redis, broker_url: str) -> None:
    """It does more than to put the message into a list."""
    with app_of(broker_url) as made, made.connection_for_write() as connection:
        channel = connection.default_channel
        channel._expires[QUEUE] = 60_000
        assert (
            Stencil.cut(channel, lambda noting: made.amqp.Producer(noting).publish({}, routing_key=QUEUE))
            is None
        )
    assert redis_client.exists(QUEUE) == 0


def test_stencils_of_workers_that_are_gone_are_forgotten(
    broker_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mosaic_queues.outbox._STENCILS_KEPT", 2)
    with app_of(broker_url) as made:
        outbox = Outbox(made)
        for number in range(5):
            assert outbox.publish("run", [(f"q{number}", ["0"])])
        assert len(outbox._stencils) <= 2


# -- the opening of a run ------------------------------------------------------------------------------------------


def opened(client: Redis, *letters: Letter) -> Any:
    return Ledger(client).open_run(
        uuid4().hex,
        plan="p",
        plan_data=b"plan",
        name="n",
        inputs=b"",
        roots=[(QUEUE, ["0"])],
        retention_s=60,
        max_run_s=60,
        letters=letters,
    )


def test_an_opening_sends_the_letters_of_its_roots(redis_client: Redis) -> None:
    answer = opened(redis_client, Letter("0", QUEUE, "list", "one"), Letter("1", QUEUE, "list", "two"))
    assert (answer.is_new, answer.is_sent) == (True, True)
    assert redis_client.lrange("list", 0, -1) == [b"two", b"one"]


def test_a_run_that_is_open_sends_none_again(redis_client: Redis) -> None:
    ledger, run_id = Ledger(redis_client), uuid4().hex
    letters = [Letter("0", QUEUE, "list", "one")]
    answers = [
        ledger.open_run(
            run_id,
            plan="p",
            plan_data=b"plan",
            name="n",
            inputs=b"",
            roots=[],
            retention_s=60,
            max_run_s=60,
            letters=letters,
        )
        for _ in range(2)
    ]
    assert [bool(answer) for answer in answers] == [True, False]
    assert redis_client.llen("list") == 1


def test_a_letter_that_is_refused_undoes_no_opening(redis_client: Redis) -> None:
    """The key of the list holds something else; the caller sends all messages, and who gets one twice claims once."""
    redis_client.set("taken", "text")
    answer = opened(redis_client, Letter("0", QUEUE, "taken", "one"), Letter("1", QUEUE, "list", "two"))
    assert (answer.is_new, answer.is_sent) == (True, False)
    assert redis_client.lrange("list", 0, -1) == [b"two"]


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What a submission had to publish after the opening."""
    found: list[Any] = []
    process = process_for(app)
    real = process.outbox.publish

    def publish(*given: Any, **options: Any) -> bool:
        found.append(given)
        return real(*given, **options)

    monkeypatch.setattr(process.outbox, "publish", publish)
    return found


def messages(client: Redis) -> list[Any]:
    return [json.loads(raw) for raw in reversed(client.lrange("mosaic.cpu", 0, -1))]


@pytest.mark.usefixtures("mosaic_process")
def test_a_submission_is_one_trip_once_its_plan_is_stored(
    redis_client: Redis, published: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    workflow = Workflow.from_data(ECHO)
    submit(workflow)
    published.clear()
    trips: list[str] = []
    client = process_for(app).client
    pool = client.connection_pool
    take = pool.get_connection
    monkeypatch.setattr(pool, "get_connection", lambda *given: trips.append("trip") or take(*given))
    run = submit(workflow)
    assert trips == ["trip"]
    assert published == []
    assert [message["headers"]["root_id"] for message in messages(redis_client)][-1] == run.id
    assert messages(redis_client)[-1]["headers"][PLAN_HEADER] == run.record().plan


@pytest.mark.usefixtures("mosaic_process")
def test_a_plan_that_the_server_lost_is_stored_before_anybody_gets_a_message(
    redis_client: Redis, published: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    workflow = Workflow.from_data(ECHO)
    submit(workflow)
    published.clear()
    redis_client.flushdb()
    store, waiting = redis_client.set, list[int]()

    def set_(key: Any, *given: Any, **options: Any) -> Any:
        waiting.append(redis_client.llen("mosaic.cpu"))
        return store(key, *given, **options)

    monkeypatch.setattr(process_for(app).client, "set", set_)
    run = submit(workflow)
    assert redis_client.get(f"mosaic:plan:{run.record().plan}")
    assert waiting == [0]
    assert published == []
    assert [message["headers"]["root_id"] for message in messages(redis_client)] == [run.id]


@pytest.mark.usefixtures("mosaic_process")
def test_a_refused_letter_is_published(
    redis_client: Redis, published: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = process_for(app).outbox.letters

    def misled(*given: Any, **options: Any) -> Any:
        redis_client.set("taken", "text")
        return [letter._replace(key="taken") for letter in real(*given, **options) or ()]

    monkeypatch.setattr(process_for(app).outbox, "letters", misled)
    run = submit(Workflow.from_data(ECHO))
    assert len(published) == 1
    assert [message["headers"]["root_id"] for message in messages(redis_client)] == [run.id]


@pytest.fixture
def received(mosaic_process: Settings, redis_client: Redis) -> Any:
    """The message of a run."""
    submit(Workflow.from_data(ECHO))
    (message,) = messages(redis_client)
    return SimpleNamespace(payload=json.loads(base64.b64decode(message["body"])), headers=message["headers"])


@pytest.mark.parametrize("forged", [None, ["a", "list"], 7, {}])
def test_a_host_is_told_the_plan_that_a_message_names(
    received: Any, monkeypatch: pytest.MonkeyPatch, forged: Any
) -> None:
    named, made = list[str](), list[Callable[[], object]]()
    if forged is not None:
        received.headers[PLAN_HEADER] = forged

    def take(_run_id: str, _calls: list[str], acknowledge: Callable[[], object], *, plan: str) -> None:
        named.append(plan)
        acknowledge()

    process = process_for(app)
    monkeypatch.setattr(process, "host", SimpleNamespace(take=take))
    pool = object.__new__(AsyncPool)
    monkeypatch.setattr(pool, "call_in_hub", made.append)
    consumer = SimpleNamespace(pool=pool, connection_errors=())
    acknowledged: list[Any] = []
    strategy(app.tasks["mosaic.call"], app, consumer)(
        received, None, lambda *given: acknowledged.append(given)
    )
    record = process.ledger.run(received.headers["root_id"])
    assert (named, acknowledged) == ([record.plan if forged is None else ""], [])
    made.pop()()
    assert len(acknowledged) == 1
