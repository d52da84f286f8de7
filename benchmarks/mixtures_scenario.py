"""The mixtures that are compared, and the recordings that their experts answer with, at the pace of simulated GPUs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aggregation_models import rates
from aggregation_recordings import CHARS, Question, Recordings

from mosaic_tasks import Workflow

NODE = "answer"
NAMED = (
    "gemma-2-9b-it",
    "Qwen2-7B-Instruct",
    "Meta-Llama-3.1-8B-Instruct",
    "Mistral-Nemo-Instruct-2407",
    "Yi-1.5-9B-Chat",
)
NAMED_AGGREGATOR = "Meta-Llama-3.1-70B-Instruct"
OF = 5
EXPERT_GPUS = 3
"""The experts share them; the aggregator, which is large, has one for itself."""
GPU_QUEUE = "bench.gpu-{}"
AGGREGATOR_QUEUE = "mosaic.api.replay"
CPU_QUEUE = "mosaic.cpu"
POOL_QUEUE = "bench.pool"
PIECE_CHARS = 4 * CHARS
"""An engine's answer comes in pieces of so many characters."""
PROMPT = "{{ inputs.question }}\n\n[bench {{ inputs.mark }}]"
"""By the mark, the engine's notes tell the runs apart."""
QUICK, SLOW, INSTANT = 2, 3, 3
"""So many experts there are who decide while others write, who are cut off then, and who answer at once."""
QUICK_S, SLOW_TOKENS_S = 0.5, 4.0
"""When the first ones answer, and how fast the second ones write."""


@dataclass(frozen=True)
class Fleet:
    """Who answers, on which GPU.

    Attributes:
        experts: the best first, as far as is learned.
        queues: of each expert's GPU.
    """

    experts: Sequence[str]
    aggregator: str
    queues: Mapping[str, str]

    @property
    def places(self) -> list[str]:
        """The queues of all GPUs."""
        return [*dict.fromkeys(self.queues.values()), AGGREGATOR_QUEUE]


