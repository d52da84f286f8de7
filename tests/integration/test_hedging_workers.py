"""Calls that take long are asked a second time elsewhere, by real workers: who answers first, who dies, who is told."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from mosaic_queues.errors import EngineGone
from mosaic_queues.keys import Keys
from mosaic_queues.liveness import Liveness
from mosaic_queues.settings import settings
from mosaic_queues.transitions import Claim
from mosaic_routing.guards import Query
from mosaic_routing.hedging import Hedges
from mosaic_routing.targets import Decision
from mosaic_tasks import Run, Workflow, submit
from mosaic_tasks.app import app
from mosaic_tasks.execution.placing import dispatching, fleets
from mosaic_tasks.execution.placing.asking import Asking
from mosaic_tasks.execution.placing.dispatching import Dispatcher, release_sent
from mosaic_tasks.execution.process import process_for
from mosaic_tasks.execution.sent import Sent, Straggler
from tests.integration.stream_tools import await_told, happened, open_engines
from tests.integration.test_simulated_worker import FAST, SLOW, SimulatedGpus, asked, gpus
from tests.services import Worker, Workers, key_events

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("mosaic_process")]

__all__ = ["gpus"]
WAIT_S = 30.0
LIVELY = {"MOSAIC_LIVENESS_S": "2"}


class Site:
    """Two providers of one model, `one` and `other`, each asked by a worker of its own."""

    def __init__(self, workers: Workers, client: Redis) -> None:
        self.client, self._workers = client, workers
        self.runs: list[Run] = []
        self._started: list[Worker] = []

    def start(self, name: str, *, pool: str = "async", dies: str = "") -> Worker:
        args, env = ("--include", "tests.integration.hedge_gates"), {**LIVELY, "DIES": dies}
        queues = [f"mosaic.api.{name}", "mosaic.cpu"]
        worker = self._workers.start("mosaic_tasks.app", queues, pool=pool, env=env, args=args)
        self._started.append(worker)
        return worker.wait_ready()

    def submit(self, workflow: Workflow) -> Run:
        self.runs.append(submit(workflow, {}))
        return self.runs[-1]

    def open(self, name: str) -> None:
        """The engine answers from now on."""
        open_engines(self.client, name)

    def await_asked(self, *names: str, times: int = 1) -> None:
        for name in names:
            await_told(self.client, f"asked {name}", times)

    def await_usages(self, run: Run, count: int) -> None:
        """Waits until so many askings of the run have told what they used; one that lost may do so after its end."""
        with key_events(self.client, "t") as happenings:
            while kinds(run)["usage"] < count:
                next(happenings)

    def check(self) -> None:
        """No call is recorded twice, and no target is charged with what is over."""
        for run in self.runs:
            done = Counter(call for event in run.events() if event.kind == "done" for call in event.calls)
            assert set(done.values()) <= {1}
        if all(worker.returncode is None for worker in self._started):  # what a dead one had counted lapses
            self._await_no_load()

    def _await_no_load(self) -> None:
        with key_events(self.client, "zh$") as happenings:
            while self.loads() != ((0, 0), (0, 0)):
                next(happenings)

    def loads(self) -> tuple[tuple[int, int], ...]:
        names = ("target:api.one/sage", "target:api.other/sage")
        return tuple(process_for(app).guards.read(Query(leases=names)).leases)


@pytest.fixture
def site(
    workers: Workers, redis_client: Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Site]:
    offers = []
    for name, said in (("one", "Once upon a time."), ("other", "Once more.")):
        answers = tmp_path / f"{name}.jsonl"
        deltas = [(0.0, said[:7]), (0.0, said[7:])]
        answers.write_text(json.dumps({"text": said, "deltas": deltas, "match": [""]}) + "\n")
        speed = "speed: {prefill_tokens_s: 10000, decode_tokens_s: TOKENS}".replace(
            "TOKENS", "1000" if name == "one" else "500"
        )
        offers.append(
            f"      - {{engine: replay, model: {json.dumps(str(answers))}, provider: {name}, {speed}}}\n"
        )
    pool = tmp_path / "models.yaml"
    pool.write_text("models:\n  sage:\n    context_tokens: 4096\n    providers:\n" + "".join(offers))
    monkeypatch.setenv("MOSAIC_MODELS", str(pool))
    monkeypatch.setattr(dispatching, "hedge_after_s", lambda *_args, **_options: 0.05)
    monkeypatch.setattr(fleets, "LEASE_S", 3_600.0)  # what is not given back stays
    settings.cache_clear()
    made = Site(workers, redis_client)
    yield made
    made.check()


ASKS = Workflow.from_yaml(
    "name: asks\nnodes:\n  answer: {agent: {prompt: A question., model: 'pool:sage'}}\noutput: answer\n"
)
STREAMED = Workflow.from_yaml(
    "name: streamed\nnodes:\n"
    "  answer: {agent: {prompt: A question., model: 'pool:sage'}}\n"
    "  read:\n"
    "    tool: tests.integration.stream_tools:upper\n"
    "    with: {text: '${answer}'}\n"
    "    edges: {answer: stream}\n"
    "output: read\n"
)


def kinds(run: Run) -> Counter[str]:
    return Counter(event.kind for event in run.events())


@pytest.mark.parametrize("pool", ["async", "prefork", "solo"])
def test_the_second_answer_counts_where_it_comes_first_and_the_first_engine_is_left(
    site: Site, pool: str
) -> None:
    for name in ("one", "other"):
        site.start(name, pool=pool)
    run = site.submit(ASKS)
    site.await_asked("one", "other")
    assert "asked a second time, last at api.other/sage" in str(run.explain()[0])
    site.open("other")
    assert run.result(WAIT_S) == "Once more."
    await_told(site.client, "left one", 1)
    site.await_usages(run, 2)
    (hedged,) = [event for event in run.events() if event.kind == "hedged"]
    assert (hedged.calls, hedged.target) == (("0.~",), "api.other/sage")
    assert kinds(run)["overtaken"] == 1
    assert run.view().nodes[0].target == "api.other/sage"


def test_the_first_answer_counts_where_it_comes_first_and_the_second_engine_is_left(site: Site) -> None:
    for name in ("one", "other"):
        site.start(name)
    run = site.submit(ASKS)
    site.await_asked("one", "other")
    site.open("one")
    assert run.result(WAIT_S) == "Once upon a time."
    await_told(site.client, "left other", 1)
    site.await_usages(run, 2)
    assert kinds(run)["overtaken"] == 0


def test_what_the_first_had_said_is_corrected(site: Site) -> None:
    for name in ("one", "other"):
        site.start(name)
    run = site.submit(STREAMED)
    site.await_asked("one", "other")
    site.open("other")
    assert "".join(run.result(WAIT_S)) == "ONCE MORE."
    chunks = process_for(app).ledger.chunks(run.id, "0")
    assert [chunk.kind for chunk in chunks] == ["text", "retract", "text", "end"]


def test_a_second_asking_that_fails_leaves_the_call_where_it_is(site: Site) -> None:
    for name in ("one", "other"):
        site.start(name)
    site.client.set("test:broken:other", 1, ex=60)
    run = site.submit(ASKS)
    await_told(site.client, "left other", 1)
    next(event for event in run.events(follow=True) if event and event.kind == "released")
    assert [call.call for call in run.live_calls()] == ["0"]
    site.open("one")
    assert run.result(WAIT_S) == "Once upon a time."
    assert kinds(run)["retry"] == 0


def test_a_second_asking_that_comes_back_to_the_worker_of_its_call_is_of_no_use(site: Site) -> None:
    process = process_for(app)
    sent = Sent(Decision(target="h100/sage@gpu2@far"), hedges=f"h100/sage@{process.facts.hostname}")
    run = site.submit(ASKS)
    asking = Asking(process, run.id, process.plan_of(run.id), epoch=0)
    with pytest.raises(EngineGone, match="the call itself runs in this worker"):
        asking.take_over(Claim("0.~", 1, 0, 0), sent)


def test_a_second_asking_that_dies_leaves_the_call_where_it_is(site: Site) -> None:
    site.start("one")
    dying = site.start("other")
    run = site.submit(ASKS)
    site.await_asked("one", "other")
    dying.kill()
    next(event for event in run.events(follow=True) if event and event.kind == "lost")
    assert [call.call for call in run.live_calls()] == ["0"]
    site.open("one")
    assert run.result(WAIT_S) == "Once upon a time."
    assert len(happened(site.client, "asked one")) == 1


def test_a_first_asking_that_dies_is_taken_over_by_the_second(site: Site) -> None:
    dying = site.start("one")
    site.start("other")
    run = site.submit(ASKS)
    site.await_asked("one", "other")
    dying.kill()
    site.open("other")
    assert run.result(WAIT_S) == "Once more."
    assert len(happened(site.client, "asked other")) == 1


def test_where_both_die_the_call_runs_again(site: Site) -> None:
    dying = [site.start("one"), site.start("other")]
    run = site.submit(ASKS)
    site.await_asked("one", "other")
    for worker in dying:
        worker.kill()
    site.open("one")
    site.start("one")
    assert run.result(WAIT_S) == "Once upon a time."


@pytest.mark.parametrize("dies", ["before it takes over", "after it took over"])
def test_one_that_dies_when_it_takes_over_loses_nothing(site: Site, dies: str) -> None:
    site.start("one")
    dying = site.start("other", dies=dies)
    run = site.submit(ASKS)
    site.await_asked("one", "other")
    site.open("other")
    dying.wait(WAIT_S)
    site.open("one")
    assert run.result(WAIT_S) == "Once upon a time."


def test_one_that_dies_before_it_sends_the_message_loses_nothing(site: Site) -> None:
    dying = site.start("one", dies="before the message")
    site.start("other")
    run = site.submit(ASKS)
    dying.wait(WAIT_S)
    site.open("other")
    assert run.result(WAIT_S) == "Once more."


def test_a_call_that_is_stuck_at_a_gpu_is_answered_by_another(
    gpus: SimulatedGpus, tmp_path: Path, redis_client: Redis
) -> None:
    stuck = gpus.host(FAST, tmp_path, slots=1, faults={"hangs_after": 31, "hang_s": 600}).wait_ready()
    for _ in range(30):
        assert asked().result(WAIT_S) == "It flows."
    gpus.host(SLOW, tmp_path, decode_tokens_s=100.0).wait_ready()
    with key_events(redis_client, "zh$") as happenings:
        run = asked()
        assert run.result(WAIT_S) == "It flows."
        (hedged,) = [event for event in run.events() if event.kind == "hedged"]
        assert hedged.target.startswith(f"{SLOW}/teller@")
        loads = Query(leases=(f"target:{FAST}/teller@{stuck.name}", f"target:{hedged.target}"))
        while process_for(app).guards.read(loads).leases != ((0, 0), (0, 0)):
            next(happenings)
    assert kinds(run)["overtaken"] == 1
    assert stuck.returncode is None


@pytest.fixture
def announced(redis_client: Redis, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Liveness]]:
    """The providers are served by workers that do nothing."""
    monkeypatch.setattr(fleets, "REFRESH_S", 0.0)
    alive = {
        name: Liveness(
            redis_client, Keys("mosaic"), expiry_s=10.0, queues=[f"mosaic.api.{name}", "mosaic.cpu"], slots=1
        )
        for name in ("one", "other")
    }
    for each in alive.values():
        each.start()
    yield alive
    for each in alive.values():
        each.stop()


def hedged_here(site: Site, monkeypatch: pytest.MonkeyPatch) -> tuple[Run, Dispatcher]:
    """A run whose call was sent to `one`, claimed, and asked a second time at `other`."""
    process = process_for(app)
    places = Dispatcher(process)
    process.places = places
    monkeypatch.setattr(places, "_hedges", Hedges(calls=100.0))
    run = site.submit(ASKS)
    plan = process.plan_of(run.id)
    (claim,) = process.ledger.advance(run.id, holder="one#1", claim=["0"]).claimed
    sent = Asking(process, run.id, plan, epoch=0).sent("0")
    assert sent is not None
    assert places.hedge(run.id, plan, Straggler(claim, "one#1", sent, 60.0, 0.0)) == "api.other/sage"
    return run, places


@pytest.mark.usefixtures("announced")
def test_what_was_asked_twice_is_no_load_once_its_run_is_over(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, _ = hedged_here(site, monkeypatch)
    assert [active for active, _ in site.loads()] == [1, 1]
    run.cancel()
    release_sent(process_for(app), run.id)
    assert site.loads() == ((0, 0), (0, 0))


@pytest.mark.usefixtures("announced")
def test_what_ends_as_soon_as_it_is_asked_twice_is_no_load(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = process_for(app)
    hedge = process.ledger.hedge

    def ended_at_once(run_id: str, *args: Any, **options: Any) -> bool:
        is_there = hedge(run_id, *args, **options)
        Run(run_id, process).cancel()
        release_sent(process, run_id)
        return is_there

    monkeypatch.setattr(process.ledger, "hedge", ended_at_once)
    hedged_here(site, monkeypatch)
    assert site.loads() == ((0, 0), (0, 0))


def test_a_shadow_that_finds_no_room_goes_elsewhere_but_not_to_its_call(
    site: Site, announced: dict[str, Liveness], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, places = hedged_here(site, monkeypatch)
    process, plan = process_for(app), process_for(app).plan_of(run.id)
    assert list(places.dispatch(run.id, plan, ["0.~"]).values()) == [[("mosaic.api.other", ["0.~"])]]
    announced["other"].stop()
    assert places.dispatch(run.id, plan, ["0.~"]) == {}
    assert process.ledger.wake(run.id, ["0.~"], now_ms=process.now_ms()) == []
    assert [call.call for call in run.live_calls()] == ["0"]
    run.cancel()
    release_sent(process, run.id)


@pytest.mark.usefixtures("announced")
def test_a_second_asking_that_nobody_has_begun_is_no_load_once_the_first_has_answered(site: Site) -> None:
    site.start("one")
    run = site.submit(ASKS)
    next(event for event in run.events(follow=True) if event and event.kind == "hedged")
    site.open("one")
    assert run.result(WAIT_S) == "Once upon a time."
