"""The form of a worker's log lines."""

from __future__ import annotations

import json
import logging
import re

import pytest

from mosaic_tasks import logs

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
