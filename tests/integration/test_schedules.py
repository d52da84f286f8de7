"""Schedules on a real server, by their commands."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from typer.testing import CliRunner, Result

from mosaic_queues.errors import InputError
from mosaic_queues.keys import Keys
from mosaic_tasks import get_run
from mosaic_tasks.app import app
from mosaic_tasks.cli import application
from mosaic_tasks.definition.plan import Plan
from mosaic_tasks.execution.process import process_for
from mosaic_tasks.scheduling.schedules import Said, Schedules, script
from mosaic_tasks.scheduling.starting import start_tick
from mosaic_tasks.scheduling.ticks import Timing

pytestmark = [
    pytest.mark.integration,
    pytest.mark.usefixtures("mosaic_process"),
    pytest.mark.leaves("keys", reason="a schedule stays until somebody removes it, and nobody sweeps"),
]
FILE = """
name: weekly
inputs: {team: {type: string, default: all}, since: {type: string, default: ""}}
nodes:
  first: {tool: "string:capwords", with: {s: "${inputs.team} ${inputs.since}"}}
output: first
schedules:
  monday: {cron: 0 7 * * MON, zone: Europe/Berlin, inputs: {team: search, since: "{{ tick.previous }}"}}
  nightly: {every: 1d, priority: batch, jitter: 10m}
"""
Mosaic = Callable[..., Result]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "weekly.yaml"
    path.write_text(FILE)
    return path


@pytest.fixture
def mosaic(file: Path) -> Mosaic:
    """`mosaic schedule ...`, where FILE stands for the workflow's."""

    def run(*words: str, code: int = 0) -> Result:
        given = [str(file) if word == "FILE" else word for word in words]
        done = CliRunner().invoke(application, ["schedule", *given])
        assert done.exit_code == code, done.output
        return done

    return run


@pytest.fixture
def schedules(redis_client: Redis) -> Schedules:
    return Schedules(redis_client, Keys("mosaic"))


def said(done: Result) -> Any:
    return json.loads(done.stdout)


def test_adding_all_of_a_file_is_told_and_adding_them_again_changes_nothing(
    mosaic: Mosaic, file: Path, schedules: Schedules
) -> None:
    assert said(mosaic("add", "FILE", "--json")) == {"monday": "added", "nightly": "added"}
    before = schedules.all()
    assert said(mosaic("add", "FILE", "--json")) == {"monday": "same", "nightly": "same"}
    assert schedules.all() == before
    assert schedules.plan("nightly").priority == 9
    file.write_text(FILE.replace("team: search", "team: ads"))
    assert said(mosaic("add", "FILE", "--json")) == {"monday": "changed", "nightly": "same"}
    file.write_text(FILE.replace("first", "second").replace("search", "ads"))
    assert "monday: changed" in mosaic("add", "FILE", "--name", "monday").stdout
    assert schedules.plan("monday").nodes[0].name == "second"


def test_a_changed_time_counts_from_now_on_and_a_changed_input_changes_no_tick(
    mosaic: Mosaic, redis_client: Redis, schedules: Schedules
) -> None:
    mosaic("add", "FILE", "--every", "1h")
    redis_client.hset("mosaic:schedule:weekly", "last", "3600")
    mosaic("add", "FILE", "--every", "1h", "-i", "team=ads")
    assert schedules.get("weekly").last == 3600
    mosaic("add", "FILE", "--every", "2h", "-i", "team=ads")
    assert schedules.get("weekly").last > 1_700_000_000


