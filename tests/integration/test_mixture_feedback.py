"""What runs teach of experts: scores, what mixtures judge by themselves, and what later mixtures begin with."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis import Redis
from typer.testing import CliRunner

from mosaic_queues.errors import InputError, UnknownRun
from mosaic_queues.keys import Keys
from mosaic_tasks import Run, submit
from mosaic_tasks.app import app
from mosaic_tasks.cli import application
from mosaic_tasks.cli.exits import ExitCode
from mosaic_tasks.client import get_run
from mosaic_tasks.execution.mixtures import experiences as store
from mosaic_tasks.execution.mixtures.experiences import Experiences, Lesson
from mosaic_tasks.execution.mixtures.expert_learning import experiences
from mosaic_tasks.execution.process import process_for
from mosaic_tasks.mixtures.experience import Experience
from mosaic_tasks.mixtures.judging import SYNTHESISED, Judged, Observed
from mosaic_tasks.mixtures.mixture import Memory
from tests.integration.mixture_runs import SCHEMA, ask, experts, mixture, number, says
from tests.services import Worker, Workers

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("mosaic_process")]

WAIT_S = 60.0
QUEUES = ("mosaic.cpu", "mosaic.api.replay")
MARGIN = {"kind": "margin", "margin": 2, "confidence": None}
NEVER = {"kind": "none", "confidence": None}
SCOPE = "mixes/answer"
SHARES = st.integers(0, 8).map(lambda n: n / 8)  # sums of these are exact


def start(workers: Workers, **options: Any) -> Worker:
    options = {"concurrency": 32, "pool": "async", **options}
    return workers.start("mosaic_tasks.app", queues=QUEUES, **options).wait_ready()


@pytest.fixture
def worker(workers: Workers) -> Worker:
    return start(workers)


def known(tenant: str = "", scope: str = SCOPE) -> dict[str, Experience]:
    """By the names of experts, whatever their model."""
    found = experiences(process_for(app), tenant).everyone(scope)
    return {name.partition("@")[0]: one for name, one in found.items()}


def outcomes(**options: Any) -> dict[str, tuple[float, float]]:
    return {name: (one.right, one.wrong) for name, one in known(**options).items() if one.right or one.wrong}


def memory_of(run: Run) -> Memory:
    process = process_for(app)
    state = process.client.hget(process.ledger.keys.run(run.id)[6], "m:0.m")
    return msgspec.convert(process.payloads.unpack(run.id, state), Memory)


def mosaic(*arguments: str) -> Any:
    return CliRunner().invoke(application, list(arguments), catch_exceptions=False)


@pytest.fixture
def done(worker: Worker, tmp_path: Path) -> Run:
    """18 by two, and 5 by one."""
    run = ask(experts(tmp_path, number(18), number(18), number(5)), gate=NEVER, waves=3)
    assert run.result(WAIT_S)["answer"] == 18
    return run


# -- scores ------------------------------------------------------------------------------------------------------


def test_a_score_is_what_the_next_mixture_begins_with(done: Run, tmp_path: Path) -> None:
    scored = done.score("answer", 1)
    assert scored.judged == {"e0": 1, "e1": 1, "e2": 0}
    again = submit(mixture(experts(tmp_path, number(18), number(18), number(5))), {"question": "Again?"})
    again.result(WAIT_S)
    profiles = memory_of(again).profiles
    assert {name: (one.right, one.wrong) for name, one in profiles.items()} == {
        "e0": (1, 0),
        "e1": (1, 0),
        "e2": (0, 1),
    }
    assert {**profiles["e0"].agrees, **profiles["e1"].agrees} == {"e1": (0, 1), "e2": (0, 1)}
    assert all(one.latency_s > 0 and one.tokens > 0 for one in profiles.values())


def test_scoring_again_goes_in_the_place_of_the_last_score(done: Run) -> None:
    for value, answer in ((1, None), (1, None), (0.5, None), (0, None), (1, "5"), (0, None)):
        done.score("answer", value, answer=answer)
    assert outcomes() == {"e0": (0, 1), "e1": (0, 1)}
    asyncio.run(done.ascore("answer", 0, answer={"answer": "5.0"}))
    assert outcomes() == {"e0": (0, 1), "e1": (0, 1), "e2": (1, 0)}


def test_tenants_know_nothing_of_each_other(worker: Worker, tmp_path: Path) -> None:
    run = submit(mixture(experts(tmp_path, number(18), number(18))), {"question": "?"}, tenant="acme")
    run.result(WAIT_S)
    run.score("answer", 1)
    assert outcomes(tenant="acme") == {"e0": (1, 0), "e1": (1, 0)}
    assert outcomes() == {}


@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan"), float("inf"), "1", None])
def test_a_value_that_is_no_score(done: Run, value: Any) -> None:
    with pytest.raises(InputError, match="is no score; give a number from 0"):
        done.score("answer", value)
    assert outcomes() == {}


def test_what_cannot_be_scored_says_why(done: Run, redis_client: Redis) -> None:
    with pytest.raises(InputError, match="has no node 'anwser'; did you mean 'answer'"):
        done.score("anwser", 1)
    with pytest.raises(InputError, match=r"node 'answer\.e0' of workflow 'mixes' is no mixture; .*: answer"):
        done.score("answer.e0", 1)
    with pytest.raises(InputError, match="the right answer True is none of the form 'number'"):
        done.score("answer", 1, answer=True)
    redis_client.delete(*redis_client.keys(f"*{done.id}*"))
    with pytest.raises(UnknownRun, match="past its retention"):
        done.score("answer", 1)
    with pytest.raises(UnknownRun):
        get_run(done.id).score("answer", 1)


def test_what_has_not_decided_cannot_be_scored(tmp_path: Path) -> None:
    run = ask(experts(tmp_path, number(18), number(18)))
    with pytest.raises(
        InputError, match=f"run {run.id}, which is running, has no answer that could be scored"
    ):
        run.score("answer", 1)
    run.cancel()


def test_scores_from_two_processes_at_once_count_as_one(done: Run) -> None:
    """Each scores many times, one with right and one with wrong; what stands in the end is one of the two."""
    code = "from mosaic_tasks import get_run\nimport sys\nrun = get_run(sys.argv[1])\n"
    code += "for n in range(30): run.score('answer', float(sys.argv[2]), answer='18' if n % 2 else None)"
    both = [
        subprocess.Popen([sys.executable, "-c", code, done.id, value], env=dict(os.environ)) for value in "10"
    ]
    assert [each.wait(WAIT_S) for each in both] == [0, 0]
    right = {"e0": (1, 0), "e1": (1, 0), "e2": (0, 1)}
    assert outcomes() == right  # the last of either is by the right answer
    done.score("answer", 0)
    assert outcomes() == {"e0": (0, 1), "e1": (0, 1)}


# -- what mixtures note by themselves ----------------------------------------------------------------------------


def test_calls_tell_what_they_cost_and_whether_they_count(worker: Worker, tmp_path: Path) -> None:
    asked = experts(tmp_path, number(18), "I cannot help with that.", number(18))
    ask(asked, gate=NEVER, waves=3).result(WAIT_S)
    found = known()
    assert [found[name].calls for name in ("e0", "e1", "e2")] == [1, 1, 1]
    assert [found[name].faults for name in ("e0", "e1", "e2")] == [0, store.LEAST_SHARE, 0]
    assert all(one.seconds > 0 and one.tokens > 0 for one in found.values())


def synthesis(folder: Path, *texts: str) -> dict[str, Any]:
    for text in texts:
        says(folder, "writer", text)
    return {"kind": "synthesis", "model": f"replay:{folder / 'writer.jsonl'}"}


def test_a_rerun_replaces_what_the_run_had_noted_and_a_score_that(worker: Worker, tmp_path: Path) -> None:
    asked = experts(tmp_path, number(18), number(5))
    run = ask(asked, gate=NEVER, waves=2, aggregator=synthesis(tmp_path, number(5)))
    run.result(WAIT_S)
    for _ in range(2):
        found = known()
        assert (found["e1"].weak_right, found["e0"].weak_wrong) == (SYNTHESISED, SYNTHESISED)
        run.rerun("answer")
        run.result(WAIT_S)
    assert known()["e0"].calls == 3
    run.score("answer", 0, answer=18)
    found = known()
    assert outcomes() == {"e0": (1, 0), "e1": (0, 1)}
    assert found["e0"].weak_wrong == found["e1"].weak_right == 0
    run.rerun("answer")
    run.result(WAIT_S)
    assert outcomes() == {}
    assert known()["e1"].weak_right == SYNTHESISED


@pytest.mark.parametrize("place", ["before", "after"])
def test_a_process_that_dies_where_it_notes_what_was_learned(
    workers: Workers, tmp_path: Path, place: str
) -> None:
    flag = tmp_path / "died"
    env = {"KILL_AT": place, "KILL_FLAG": str(flag), "MOSAIC_LIVENESS_S": "1"}
    options: dict[str, Any] = {"env": env, "args": ("-I", "tests.integration.feedback_kills")}
    doomed = start(workers, **options)
    asked = experts(tmp_path, number(18), number(5))
    run = ask(asked, gate=NEVER, waves=2, aggregator=synthesis(tmp_path, number(5)))
    assert doomed.wait(timeout_s=WAIT_S) == -signal.SIGKILL
    start(workers, **options)
    assert run.result(WAIT_S)["answer"] == 5
    assert flag.exists()
    found = known()
    assert (found["e0"].calls, found["e1"].calls) == (1, 1)
    assert (found["e1"].weak_right, found["e0"].weak_wrong) == (SYNTHESISED, SYNTHESISED)


def test_what_cannot_be_read_of_experts_fails_no_mixture(
    worker: Worker, tmp_path: Path, redis_client: Redis
) -> None:
    asked = experts(tmp_path, number(18), number(18))
    key = f"mosaic:{{experience:}}:of:{SCOPE}"
    redis_client.hset(key, f"e0@{asked[0]['model']}", b"\xc1 no msgpack")
    redis_client.hset(key, f"e1@{asked[1]['model']}", msgspec.msgpack.encode({"right": "many", "wrong": -3}))
    redis_client.expire(key, 60)
    assert ask(asked, gate=MARGIN).result(WAIT_S)["answer"] == 18
    assert {name: one.calls for name, one in known().items()} == {"e0": 1, "e1": 1}  # they count as new


def test_a_server_that_refuses_fails_no_mixture(worker: Worker, tmp_path: Path, redis_client: Redis) -> None:
    redis_client.set(f"mosaic:{{experience:}}:of:{SCOPE}", "no hash", ex=60)
    run = ask(experts(tmp_path, number(18), number(18)), gate=MARGIN)
    assert run.result(WAIT_S)["answer"] == 18
    worker.wait_said("experience.away")
    worker.wait_said("experience.lost")


# -- what is missing ---------------------------------------------------------------------------------------------


def test_an_answer_that_lacks_something_has_the_next_wave_ask_who_offers_it(
    worker: Worker, tmp_path: Path
) -> None:
    schema = {**SCHEMA, "properties": {**SCHEMA["properties"], "missing": {"type": "array"}}}
    lacks = json.dumps({"answer": "5", "reasoning": "A guess.", "missing": ["data"]})
    asked = [
        *experts(tmp_path, lacks, number(7), number(18)),
        {"name": "late", "model": says(tmp_path, "late", number(9))},
    ]
    asked[2]["offers"] = ["data"]
    record = ask(asked, gate=NEVER, waves=[1, 1], output=schema).result(WAIT_S)
    assert [said["expert"] for said in record["calls"]] == ["e0", "e2", "e1", "late"]


# -- the commands ------------------------------------------------------------------------------------------------


def test_the_commands_score_and_show_what_is_known(done: Run) -> None:
    assert "nothing is known of experts yet" in mosaic("experts", "--tenant", "nobody").stdout
    told = mosaic("score", done.id, "answer", "0.75")
    assert (told.exit_code, told.stdout) == (
        0,
        "scored answer with 0.75: e0 75% right, e1 75% right, e2 wrong\n",
    )
    scored = json.loads(mosaic("score", done.id, "answer", "0", "--answer", "5", "--json").stdout)
    assert scored["judged"] == {"e0": 0, "e1": 0, "e2": 1}

    rows = json.loads(mosaic("experts", "--capability", SCOPE, "--json").stdout)["scopes"][SCOPE]
    assert [row["expert"].partition("@")[0] for row in rows] == ["e2", "e0", "e1"]
    assert (rows[0]["right"], rows[0]["wrong"], rows[1]["wrong"]) == (1, 0, 1)
    assert rows[0]["interval"][0] < rows[0]["expected"] < rows[0]["interval"][1]
    e0, e1 = rows[1]["expert"], rows[2]["expert"]
    assert rows[1]["together"][e1] == rows[2]["together"][e0] == [1, 1]
    shown = mosaic("experts").stdout
    assert SCOPE in shown.splitlines()[1]
    assert "1 of 1" in " ".join(shown.split())


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("answer", "2"), ExitCode.USAGE),
        (("nobody", "1"), ExitCode.USAGE),
        (("answer", "1", "--history", "no/such/folder"), ExitCode.USAGE),
    ],
)
def test_a_wrong_score_is_wrong_usage(done: Run, arguments: tuple[str, ...], code: ExitCode) -> None:
    assert mosaic("score", done.id, *arguments).exit_code == code


def test_a_history_that_cannot_be_written_is_told_before_anything_is_scored(done: Run) -> None:
    assert mosaic("score", done.id, "answer", "1", "--history", "no/such/folder").exit_code == ExitCode.USAGE
    assert outcomes() == {}
    full = mosaic("score", done.id, "answer", "1", "--history", "/dev/full")
    assert (full.exit_code, "it is scored, but the history '/dev/full' cannot be written" in full.stderr) == (
        ExitCode.USAGE,
        True,
    )
    assert outcomes().keys() == {"e0", "e1", "e2"}


def test_a_right_answer_that_is_none_is_told_in_short(done: Run) -> None:
    told = mosaic("score", done.id, "answer", "0", "--answer", "eighteen" * 12_500)
    assert (told.exit_code, len(told.stderr) < 300) == (ExitCode.USAGE, True)


def test_runs_that_were_scored_calibrate_the_next_ones(worker: Worker, tmp_path: Path) -> None:
    """The votes are sure of themselves, and half of them wrong: the calibration says so, and a mixture says it too."""
    asked, history = experts(tmp_path, number(18), number(18), number(5)), tmp_path / "history.jsonl"
    flow = mixture(asked, gate=NEVER, waves=3, details=True)
    runs = [submit(flow, {"question": f"{n}?"}) for n in range(20)]
    unsure = submit(mixture(asked[:1] + asked[2:], gate=NEVER, waves=2, min_experts=1), {"question": "?"})
    for place, run in enumerate([*runs, unsure]):
        before = run.result(WAIT_S)
        told = mosaic("score", run.id, "answer", str(place % 2), "--history", str(history))
        assert told.exit_code == 0, told.output
    assert mosaic("score", unsure.id, "answer", "1", "--history", str(history)).exit_code == 0
    assert len(history.read_text().splitlines()) == 22

    out = tmp_path / "calibration.json"
    learnt = mosaic("calibrate", str(history), "--out", str(out), "--method", "isotonic", "--json")
    assert json.loads(learnt.stdout)["lines"] == 21  # what was scored twice counts once
    fresh = ask(asked, gate=NEVER, waves=3, calibration=str(out))
    record = fresh.result(WAIT_S)
    assert record["confidence"] == pytest.approx(0.5, abs=0.05)
    assert record["votes"][0]["probability"] == pytest.approx(record["confidence"], abs=1e-3)
    assert record["confidence"] != runs[0].result(WAIT_S)["confidence"]
    assert before is not None


# -- the store ---------------------------------------------------------------------------------------------------


def kept(client: Redis, **options: Any) -> Experiences:
    return Experiences(client, Keys("mosaic"), "acme", run_s=options.get("run_s", 60.0))


def lesson(judged: dict[str, Judged], begun_ms: int, **options: Any) -> Lesson:
    fields: dict[str, Any] = {"scope": "math", "mixture": "run/node", "is_scored": True, "observed": ()}
    return Lesson(judged=judged, begun_ms=begun_ms, **{**fields, **options})


def now_ms(client: Redis) -> int:
    seconds, micros = client.time()
    return int(seconds * 1000 + micros // 1000)


JUDGED = st.dictionaries(
    st.sampled_from(["a", "b", "c"]),
    st.builds(
        Judged,
        right=SHARES,
        wrong=SHARES,
        weak_right=SHARES,
        weak_wrong=SHARES,
        together=st.dictionaries(st.sampled_from(["x", "y"]), st.tuples(SHARES, SHARES), max_size=2),
    ),
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.sampled_from(["one", "two"]), JUDGED), max_size=8))
def test_what_stands_is_the_sum_of_the_last_score_of_each(
    redis_client: Redis, scored: list[tuple[str, Any]]
) -> None:
    redis_client.flushdb()
    of, begun = kept(redis_client), now_ms(redis_client)
    for name, judged in scored:
        assert of.note(lesson(judged, begun, mixture=name)) == "noted"
    last = dict(scored)
    found = of.everyone("math")
    for name in ("a", "b", "c"):
        sums = [judged[name] for judged in last.values() if name in judged]
        one = found.get(name, Experience())
        for field in ("right", "wrong", "weak_right", "weak_wrong"):
            assert getattr(one, field) == pytest.approx(sum(getattr(each, field) for each in sums))
        judged_together = {other: sum(each.together.get(other, (0, 0))[1] for each in sums) for other in "xy"}
        assert {o: pair[1] for o, pair in one.together.items()} == pytest.approx(
            {other: total for other, total in judged_together.items() if total}
        )


def test_what_a_mixture_tells_by_itself_is_noted_once_and_never_after_a_score(redis_client: Redis) -> None:
    of, begun = kept(redis_client), now_ms(redis_client)
    call = Observed("a", 0.8, is_faulty=False, seconds=2.0, tokens=100, usd=0.01)
    own = lesson({"a": Judged(weak_right=0.2)}, begun, is_scored=False, observed=[call])
    assert [of.note(own), of.note(own)] == ["noted", "known"]
    assert of.note(lesson({"a": Judged(right=1)}, begun)) == "noted"
    assert of.note(own) == "known"
    assert of.known("math", ["a", "b"]).keys() == {"a"}
    one = of.known("math", ["a"])["a"]
    assert (one.calls, one.right, one.weak_right, one.usd, one.quality) == (1, 1, 0, 0.01, 0.8)


def test_an_earlier_execution_changes_nothing_any_more(redis_client: Redis) -> None:
    of, begun = kept(redis_client), now_ms(redis_client)
    assert of.note(lesson({"a": Judged(right=1)}, begun)) == "noted"
    assert of.note(lesson({"a": Judged(wrong=1)}, begun - 5)) == "known"
    assert of.everyone("math")["a"].right == 1


def test_a_score_that_comes_when_nobody_knows_what_was_noted_is_refused(redis_client: Redis) -> None:
    of, begun = kept(redis_client, run_s=1.0), now_ms(redis_client) - 2_001
    assert of.note(lesson({"a": Judged(right=1)}, begun)) == "late"
    assert of.everyone("math") == {}


def test_prices_and_times_are_means_in_which_older_calls_fade(redis_client: Redis) -> None:
    of, begun = kept(redis_client), now_ms(redis_client)
    for place, (seconds, usd) in enumerate([(1.0, None), (3.0, 0.5), (2.0, None)]):
        calls = [Observed("a", 0.7, is_faulty=False, seconds=seconds, tokens=10, usd=usd)]
        of.note(lesson({}, begun, mixture=f"run/{place}", is_scored=False, observed=calls))
    one = of.everyone("math")["a"]
    assert (one.seconds, one.usd, one.calls) == (2.0, 0.5, 3)
    calls = [Observed("a", 0.7, is_faulty=True, seconds=10.0, tokens=10, usd=None)] * 200
    of.note(lesson({}, begun, is_scored=False, observed=calls))
    one = of.everyone("math")["a"]
    assert one.seconds == pytest.approx(10.0, abs=0.01)
    assert one.faults == pytest.approx(1.0, abs=0.01)


def test_older_outcomes_fade_and_weak_ones_never_outweigh_the_measured_quality(redis_client: Redis) -> None:
    of, begun = kept(redis_client), now_ms(redis_client)
    for place in range(60):
        judged = Judged(right=30, wrong=10, weak_right=1, weak_wrong=1, together={"b": (5, 40)})
        of.note(lesson({"a": judged}, begun, mixture=f"run/{place}"))
    one = of.everyone("math")["a"]
    assert (one.right, one.wrong) == pytest.approx((750, 250))
    assert one.weak_right + one.weak_wrong == pytest.approx(store.MOST_WEAK)
    assert one.together["b"] == pytest.approx((125, 1000))


def test_what_is_known_is_bounded(redis_client: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MOST_EXPERTS", 4)
    monkeypatch.setattr(store, "MOST_SCOPES", 2)
    of, begun = kept(redis_client), now_ms(redis_client)
    for place in range(8):
        judged = {
            f"e{place}": Judged(right=1, together={"f": (0, 1), f"e{place - 1}": (0, 1)}),
            "f": Judged(right=1),
        }
        of.note(lesson(judged, begun, mixture=f"run/{place}"))
    found = of.everyone("math")
    assert len(found) == 4
    assert {"e7", "f"} < found.keys()
    assert all(other in found for one in found.values() for other in one.together)
    for scope in ("b", "c"):
        of.note(lesson({"a": Judged(right=1)}, begun, scope=scope, mixture=scope))
    assert len(of.scopes()) == 2
    assert [scope for scope in ("b", "c", "math") if of.everyone(scope)] == of.scopes()


def test_threads_that_note_together_lose_nothing(redis_client: Redis) -> None:
    of, begun = kept(redis_client), now_ms(redis_client)

    def note(first: int) -> None:
        for place in range(first, first + 25):
            of.note(lesson({"a": Judged(right=1)}, begun, mixture=f"run/{place}"))

    threads = [threading.Thread(target=note, args=(first,)) for first in (0, 25, 50, 75)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert of.everyone("math")["a"].right == 100
