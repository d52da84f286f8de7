"""`schedules:` of workflow files: what is right, and how what is wrong is told."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from mosaic_queues.errors import ConfigurationError, DefinitionError
from mosaic_tasks import Workflow
from mosaic_tasks.cli import application
from mosaic_tasks.definition.schedules import inputs_at, shown_tick
from mosaic_tasks.scheduling.ticks import Timing

FILE = """name: weekly
inputs:
  team: string
  since: {type: string, default: ""}
  most: {type: integer, default: 3}
nodes:
  first: {tool: "string:capwords", with: {s: "${inputs.team}"}}
output: first
schedules:
  monday: SCHEDULE
"""
RIGHT = "{cron: 0 7 * * MON, zone: Europe/Berlin, inputs: {team: search, since: '{{ tick.previous }}'}}"


def read(schedule: str) -> Workflow:
    """A workflow with this schedule."""
    workflow = Workflow.from_yaml(FILE.replace("SCHEDULE", schedule), source="weekly.yaml")
    workflow.analysed()
    return workflow


def test_a_schedule_is_read_and_written_back() -> None:
    workflow = read(RIGHT)
    spec = workflow.schedules["monday"]
    assert (spec.cron, spec.zone, spec.catch_up, spec.jitter) == ("0 7 * * MON", "Europe/Berlin", "latest", 0)
    assert Workflow.from_yaml(workflow.to_yaml()) == workflow


def test_every_start_and_end_are_read() -> None:
    spec = read(
        "{every: 15m, zone: Europe/Berlin, start: 2026-12-01, end: '2026-12-31T12:00:00Z', inputs: {team: a}}"
    ).schedules["monday"]
    timing = Timing.of(spec)
    assert (timing.every_s, timing.start_s, timing.end_s) == (900, 1796079600, 1798718400)


@pytest.mark.parametrize(
    ("schedule", "field", "told"),
    [
        ("{cron: 0 0 30 2 *}", "cron", "'0 0 30 2 *' never comes: no such day is in such a month"),
        ("{cron: '0 0 31 4,6,9,11 *'}", "cron", "never comes"),
        (
            "{cron: 0 0 32 * *}",
            "cron",
            "'0 0 32 * *' is no cron expression (Bad day-of-month); write five fields",
        ),
        ("{cron: 60 * * * *}", "cron", "(Bad minute)"),
        (
            "{cron: 0 7 * *}",
            "cron",
            "is no cron expression; write five fields, minute hour day month weekday",
        ),
        ("{cron: 0 0 7 * * MON}", "cron", "write five fields"),
        ("{cron: '@daily'}", "cron", "'@daily' is no cron expression"),
        ("{cron: 5}", "cron", "5 is no text"),
        ("{every: 0.5}", "every", "greater than or equal to 1"),
        ("{every: soon}", "every", "'soon' is no duration"),
        ("{every: 90.5}", "", "every 90.5 s: write whole seconds"),
        ("{}", "", "exactly one of cron and every; it has neither"),
        ("{cron: 0 7 * * *, every: 1h}", "", "exactly one of cron and every; it has both"),
        ("{every: 1h, zone: Europe/Berln}", "zone", "'Europe/Berln' is no time zone"),
        ("{every: 1h, zone: Europe/Berln}", "zone", "did you mean 'Europe/Berlin'?"),
        ("{every: 1h, zone: new york}", "zone", "did you mean 'America/New_York'?"),
        ("{every: 1h, zone: ../../etc/passwd}", "zone", "is no time zone"),
        ("{every: 1h, zone: Europe}", "zone", "is no time zone"),
        ("{every: 1h, start: soon}", "start", "'soon' is no time; write one such as '2026-12-01'"),
        ("{every: 1h, start: 5}", "start", "5 is no time"),
        ("{cron: 0 0 29 2 *, start: 9990-12-31}", "start", "'9990-12-31' is no time"),
        ("{every: 1h, end: '0001-01-01'}", "end", "'0001-01-01' is no time"),
        (f"{{cron: '{','.join(['1'] * 600)} * * * *'}}", "cron", "is no cron expression"),
        ("{every: 1h, start: 2026-12-02, end: 2026-12-01}", "", "it ends (2026-12-01) before it starts"),
        ("{every: 1h, catch_up: some}", "catch_up", "'some'"),
        ("{every: 1h, catch_up_limit: 0}", "catch_up_limit", "0"),
        ("{every: 1h, jitter: 2d}", "jitter", "86400"),
        ("{every: 1h, priority: batc}", "priority", "'batc' is no priority"),
        ("{every: 1h, tenant: a/b}", "tenant", "'a/b'"),
        ("{every: 1h, budget: -1}", "budget", "-1"),
        ("{every: 1h, zne: UTC}", "zne", "unknown key 'zne'; did you mean 'zone'?"),
        ("{every: 1h}", "inputs", "input 'team' is missing"),
        ("{every: 1h, inputs: {tem: a}}", "inputs", "did you mean 'team'?"),
        ("{every: 1h, inputs: {team: a, most: '{{ tick.date }}'}}", "inputs", "most"),
        ("{every: 1h, inputs: {team: '{{ tick.previos }}'}}", "inputs", "did you mean 'previous'?"),
        ("{every: 1h, inputs: {team: '{{ tick'}}", "inputs", "{{ tick"),
        ("{every: 1h, inputs: {team: '{{ tick.__class__ }}'}}", "inputs", "underscore"),
        ("{every: 1h, inputs: {team: '{{ nodes }}'}}", "inputs", "nodes"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(schedule: str, field: str, told: str) -> None:
    with pytest.raises(DefinitionError) as raised:
        read(schedule)
    (problem,) = raised.value.problems
    place = f"schedules.monday.{field}".rstrip(".")
    assert problem.startswith(f"weekly.yaml:10: field {place!r}: ")
    assert told in problem


def test_a_name_is_that_of_a_key() -> None:
    with pytest.raises(DefinitionError, match=r"field 'schedules.*'Monday' does not match"):
        Workflow.from_yaml(FILE.replace("monday: SCHEDULE", "Monday: {every: 1h}"))


def test_wrong_inputs_of_the_workflow_are_told_once() -> None:
    text = FILE.replace("SCHEDULE", RIGHT).replace("team: string", "team: {type: string, minLength: x}")
    with pytest.raises(DefinitionError) as raised:
        Workflow.from_yaml(text).analysed()
    assert all("inputs.team" in problem for problem in raised.value.problems)


def test_validate_and_the_schema_know_them(tmp_path: Path) -> None:
    file = tmp_path / "weekly.yaml"
    file.write_text(FILE.replace("SCHEDULE", "{cron: 0 0 30 2 *}"))
    told = CliRunner().invoke(application, ["validate", str(file)])
    assert told.exit_code == 2
    assert "never comes" in told.stderr
    file.write_text(FILE.replace("SCHEDULE", RIGHT))
    assert CliRunner().invoke(application, ["validate", str(file)]).exit_code == 0
    schema: dict[str, Any] = json.loads(CliRunner().invoke(application, ["schema"]).stdout)
    assert {"cron", "every", "zone", "catch_up"} <= set(schema["$defs"]["ScheduleSpec"]["properties"])


def test_without_the_extra_beat_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "mosaic_tasks.scheduling.beat", raising=False)
    monkeypatch.setitem(sys.modules, "redbeat.decoder", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'mosaic-tasks\[cron\]'"):
        importlib.import_module("mosaic_tasks.scheduling.beat")


def test_the_inputs_of_a_tick_are_rendered_at_any_depth_and_the_rest_stays() -> None:
    tick = shown_tick(1796018400, 1795413600, "Europe/Berlin")
    assert tick == {
        "time": "2026-11-30T07:00:00+01:00",
        "previous": "2026-11-23T07:00:00+01:00",
        "date": "2026-11-30",
    }
    inputs = {"a": ["{{ tick.date }}", {"b": "since {{ tick.previous[:10] }}"}], "n": 3, "text": "as it is"}
    rendered = {"a": ["2026-11-30", {"b": "since 2026-11-23"}], "n": 3, "text": "as it is"}
    assert inputs_at(inputs, tick) == rendered