def test_options_make_a_schedule(mosaic: Mosaic, schedules: Schedules) -> None:
    words = ["--cron", "*/20 2 * * *", "--zone", "Europe/Berlin", "--catch-up", "all", "--jitter", "5m"]
    words += ["--start", "2026-12-01", "--end", "2027-01-01", "--priority", "batch", "--tenant", "ads"]
    words += ["--budget", "0.5", "-i", "team={{ tick.date }}", "--name", "often"]
    mosaic("add", "FILE", *words)
    found, plan = schedules.get("often"), schedules.plan("often")
    assert found.timing == Timing(
        cron="*/20 2 * * *",
        zone="Europe/Berlin",
        start_s=1796079600,
        end_s=1798758000,
        jitter_s=300,
        catch_up="all",
    )
    assert found.said.inputs == {"team": "{{ tick.date }}"}
    assert (plan.priority, plan.tenant, plan.budget_usd) == (9, "ads", 0.5)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--cron", "0 0 30 2 *"], "'0 0 30 2 *' never comes"),
        (["--every", "1h", "--zone", "Europe/Berln"], "did you mean 'Europe/Berlin'?"),
        (["--every", "1h", "-i", "tem=x"], "tem"),
        (["--every", "1h", "-i", "team={{ tick.previos }}"], "did you mean 'previous'?"),
        (["--every", "1h", "--tenant", "a/b"], "'a/b'"),
        (["--name", "mondy"], "did you mean 'monday'?"),
        (["--every", "1h", "--name", "Not a name"], "'Not a name'"),
    ],
)
def test_what_is_wrong_is_told_and_nothing_is_added(
    mosaic: Mosaic, schedules: Schedules, words: list[str], told: str
) -> None:
    assert told in mosaic("add", "FILE", *words, code=2).stderr
    assert schedules.all() == []


def test_a_file_without_schedules_says_what_to_give(mosaic: Mosaic, file: Path) -> None:
    file.write_text(FILE.partition("schedules:")[0])
    assert "give --cron" in mosaic("add", "FILE", code=2).stderr


@pytest.mark.parametrize("other", [("name: weekly", "name: other"), ("every: 1d", "every: 1d, tenant: ads")])
def test_a_name_of_another_workflow_or_tenant_is_refused(
    mosaic: Mosaic, file: Path, schedules: Schedules, other: tuple[str, str]
) -> None:
    mosaic("add", "FILE", "--name", "nightly")
    before = schedules.all()
    file.write_text(FILE.replace(*other))
    assert "mosaic schedule remove nightly" in mosaic("add", "FILE", "--name", "nightly", code=2).stderr
    assert schedules.all() == before


def test_list_and_show_tell_what_comes_in_the_zone_s_time_and_what_came(
    mosaic: Mosaic, schedules: Schedules
) -> None:
    mosaic("add", "FILE")
    run_id = mosaic("run", "monday").stdout.strip()
    listed = mosaic("list").stdout
    assert "07:00:00+0" in listed
    assert "Europe/Berlin" in listed
    assert run_id in listed
    monday, nightly = said(mosaic("list", "--json"))
    assert monday["last_run"]["run"] == run_id
    assert monday["last_run"]["status"] == "running"
    assert (monday["problem"], nightly["last_run"]) == ("", None)
    shown = said(mosaic("show", "monday", "--json"))
    assert len(shown["next"]) == 5
    assert [run["tick"] for run in shown["runs"]] == [None]
    assert (shown["inputs"]["team"], shown["catch_up"]) == ("search", "latest")
    assert f"{run_id}  running  by hand" in mosaic("show", "monday").stdout
    get_run(run_id).cancel()
    assert said(mosaic("list", "--json"))[0]["last_run"]["status"] == "cancelled"


def test_a_run_by_hand_has_the_inputs_of_a_tick_and_is_none(mosaic: Mosaic, schedules: Schedules) -> None:
    mosaic("add", "FILE")
    before = schedules.get("monday")
    first, second = (said(mosaic("run", "monday", "--json"))["run"] for _ in range(2))
    assert first != second
    assert schedules.get("monday") == before
    process = process_for(app)
    inputs = process.payloads.unpack(first, process.ledger.outputs(first, ["in"])[0] or b"")
    assert inputs["team"] == "search"
    assert inputs["since"].endswith(("T07:00:00+01:00", "T07:00:00+02:00"))


def test_pause_and_resume(mosaic: Mosaic, redis_client: Redis, schedules: Schedules) -> None:
    mosaic("add", "FILE")
    assert said(mosaic("pause", "monday", "--json")) == {"name": "monday", "paused": True}
    assert "was paused already" in mosaic("pause", "monday").stdout
    assert "paused" in mosaic("list").stdout
    redis_client.hset("mosaic:schedule:monday", "last", "3600")
    assert said(mosaic("resume", "monday", "--json")) == {"name": "monday", "resumed": True}
    assert "was not paused" in mosaic("resume", "monday").stdout
    found = schedules.get("monday")
    assert not found.paused
    assert found.last > 1_700_000_000, "the ticks of the pause are left out"


