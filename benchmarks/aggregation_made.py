"""Made-up recordings, for where the real ones are not: of every form that answers have."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

SKILLS: Mapping[str, float] = {
    "made-2b": 0.55,
    "made-7b": 0.8,
    "made-8b": 0.84,
    "made-9b": 0.86,
    "made-12b": 0.83,
    "made-14b": 0.88,
    "made-70b": 0.94,
}
"""Share of right answers of each model, about."""
HARD = 0.25
"""Share of the questions on which all of them err more."""
GOLDS: Mapping[str, Sequence[str]] = {
    "number": ("18", "1,250", "3.5", "7"),
    "choice": ("A", "B", "C", "D"),
    "span": ("Marie Curie", "Lake Victoria", "the 1960s", "photosynthesis"),
    "latex": ("\\frac{3}{4}", "\\sqrt{2}", "12", "2\\pi"),
    "code": ("[1, 2, 3]", '{"a": 1}', "[]", '["x", "y"]'),
}
"""Right answers by kind of task; the others of a kind are the wrong ones."""


def write(path: Path, *, count: int, kind: str = "number", seed: int = 0) -> Path:
    """Writes so many questions, and returns where."""
    chance = random.Random(seed)
    rows = [_row(number, GOLDS[kind], kind, chance) for number in range(count)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def _row(number: int, golds: Sequence[str], kind: str, chance: random.Random) -> dict[str, Any]:
    gold, hard = chance.choice(golds), chance.random() < HARD
    outputs = {}
    for model, skill in SKILLS.items():
        right = chance.random() < _right(skill, hard=hard)
        said = gold if right else chance.choice([other for other in golds if other != gold])
        outputs[model] = _output(said, kind, chance)
    return {"id": f"{kind}-{number}", "question": f"Question {number}?", "gold": gold, "outputs": outputs}


def _right(skill: float, *, hard: bool) -> float:
    """Half as often wrong where it is easy, and as often where it is hard as makes it right as often as its skill."""
    easy = (1 + skill) / 2
    return max(0.1, (skill - (1 - HARD) * easy) / HARD) if hard else easy


def _output(said: str, kind: str, chance: random.Random) -> str:
    reasoning = " ".join(["This follows from what is given."] * chance.randint(2, 12))
    if kind == "code":
        return f'```json\n{{"reasoning": "{reasoning}", "answer": {said}}}\n```'
    if kind == "latex":
        return f"{reasoning}\n\nThe answer is $\\boxed{{{said}}}$."
    return json.dumps({"reasoning": reasoning, "answer": said}, indent=2)
