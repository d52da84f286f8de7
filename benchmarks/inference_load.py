"""What every side of the inference benchmark is asked, and how it tells what became of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import yaml

ALIAS = "tiny"
PROMPT = "Call {number:06d}: the team merged nine changes this week. The report names what is late."
"""All are of one length, and none begins like another."""


class Answer(NamedTuple):
    """One answer.

    Attributes:
        first_s: from asking to its first piece of text.
        whole_s: from asking to its end.
        tokens: it has.
    """

    first_s: float
    whole_s: float
    tokens: int


@dataclass(frozen=True)
class Slice:
    """So many requests, one side's turn.

    Attributes:
        in_flight: so many at any time.
        count: in all.
        first: number of the first; a number is a prompt.
        tokens: each answer has.
    """

    in_flight: int
    count: int
    first: int
    tokens: int

    @property
    def prompts(self) -> list[str]:
        """What is asked."""
        return [PROMPT.format(number=number) for number in range(self.first, self.first + self.count)]


def write_model(folder: Path) -> Path:
    """Writes a tiny model whose answers have as many tokens as are asked for, each of them text; and a spec of it.

    Returns:
        the path of the spec.
    """
    from tests.engine import models

    model = models.write_model(folder / ALIAS)
    _speak_on(model / models.WEIGHTS, model / "tokenizer.json")
    spec = folder / f"{ALIAS}.yaml"
    # Nobody shall gain by having been asked the same before.
    options = {"block_size": 32, "enable_prefix_caching": False}
    fields = {"model": str(model), "max_length": 512, "kv_memory_gb": 0.125, "options": options}
    spec.write_text(yaml.safe_dump(fields), encoding="utf-8")
    return spec


def _speak_on(weights: Path, tokenizer: Path) -> None:
    """Tokens that are not text, such as the end of an answer, get the logit 0: the greatest of hundreds is above it."""
    from safetensors.numpy import load_file, save_file
    from tokenizers import Tokenizer

    words, tensors = Tokenizer.from_file(str(tokenizer)), load_file(weights)
    embeddings = tensors["model.embed_tokens.weight"]
    for token in range(len(embeddings)):
        text = words.decode([token])  # nothing for special ones
        if not (text.strip() and text.isascii() and text.strip().isprintable()):
            embeddings[token] = 0.0
    save_file(tensors, weights, metadata={"format": "pt"})


async def keep_asking(wanted: Slice, ask: Callable[[str, int], Awaitable[Answer]]) -> dict[str, Any]:
    """Asks all of a slice, as many at any time as it says: who is answered asks the next.

    Args:
        ask: one question, and the tokens of its answer.
    """
    prompts, answers = iter(wanted.prompts), list[Answer]()

    async def user() -> None:
        for prompt in prompts:
            answers.append(await ask(prompt, wanted.tokens))

    begun = time.perf_counter()
    async with asyncio.TaskGroup() as users:
        for _ in range(wanted.in_flight):
            users.create_task(user())
    return told(time.perf_counter() - begun, answers)


def told(seconds: float, answers: Sequence[Answer]) -> dict[str, Any]:
    """A slice as a client process tells of it."""
    return {
        "seconds": seconds,
        "tokens": sum(answer.tokens for answer in answers),
        "first_s": [answer.first_s for answer in answers],
        "whole_s": [answer.whole_s for answer in answers],
    }