def test_remove_leaves_nothing(mosaic: Mosaic, redis_client: Redis) -> None:
    mosaic("add", "FILE", "--name", "monday")
    mosaic("run", "monday")
    mosaic("remove", "monday")
    assert list(redis_client.scan_iter("mosaic:schedule*")) == []
    assert "there are no schedules" in mosaic("list").stdout


@pytest.mark.parametrize("command", ["show", "run", "pause", "resume", "remove"])
def test_an_unknown_name_is_told_with_the_one_that_is_meant(mosaic: Mosaic, command: str) -> None:
    mosaic("add", "FILE")
    assert "there is no schedule 'mondy'; did you mean 'monday'?" in mosaic(command, "mondy", code=2).stderr


def test_one_that_nobody_can_read_is_told_and_hides_no_other(
    mosaic: Mosaic, redis_client: Redis, schedules: Schedules
) -> None:
    mosaic("add", "FILE")
    redis_client.hset("mosaic:schedule:monday", "timing", b"\xff")
    monday, nightly = said(mosaic("list", "--json"))
    assert "add it again" in monday["problem"]
    assert nightly["problem"] == ""
    assert "cannot be read" in mosaic("show", "monday", code=2).stderr
    redis_client.hset("mosaic:schedule:monday", "timing", b'{"cron": "0 7 * * *", "zone": "Europe/Atlantis"}')
    assert "Europe/Atlantis" in said(mosaic("list", "--json"))[0]["problem"]
    mosaic("add", "FILE")
    assert [each["problem"] for each in said(mosaic("list", "--json"))] == ["", ""]


# -- noting, and starting again ---------------------------------------------------------------------------------------

LOCK = "lock"


def added(schedules: Schedules, **timing: Any) -> Schedules:
    """With one called `n`."""
    schedules.put("n", said=Said(workflow="w", plan="p"), timing=Timing(every_s=60, **timing), plan=b"")
    return schedules


def test_only_the_holder_of_the_lock_notes_and_nothing_moves_back(
    redis_client: Redis, schedules: Schedules
) -> None:
    added(schedules)
    redis_client.set(LOCK, "mine", px=60_000)
    begin = schedules.get("n").last

    def note(token: str, last: int, tick: int, run: str = "run") -> str:
        return schedules.note("n", lock=LOCK, token=token, last=begin + last, started=(begin + tick, run))

    assert note("mine", 120, 120) == "noted"
    assert note("mine", 120, 120) == "known"
    assert note("mine", 60, 60, "late") == "known"
    assert note("other", 180, 180) == "lost"
    redis_client.delete(LOCK)
    assert note("mine", 180, 180) == "lost"
    found = schedules.get("n")
    assert (found.last, found.ran) == (begin + 120, begin + 120)
    assert [(each.tick, each.run) for each in schedules.runs("n")] == [(begin + 120, "run")]


def test_only_the_holder_of_the_lock_notes_that_an_entry_was_sent(redis_client: Redis) -> None:
    reserve = script(redis_client, "reserve")
    redis_client.set(LOCK, "mine", px=60_000)
    redis_client.hset("entry", "definition", "{}")

    def noted(token: str) -> Any:
        done = reserve(keys=[LOCK, "entry", "due"], args=[token, "meta", 5])
        return done, redis_client.hget("entry", "meta"), redis_client.zscore("due", "entry")

    assert noted("other") == (0, None, None)
    assert noted("mine") == (1, b"meta", 5.0)
    redis_client.delete("entry", "due")
    assert noted("mine") == (1, None, None), "one that was removed meanwhile stays so"


