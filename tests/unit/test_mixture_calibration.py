"""Probabilities from outcomes: what is learned, the curve, the command and its guide."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
from pathlib import Path
from random import Random
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from mosaic_queues.errors import InputError
from mosaic_tasks import Workflow, compile_workflow
from mosaic_tasks.cli import calibrating
from mosaic_tasks.cli.calibrating import calibrate
from mosaic_tasks.definition.mixtures import fitted
from mosaic_tasks.mixtures.calibration import (
    LARGEST,
    LEAST_LINES,
    MOST_FEATURES,
    Bin,
    Calibration,
    Curve,
    Outcome,
    learn,
    reliability,
)
from mosaic_tasks.mixtures.reliability import draw_svg

GUIDE = (Path(__file__).resolve().parents[2] / "docs" / "calibration.md").read_text("utf-8")


def overconfident(lines: int, *, seed: int = 1) -> list[Outcome]:
    """Answers that claim 0.5 to 0.99 and are right by 0.3 less; `noise` tells nothing."""
    chance, found = Random(seed), []
    for _ in range(lines):
        claimed = chance.uniform(0.5, 0.99)
        features = {"probability": claimed, "noise": chance.random()}
        found.append(Outcome(features, right=chance.random() < claimed - 0.3))
    return found


@pytest.mark.parametrize("method", ["logistic", "isotonic", None])
def test_an_overconfident_mixture_is_set_right(method: Any) -> None:
    learnt = learn(overconfident(2000), method=method)
    fresh = overconfident(2000, seed=2)
    before = reliability([outcome.features["probability"] for outcome in fresh], fresh)
    after = reliability([learnt(outcome.features) for outcome in fresh], fresh)
    assert before.ece > 0.25
    assert after.ece < 0.06
    assert after.brier < before.brier - 0.05


def test_the_curve_is_measured_on_lines_left_out() -> None:
    """Thirty features of pure chance: what is learned of them fits only the lines that taught it."""
    chance = Random(3)
    history = [
        Outcome({f"f{n}": chance.random() for n in range(30)}, right=chance.random() < 0.5) for _ in range(60)
    ]
    learnt = learn(history, method="logistic")
    seen = reliability([learnt(outcome.features) for outcome in history], history)
    assert learnt.curve is not None
    assert seen.brier < 0.25 < learnt.curve.brier


def test_the_better_method_is_kept() -> None:
    steps = [
        Outcome({"probability": n / 200}, right=(n % 10 > 0) == (n >= 60)) for n in range(200)
    ]  # a step, which no logistic curve has
    assert learn(steps).method == "isotonic"
    chance = Random(5)
    two = [
        Outcome(
            {"a": (a := chance.gauss(0, 1)), "b": (b := chance.gauss(0, 1))}, right=a + b > chance.gauss(0, 1)
        )
        for _ in range(400)
    ]
    assert learn(two).method == "logistic"


def test_what_is_missing_counts_as_the_mean_and_what_is_unknown_for_nothing() -> None:
    learnt = learn(overconfident(400), method="logistic")
    mean = learnt.scales["noise"].mean
    known = {"probability": 0.8, "noise": mean}
    assert learnt({"probability": 0.8}) == pytest.approx(learnt(known))
    assert learnt({**known, "other": 1e9}) == learnt(known)
    assert learnt({}) == pytest.approx(learnt.base, abs=0.1)
    assert learn(overconfident(400), method="isotonic")({}) == pytest.approx(learnt.base)


def test_lines_may_lack_features_and_be_right_in_part() -> None:
    history = [
        Outcome({"a": n / 50} | ({"b": 1.0 * (n % 7)} if n % 2 else {}), right=n / 50) for n in range(50)
    ]
    learnt = learn(history)
    assert learnt({"a": 0.1}) < 0.4 < 0.6 < learnt({"a": 0.9})


def test_separable_history_is_learned_without_going_to_extremes() -> None:
    learnt = learn([Outcome({"x": float(n)}, right=n >= 20) for n in range(40)], method="logistic")
    assert 0.001 < learnt({"x": 0.0}) < 0.2
    assert 0.8 < learnt({"x": 39.0}) < 0.999


def test_isotonic_gives_equal_values_their_share() -> None:
    history = [Outcome({"x": 0.3 + 0.4 * (n % 2)}, right=n % 8 < 3) for n in range(40)]
    learnt = learn(history, method="isotonic")
    assert learnt({"x": 0.3}) == learnt({"x": 0.7}) == pytest.approx(0.375)
    rising = [Outcome({"x": 0.3 + 0.4 * (n % 2)}, right=n % 8 in (1, 3, 5, 6)) for n in range(40)]
    assert learn(rising, method="isotonic")({"x": 0.3}) == pytest.approx(0.25)
    assert learn(rising, method="isotonic")({"x": 0.7}) == pytest.approx(0.75)


@pytest.mark.parametrize(
    ("history", "word"),
    [
        (overconfident(LEAST_LINES - 1), "too few"),
        ([Outcome({"a": float(n)}, right=True) for n in range(30)], "equally right"),
        ([Outcome({"a": 1.0}, right=n % 2 > 0) for n in range(30)], "no feature differs"),
        ([Outcome({}, right=n % 2 > 0) for n in range(30)], "no feature differs"),
        ([Outcome({"a": float(n)}, right=float(n)) for n in range(30)], "0 to 1"),
        (
            [Outcome({f"f{n}-{m}": 1.0 for m in range(50)}, right=n % 2 > 0) for n in range(30)],
            "too many features",
        ),
        ([Outcome({"a": 1e155 * n}, right=n % 2 > 0) for n in range(30)], "'a' is 1e\\+155; give numbers"),
        ([Outcome({"a": math.nan}, right=n % 2 > 0) for n in range(30)], "'a' is nan; give numbers"),
    ],
    ids=["short", "one-sided", "constant", "nothing", "beyond", "wide", "large", "nan"],
)
def test_a_history_that_teaches_nothing_is_refused(history: list[Outcome], word: str) -> None:
    with pytest.raises(InputError, match=word):
        learn(history)


@pytest.mark.parametrize("method", ["logistic", "isotonic"])
def test_as_many_features_as_large_as_may_be_are_learned(method: Any) -> None:
    features = [{f"f{n}": LARGEST * ((line + n) % 3 - 1) for n in range(MOST_FEATURES)} for line in range(30)]
    learnt = learn([Outcome(each, right=n % 3 > 0) for n, each in enumerate(features)], method=method)
    assert all(0 < learnt(each) < 1 for each in features)


def test_a_curve_in_figures() -> None:
    outcomes = [Outcome({}, right=right) for right in (True, False, True, True)]
    curve = reliability([0.25, 0.25, 0.9, 1.0], outcomes)
    assert curve.bins == (Bin(0.25, 0.5, 2), Bin(0.95, 1.0, 2))
    assert curve.ece == pytest.approx((0.25 + 0.05) / 2)
    assert curve.brier == pytest.approx((0.75**2 + 0.25**2 + 0.1**2) / 4)


@given(
    st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=LEAST_LINES, max_size=60).filter(
        lambda rows: len({right for _, right in rows}) == 2 and len({value for value, _ in rows}) > 5
    )
)
def test_isotonic_never_falls_and_every_method_gives_probabilities(rows: list[tuple[float, bool]]) -> None:
    history = [Outcome({"x": value}, right=right) for value, right in rows]
    try:
        isotonic, logistic = learn(history, method="isotonic"), learn(history, method="logistic")
    except InputError:  # values so close that they do not differ
        return
    found = [isotonic({"x": value / 20}) for value in range(21)]
    assert found == sorted(found)
    assert all(0.0 < p < 1.0 for p in (*found, *(logistic({"x": value / 20}) for value in range(21))))


def test_a_calibration_survives_its_file() -> None:
    for method in ("logistic", "isotonic"):
        learnt = learn(overconfident(100), method=method)  # type: ignore[arg-type]
        read = msgspec.json.decode(msgspec.json.encode(learnt), type=Calibration)
        assert read == learnt
        assert read({"probability": 0.7}) == learnt({"probability": 0.7})


def written(path: Path, **fields: Any) -> str:
    """A file of that calibration."""
    path.write_text(json.dumps({"base": 0.5, **fields}))
    return str(path)


SCALE = {"mean": 0, "spread": 1, "weight": 1}
ISOTONIC = {"method": "isotonic", "feature": "votes"}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"method": "logistic", "scales": {"votes": {**SCALE, "spread": 0}}}, "`float` >= 1e-09"),
        ({"method": "logistic", "scales": {"votes": {**SCALE, "spread": 1e-300}}}, "`float` >= 1e-09"),
        ({"method": "logistic", "scales": {"votes": {**SCALE, "weight": -1e308}}}, "`float` >= -1e+100"),
        ({"method": "logistic", "scales": {"votes": {**SCALE, "mean": 1e308}}}, "`float` <= 1e+100"),
        ({"method": "logistic", "intercept": 1e308}, "at `$.intercept`"),
        ({**ISOTONIC, "base": 7}, "`float` <= 1.0 - at `$.base`"),
        ({**ISOTONIC}, "there are no steps of the feature 'votes'"),
        ({**ISOTONIC, "steps": [[0, 42.0]]}, "`float` <= 1.0 - at `$.steps[0][1]`"),
        ({**ISOTONIC, "steps": [[0.9, 0.1], [0.1, 0.9]]}, "to 0.9 from 0.1 on does not rise"),
        ({**ISOTONIC, "steps": [[0.1, 0.9], [0.9, 0.1]]}, "to 0.1 from 0.9 on does not rise"),
        ({**ISOTONIC, "lines": -1}, "at `$.lines`"),
    ],
)
def test_a_file_that_gives_no_probabilities_is_no_calibration(
    fields: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    path = written(tmp_path / "c.json", **fields)
    with pytest.raises(
        ValueError, match=f"^{re.escape(repr(path))} is no calibration: .*{re.escape(reason)}"
    ):
        fitted(path)


def test_a_calibration_is_a_regular_file_of_a_megabyte_at_most(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for name in (str(tmp_path / "fifo"), "/dev/zero"):
        with pytest.raises(ValueError, match="cannot be read: it is no regular file"):
            fitted(name)
    with pytest.raises(ValueError, match="cannot be read: it is larger than 1 MiB"):
        fitted(written(tmp_path / "c.json", method="logistic", more=" " * 2**20))
    deep = tmp_path / "deep.json"
    deep.write_text('{"more": ' + "[" * 100_000)
    with pytest.raises(ValueError, match="is no calibration: maximum recursion depth"):
        fitted(str(deep))


def test_the_drawing_shows_each_bin() -> None:
    curve = Curve((Bin(0.15, 0.2, 10), Bin(0.85, 0.6, 90)), 0.2, 0.1)
    drawn = draw_svg(Calibration("logistic", 0.5, 100), curve)
    root = ElementTree.fromstring(drawn)
    space = "{http://www.w3.org/2000/svg}"
    dots = root.findall(f"{space}circle")
    assert [dot.findtext(f"{space}title") for dot in dots] == [
        "15.0% predicted, 20.0% right, 10 lines",
        "85.0% predicted, 60.0% right, 90 lines",
    ]
    assert float(dots[0].attrib["cy"]) > float(dots[1].attrib["cy"])


application = typer.Typer()
application.command()(calibrate)


@application.callback()
def _mosaic() -> None:
    """Keeps the name of the only command."""


def mosaic(*arguments: str) -> Any:
    return CliRunner().invoke(application, ["calibrate", *arguments], catch_exceptions=False)


@pytest.fixture
def history(tmp_path: Path) -> Path:
    path = tmp_path / "history.jsonl"
    lines = [{"features": o.features, "right": o.right, "question": "why?"} for o in overconfident(200)]
    path.write_text("\n".join(map(json.dumps, lines)) + "\n\n", "utf-8")
    return path


def test_the_command_writes_the_calibration_and_tells_the_curve(history: Path, tmp_path: Path) -> None:
    out, svg = tmp_path / "c.json", tmp_path / "c.svg"
    done = mosaic(str(history), "--out", str(out), "--svg", str(svg), "--method", "logistic")
    assert done.exit_code == 0, done.output
    learnt = msgspec.json.decode(out.read_bytes(), type=Calibration)
    assert (learnt.method, learnt.lines) == ("logistic", 200)
    assert learnt.curve is not None
    assert f"ECE {learnt.curve.ece:.3f}" in done.stdout
    assert done.stdout.count("%") >= 2 * len(learnt.curve.bins)
    assert svg.read_text("utf-8").startswith("<svg")


def test_what_was_scored_again_counts_once_as_it_was_scored_last(history: Path, tmp_path: Path) -> None:
    again = [
        {"features": {"probability": 0.7}, "right": right, "run": "r", "node": "n"} for right in (0.0, 1.0)
    ]
    other = {"features": {"probability": 0.7}, "right": 1.0, "run": "r", "node": "m"}
    with history.open("a", encoding="utf-8") as lines:
        lines.writelines(json.dumps(line) + "\n" for line in (*again, other))
    before = mosaic(str(history), "--out", str(tmp_path / "c.json"), "--json")
    learnt = json.loads(before.stdout)
    rights = sum(outcome.share for outcome in overconfident(200)) + 2
    assert (learnt["lines"], learnt["base"]) == (202, pytest.approx(rights / 202))


def test_the_command_prints_json(history: Path, tmp_path: Path) -> None:
    done = mosaic(str(history), "--out", str(tmp_path / "c.json"), "--json")
    assert json.loads(done.stdout) == json.loads((tmp_path / "c.json").read_text("utf-8"))


@pytest.mark.parametrize(
    "line",
    ["{", '{"right": true}', '{"features": {"a": "b"}, "right": true}', "\xff", '{"more": ' + "[" * 100_000],
    ids=["open", "featureless", "text", "no UTF-8", "deep"],
)
def test_a_line_that_is_wrong_is_told_with_its_place(line: str, history: Path, tmp_path: Path) -> None:
    history.write_bytes(history.read_bytes() + line.encode("latin-1"))
    with pytest.raises(InputError, match=re.escape(f"{history}:202: ")) as caught:
        mosaic(str(history), "--out", str(tmp_path / "c.json"))
    assert '"right": true' in str(caught.value)
    assert not (tmp_path / "c.json").exists()


def test_files_that_cannot_be_used_are_told(history: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot read the history"):
        mosaic(str(tmp_path / "none.jsonl"), "--out", str(tmp_path / "c.json"))
    with pytest.raises(InputError, match="cannot write"):
        mosaic(str(history), "--out", str(tmp_path))


def test_a_history_is_a_regular_file_that_is_not_too_large(
    history: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(InputError, match=r"cannot read the history '.*fifo': it is no regular file"):
        mosaic(str(tmp_path / "fifo"), "--out", str(tmp_path / "c.json"))
    monkeypatch.setattr(calibrating, "_MOST_HISTORY_MIB", 0)
    with pytest.raises(InputError, match=r"cannot read the history .*: it is larger than 0 MiB"):
        mosaic(str(history), "--out", str(tmp_path / "c.json"))


def test_no_file_of_the_command_takes_the_place_of_another(history: Path, tmp_path: Path) -> None:
    before, new = history.read_text("utf-8"), tmp_path / "c.json"
    linked, to_new = tmp_path / "linked", tmp_path / "to new"
    linked.hardlink_to(history)
    to_new.symlink_to(new)
    for out in (history, linked):
        with pytest.raises(
            InputError, match=f"HISTORY and --out are one file, '{out}'; name another for --out"
        ):
            mosaic(str(history), "--out", str(out))
    with pytest.raises(InputError, match="HISTORY and --svg are one file"):
        mosaic(str(history), "--out", str(new), "--svg", str(history))
    with pytest.raises(InputError, match="--out and --svg are one file"):
        mosaic(str(history), "--out", str(new), "--svg", str(to_new))
    assert history.read_text("utf-8") == before
    assert not new.exists()


def test_the_commands_of_the_guide_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    first, last = re.findall(r"^```python\n(.*?)^```$", GUIDE, re.M | re.S)
    exec(compile(first, "guide", "exec"), {})
    commands = [
        line
        for block in re.findall(r"^```sh\n(.*?)^```$", GUIDE, re.M | re.S)
        for line in block.splitlines()
        if line.startswith("mosaic ")
    ]
    assert commands
    for command in commands:
        program, name, *arguments = shlex.split(command)
        assert (program, name) == ("mosaic", "calibrate")
        assert mosaic(*arguments).exit_code == 0
    learnt = msgspec.json.decode(Path("calibration.json").read_bytes(), type=Calibration)
    assert learnt({"probability": 0.9, "votes": 4}) < 0.9
    assert Path("reliability.svg").stat().st_size > 1000
    (block,) = re.findall(r"^```yaml\n(.*?)^```$", GUIDE, re.M | re.S)
    mixture = compile_workflow(Workflow.from_yaml(block)).nodes[0].mixture
    assert mixture is not None
    assert mixture.calibration == msgspec.structs.replace(learnt, curve=None)
    exec(compile(last, "guide", "exec"), {})


def test_the_line_of_the_guide_is_a_line_of_a_history() -> None:
    for line in re.findall(r"^```json\n(.*?)^```$", GUIDE, re.M | re.S):
        outcome = msgspec.json.decode(line, type=Outcome)
        assert all(math.isfinite(value) for value in outcome.features.values())
