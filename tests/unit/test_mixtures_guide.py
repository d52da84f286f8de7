"""The guide to mixtures tells every field, kind and preset there is, and its examples compile."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any, get_args

import jsonschema
import msgspec
import pytest
import yaml
from pydantic_core import PydanticUndefined

from mosaic_tasks import Record, Workflow, compile_workflow
from mosaic_tasks.definition import mixtures
from mosaic_tasks.definition.mixtures import PRESETS, AggregatorSpec, JudgeSpec, MixtureSpec, part_at
from mosaic_tasks.definition.parts import Part
from mosaic_tasks.mixtures.answers import normalise
from mosaic_tasks.mixtures.beliefs import view_of
from mosaic_tasks.mixtures.calibration import Outcome, learn
from mosaic_tasks.mixtures.gates import verdict
from mosaic_tasks.mixtures.mixture import ASKED_NAMES
from mosaic_tasks.mixtures.recording import Said
from mosaic_tasks.mixtures.values import AggregatorKind, AnswerForm, Form, Gate, GateKind, Heard, Profile

GUIDE = (Path(__file__).resolve().parents[2] / "docs" / "mixtures.md").read_text("utf-8")
KEYS = ("mixture", "experts", "select", "answer", "rules", "gate", "budget", "verifier", "aggregator")
"""Of the parts of a mixture, each with a table of its own."""
NEEDED = "needed"
SHORT = {"answer": "form", "gate": "kind", "aggregator": "kind"}
"""Of a part that stands in another: the field by which it is told."""


def rows(heading: str) -> list[list[str]]:
    """The cells of the first table below a heading."""
    below = re.split(rf"^#+ {heading}$", GUIDE, flags=re.MULTILINE)[1]
    table = re.search(r"^\|.*\n\|[-|]+\|\n((?:\|.*\n)+)", below, re.MULTILINE)
    assert table is not None
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[1].splitlines()]


def names(heading: str) -> list[str]:
    """What the first column names in backticks."""
    return [name for row in rows(heading) for name in re.findall(r"`([^`]+)`", row[0])]


def blocks() -> list[str]:
    return re.findall(r"^```yaml\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)


def own_fields(part: type[Part]) -> dict[str, Any]:
    """By field, what holds where a file does not say it; None where nothing does."""
    inherited = JudgeSpec.model_fields if part is AggregatorSpec else {}
    fields = {name: field.default for name, field in part.model_fields.items() if name not in inherited}
    return {name: _told(name, default) for name, default in fields.items()}


def _told(name: str, default: Any) -> Any:
    if default is PydanticUndefined:
        return NEEDED
    if isinstance(default, Part):
        return getattr(default, SHORT[name]) if name in SHORT else None
    return (list(default) or None) if isinstance(default, tuple) else default


@pytest.mark.parametrize("key", KEYS)
def test_it_tells_every_field_and_its_default(key: str) -> None:
    told = {
        name.strip("`"): yaml.safe_load(default.strip("`") or "null") for name, default, _ in rows(f"`{key}`")
    }
    assert told == own_fields(part_at((key,)))


def test_it_tells_every_part() -> None:
    classes = (each for _, each in inspect.getmembers(mixtures, inspect.isclass))
    parts = {each for each in classes if issubclass(each, Part) and each.__module__ == mixtures.__name__}
    assert {part_at((key,)) for key in KEYS} == parts


def test_it_tells_every_kind() -> None:
    assert names("Gates") == list(get_args(GateKind))
    assert sorted(names("Aggregators")) == sorted(get_args(AggregatorKind))
    assert sorted(names("How answers are compared")) == sorted(get_args(Form))
    assert sorted(names("What prompts see")) == sorted(ASKED_NAMES)


def test_it_tells_what_presets_say() -> None:
    told = {
        preset.strip("`"): yaml.safe_load(f"{{{fields.strip('`')}}}") for preset, fields in rows("Presets")
    }
    assert set(told) == set(PRESETS)
    judges = {"verifier": {"model": "openai:x"}}
    for preset, fields in told.items():
        more = {**judges, "aggregator": {"model": "openai:x"}} if preset == "layers" else judges
        given = {"prompt": "q", "experts": [{"model": "openai:x"}], **more}
        spelled = MixtureSpec.model_validate({**fields, **_merged(fields, given)})
        short = MixtureSpec.model_validate({"preset": preset, **given})
        assert short.model_copy(update={"preset": None}) == spelled


def _merged(fields: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    if "aggregator" in given:
        return {**given, "aggregator": {"kind": fields["aggregator"], **given["aggregator"]}}
    return given


def test_it_tells_what_details_have() -> None:
    assert sorted(names("The output")) == sorted(
        {"answer", *(field.name for field in msgspec.structs.fields(Record))} - {"failure"}
    )
    (calls,) = (row[1] for row in rows("The output") if row[0] == "`calls`")
    assert set(re.findall("`([^`]+)`", calls)) == {field.name for field in msgspec.structs.fields(Said)} - {
        "call"
    }


@pytest.mark.parametrize("block", blocks())
def test_an_example_compiles(block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    history = [Outcome({"probability": place / 40}, right=place % 3 > 0) for place in range(40)]
    Path("calibration.json").write_bytes(msgspec.json.encode(learn(history)))
    assert compile_workflow(Workflow.from_data(example(block))).nodes[0].mixture is not None


@pytest.mark.parametrize("block", blocks())
def test_editors_take_an_example(block: str) -> None:
    jsonschema.validate(example(block), Workflow.json_schema())


def example(block: str) -> dict[str, Any]:
    """A whole workflow, also of a block that has the fields of a mixture alone."""
    data: dict[str, Any] = yaml.safe_load(block)
    if "nodes" in data:
        return data
    base = {"prompt": "{{ inputs.question }}", "experts": [{"model": "openai:a"}, {"model": "openai:b"}]}
    node = {"mixture": data if "prompt" in data else {**base, **data}}
    return {"name": "w", "inputs": {"question": "string"}, "nodes": {"answer": node}, "output": "answer"}


def test_it_tells_how_many_must_agree() -> None:
    below = GUIDE.split("before `probability` passes")[1]
    told = re.findall(r"^\| (0\.\d).*\| (\d+) \| (\d+) \|$", below, re.MULTILINE)
    assert len(told) == 3
    for quality, different, samples in told:
        assert (agreeing(float(quality), model=""), agreeing(float(quality), model="one")) == (
            int(different),
            int(samples),
        )


def agreeing(quality: float, *, model: str) -> int:
    """How many who say the same pass the default gate."""
    form = AnswerForm("number")
    profiles = {str(n): Profile(str(n), model=model, quality=quality) for n in range(64)}
    heard = [Heard(n, str(n), text="18", answer=normalise("18", form)) for n in range(64)]
    views = (view_of(heard[:count], profiles, form, planned=64) for count in range(1, 65))
    return next(count for count, view in enumerate(views, 1) if verdict(Gate(), view).passed)


@pytest.mark.parametrize("key", KEYS)
def test_editors_say_what_each_field_is(key: str) -> None:
    fields = part_at((key,)).model_json_schema()["properties"]
    assert [name for name, field in fields.items() if not field.get("description")] == []