def test_pause_resume_and_a_run_by_hand_make_no_schedule_that_was_removed_meanwhile(
    redis_client: Redis, schedules: Schedules, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another shell removes it between their look and their deed."""
    check = Schedules._check

    def removed_after(self: Schedules, name: str) -> None:
        check(self, name)
        redis_client.srem("mosaic:schedules", name)
        redis_client.delete(f"mosaic:schedule:{name}")

    for act in (Schedules.pause, Schedules.resume):
        added(schedules).pause("n")
        with monkeypatch.context() as patched:
            patched.setattr(Schedules, "_check", removed_after)
            with pytest.raises(InputError, match="there is no schedule 'n'"):
                act(schedules, "n")
    schedules.note_by_hand("n", "run")
    assert list(redis_client.scan_iter("mosaic:schedule*")) == []


def test_a_schedule_tells_the_ends_of_its_runs_to_its_webhook(
    mosaic: Mosaic, file: Path, schedules: Schedules, redis_client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text(FILE.replace("nightly: {", "nightly: {webhook: 'https://127.0.0.1/hook', "))
    assert "no public address" in mosaic("add", "FILE", code=2).output
    monkeypatch.setenv("MOSAIC_WEBHOOK_ALLOW", "127.0.0.1")
    mosaic("add", "FILE")
    by_hand = said(mosaic("run", "nightly", "--json"))["run"]
    by_tick = start_tick(process_for(app), schedules.get("nightly"), schedules.plan("nightly"), 60, before=0)
    for run in (by_hand, by_tick):
        assert redis_client.hget(f"mosaic:webhook:{run}", "url") == b"https://127.0.0.1/hook"
    mosaic("add", "FILE", "--name", "often", "--every", "15m", "--webhook", "https://127.0.0.1/other")
    assert schedules.get("often").said.webhook == "https://127.0.0.1/other"


def test_a_removed_schedule_is_not_made_again_by_noting(redis_client: Redis, schedules: Schedules) -> None:
    added(schedules).remove("n")
    redis_client.set(LOCK, "mine", px=60_000)
    assert schedules.note("n", lock=LOCK, token="mine", last=1, problem="p") == "gone"
    assert schedules.all() == []


def test_the_runs_that_are_kept_are_the_last_fifty(redis_client: Redis, schedules: Schedules) -> None:
    added(schedules)
    redis_client.set(LOCK, "mine", px=60_000)
    begin = schedules.get("n").last
    for tick in range(begin + 1, begin + 53):
        schedules.note("n", lock=LOCK, token="mine", last=tick, started=(tick, "r"))
    ticks = [each.tick for each in schedules.runs("n")]
    assert ticks == list(range(begin + 52, begin + 2, -1))


@pytest.fixture
def monday(mosaic: Mosaic, schedules: Schedules) -> tuple[Any, Plan]:
    mosaic("add", "FILE")
    return schedules.get("monday"), schedules.plan("monday")


TICK = 1796018400


def test_a_tick_that_is_started_again_has_the_run_that_it_has(monday: tuple[Any, Plan]) -> None:
    process = process_for(app)
    first = start_tick(process, *monday, TICK, before=0)
    assert start_tick(process, *monday, TICK, before=0) == first
    assert start_tick(process, *monday, TICK, before=TICK - 60) == first, "with whatever inputs"
    assert start_tick(process, *monday, TICK + 604_800, before=0) != first


def test_a_tick_whose_schedule_was_changed_keeps_its_run(
    monday: tuple[Any, Plan], mosaic: Mosaic, file: Path, schedules: Schedules
) -> None:
    first = start_tick(process_for(app), *monday, TICK, before=0)
    file.write_text(FILE.replace("first", "second"))
    mosaic("add", "FILE")
    changed = schedules.get("monday"), schedules.plan("monday")
    assert changed[1] != monday[1]
    assert start_tick(process_for(app), *changed, TICK, before=0) == first


def test_a_key_of_a_run_that_was_never_opened_stops_no_changed_schedule(
    monday: tuple[Any, Plan],
    mosaic: Mosaic,
    file: Path,
    schedules: Schedules,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    process = process_for(app)
    with monkeypatch.context() as killed:
        killed.setattr(process.ledger, "open_run", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            start_tick(process, *monday, TICK, before=0)
    file.write_text(FILE.replace("first", "second"))
    mosaic("add", "FILE")
    changed = schedules.get("monday"), schedules.plan("monday")
    started = start_tick(process, *changed, TICK, before=0)
    assert get_run(started).plan().nodes[0].name == "second"
    assert start_tick(process, *changed, TICK, before=0) == started