def fleet_of(recordings: Recordings, learn: Sequence[Question]) -> Fleet:
    """Of recordings without the named models, the slowest aggregates, and the next slowest are experts."""
    experts, aggregator = NAMED, NAMED_AGGREGATOR
    if not {*experts, aggregator} <= {*recordings.models}:
        slow = sorted(recordings.models, key=lambda model: rates(model).speed.decode_tokens_s)
        aggregator, experts = slow[0], tuple(slow[1 : OF + 1])
    by_skill = sorted(experts, key=lambda model: -sum(question.said[model].early_right for question in learn))
    by_speed = sorted(experts, key=lambda model: rates(model).speed.decode_tokens_s)
    queues = {
        model: GPU_QUEUE.format(place * EXPERT_GPUS // len(experts)) for place, model in enumerate(by_speed)
    }
    return Fleet(by_skill, aggregator, queues)


# -- recordings ----------------------------------------------------------------------------------------------------


def recording(question: Question, model: str) -> dict[str, Any]:
    """A model's answer to a question as the replay engine gives it: in pieces, when a GPU would write each."""
    said, speed = question.said[model], rates(model).speed
    ends = range(PIECE_CHARS, len(said.text) + PIECE_CHARS, PIECE_CHARS)
    pieces = [
        (speed.first_token_s + end / CHARS / speed.decode_tokens_s, said.text[end - PIECE_CHARS : end])
        for end in ends
    ]
    return {
        "match": [question.question],
        "text": said.text,
        "deltas": pieces or [(speed.first_token_s, "")],
        "prefill_tokens_per_s": speed.prefill_tokens_s,
    }


def write(folder: Path, fleet: Fleet, questions: Sequence[Question]) -> None:
    """A file for each model."""
    for model in (*fleet.experts, fleet.aggregator):
        lines = (json.dumps(recording(question, model)) for question in questions)
        _path(folder, model).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def write_made(folder: Path) -> None:
    """Those who say 18 soon or at once, and those who would say 5 after a long time."""
    for place in range(QUICK):
        _write_one(folder, f"quick_{place}", 18, pace={"first_token_s": QUICK_S})
    for place in range(SLOW):
        _write_one(folder, f"slow_{place}", 5, pace={"tokens_per_s": SLOW_TOKENS_S})
    for place in range(INSTANT):
        _write_one(folder, f"instant_{place}", 18, pace={})


def _write_one(folder: Path, name: str, number: int, *, pace: Mapping[str, float]) -> None:
    words = 40 if "tokens_per_s" in pace else 1
    text = json.dumps({"reasoning": "It follows. " * words, "answer": str(number)})
    line = json.dumps({"match": [""], "text": text, **pace})
    _path(folder, name).write_text(f"{line}\n", encoding="utf-8")


def _path(folder: Path, model: str) -> Path:
    return folder / f"{name_of(model)}.jsonl"


def name_of(model: str) -> str:
    """What a model is called in a workflow."""
    return model.lower()


# -- workflows -----------------------------------------------------------------------------------------------------


def workflows(folder: Path, fleet: Fleet) -> dict[str, Workflow]:
    """All of them, by name."""
    return {
        "adaptive": adaptive(folder, fleet),
        "full": full(folder, fleet),
        "cutting": cutting(folder),
        "instant": instant(folder),
        "by_hand": by_hand(folder),
    }


def adaptive(folder: Path, fleet: Fleet) -> Workflow:
    """Asks experts until the gate passes, and the aggregator where it does not."""
    return _workflow("adaptive", **_asked(folder, fleet))


def full(folder: Path, fleet: Fleet) -> Workflow:
    """Asks all experts, and the aggregator always."""
    return _workflow("full", **_asked(folder, fleet), waves=[len(fleet.experts)], gate=_NO_GATE, enough=1)


def cutting(folder: Path) -> Workflow:
    """Two experts agree while others write, who are cut off then."""
    quick = [expert(folder, f"quick_{place}", CPU_QUEUE) for place in range(QUICK)]
    slow = [expert(folder, f"slow_{place}", POOL_QUEUE) for place in range(SLOW)]
    gate = {"kind": "margin", "margin": 2, "confidence": None}
    return _workflow("cutting", experts=[*slow, *quick], waves=[SLOW + QUICK], gate=gate)


def instant(folder: Path) -> Workflow:
    """Three experts that answer at once, and a vote."""
    asked = [expert(folder, f"instant_{place}", CPU_QUEUE) for place in range(INSTANT)]
    return _workflow("instant", experts=asked, waves=[INSTANT], gate=_NO_GATE, aggregator="majority")


def by_hand(folder: Path) -> Workflow:
    """The same made of agents and a tool."""
    names = [f"instant_{place}" for place in range(INSTANT)]
    nodes: dict[str, Any] = {
        name: {"agent": {"prompt": PROMPT, "model": model(folder, name)}, "queue": CPU_QUEUE}
        for name in names
    }
    nodes[NODE] = {"tool": "mixtures_tools:majority", "with": {"answers": [f"${{{name}}}" for name in names]}}
    return _made("by-hand", nodes)


_NO_GATE = {"kind": "none", "confidence": None}


def expert(folder: Path, name: str, queue: str) -> dict[str, Any]:
    """Who answers from a recording, asked through a queue."""
    return {"name": name_of(name), "model": model(folder, name), "queue": queue}


def model(folder: Path, name: str) -> str:
    """The engine that repeats a model's recordings."""
    return f"replay:{_path(folder, name)}"


def _asked(folder: Path, fleet: Fleet) -> dict[str, Any]:
    return {
        "experts": [expert(folder, name, fleet.queues[name]) for name in fleet.experts],
        "aggregator": {"kind": "synthesis", "model": model(folder, fleet.aggregator)},
    }


def _workflow(name: str, **fields: Any) -> Workflow:
    mixture = {"prompt": PROMPT, "answer": "number", "details": True, **fields}
    return _made(name, {NODE: {"mixture": mixture}})


def _made(name: str, nodes: dict[str, Any]) -> Workflow:
    inputs = {"question": "string", "mark": "string"}
    return Workflow.from_data({"name": name, "inputs": inputs, "nodes": nodes, "output": NODE})
