"""The form of a worker's log lines."""

from __future__ import annotations

import json
import logging
import re

import pytest
from made_observers import observer

from mosaic_tasks import logs
from mosaic_tasks.observability.current import Current, working_on
from mosaic_tasks.observability.ids import span_of
from mosaic_tasks.observability.lines import with_call

WARNED = "shop.py:3: UserWarning: prices are\n  old\n  warn(text)\n"


def record(name: str, text: str) -> logging.LogRecord:
    return logging.LogRecord(name, logging.WARNING, __file__, 1, text, (), None)


def test_a_line_of_text_has_time_and_level_once() -> None:
    told = logs.formatter("text").format(record("vllm.engine", "no memory"))
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \[warning  \] no memory\s*", told)


def test_a_line_of_json_is_a_document() -> None:
    told = json.loads(logs.formatter("json").format(record("vllm.engine", "no memory")))
    assert (told["event"], told["level"], told["logger"]) == ("no memory", "warning", "vllm.engine")


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_warning_is_one_line(form: logs.Form) -> None:
    told = logs.formatter(form).format(record("py.warnings", WARNED))
    assert "shop.py:3: UserWarning: prices are old warn(text)" in told
    assert len(told.splitlines()) == 1


RUN = "01890a5d-ac96-774b-bcce-b302099a8057"


@pytest.fixture
def extended() -> None:
    """As in a process that runs calls."""
    logs.extend(with_call)


def line(text: str, **fields: object) -> dict[str, object]:
    """What a library's line comes to, and one of ours."""
    told = logs.formatter("json").format(record("a.tool", text))
    return {**json.loads(told), **fields}


@pytest.mark.usefixtures("extended")
def test_every_line_of_a_call_says_which_and_of_what_trace() -> None:
    call = Current(observer().means, RUN, node="collect", call="3", fence=2, number=2)
    with working_on(call):
        inside = line("read")
    outside = line("read")
    assert {name: inside[name] for name in ("run", "node", "call", "attempt")} == {
        "run": RUN,
        "node": "collect",
        "call": "3",
        "attempt": 2,
    }
    assert inside["trace_id"] == RUN.replace("-", "")
    assert inside["span_id"] == f"{span_of(RUN, '3', 2):016x}"
    assert not {"run", "trace_id", "span_id"} & outside.keys()


@pytest.mark.usefixtures("extended")
def test_a_line_about_another_run_keeps_to_that() -> None:
    other = RUN.replace("0189", "0190")
    call = Current(observer().means, RUN, node="collect", call="3", fence=2, number=2)
    with working_on(call):
        told = with_call({"event": "e", "run": other})
    assert told == {"event": "e", "run": other, "trace_id": other.replace("-", "")}
    assert with_call({"event": "e", "run": "no run"}) == {"event": "e", "run": "no run"}
