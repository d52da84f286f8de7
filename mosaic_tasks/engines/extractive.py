"""The engine that has no model: it picks and arranges the input's own sentences.

Deterministic, offline, needs no key. It reads the last user message. Where that has a line `FACTS:`, each
line after it is a sentence (`- ` before it is optional; a blank line starts a paragraph; headings stay).
Otherwise it takes the message's own sentences, without the instructions that lead them in. It heeds "in three
sentences" and "at most 80 words" in the instructions, `max_tokens` and `stop`.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from mosaic_queues.errors import EngineRefused
from mosaic_tasks.engines.filling import fill
from mosaic_tasks.engines.protocol import (
    CHARS_PER_TOKEN,
    EngineRequest,
    Events,
    Finished,
    FinishReason,
    Message,
    TextDelta,
    approx_usage,
    asked,
    before_stop,
    rest_of,
)
from mosaic_tasks.engines.sentences import Block, split_blocks
from mosaic_tasks.engines.summary import chosen, paragraphs, ranked

DEFAULT_MAX_TOKENS = 1024

_PROSE_SHARE = 0.4
_PROSE_LEAST = 3
_CHARS_PER_WORD = 6

_FACTS = re.compile(r"^[ \t]*FACTS:[ \t]*$", re.MULTILINE)
_INSTRUCTION = re.compile(
    r"(please |now |then )*(write|summari[sz]e|list|describe|explain|answer|use|keep|make|give|create|"
    r"draft|compose|produce|return|respond|reply|edit|rewrite|extract|find|tell|mention|avoid|focus|be|"
    r"do not|don't|never|you are|you will|you must|your task|act as|here is|here are|the following)\b",
    re.IGNORECASE,
)
_TEN = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_WORDS = {word: number for number, word in enumerate(_TEN, 1)}
_SENTENCES = re.compile(rf"\b(\d{{1,3}}|{'|'.join(_WORDS)}) (?:short )?sentences?\b", re.IGNORECASE)
_WORD_LIMIT = re.compile(r"\b(\d{1,5}) words\b", re.IGNORECASE)


class _Source(msgspec.Struct, frozen=True):
    """What to write from, and what was said about how."""

    blocks: list[Block]
    instructions: str
    are_facts: bool


class ExtractiveEngine:
    """The engine `extractive`."""

    name = "extractive"
    continues = True

    async def aclose(self) -> None:
        """Holds nothing."""

    async def stream(self, request: EngineRequest) -> Events:
        """The answer, sentence by sentence, or field by field where there is a schema.

        Raises:
            EngineRefused: the messages hold no sentence to write from, or `request.prefix` is not of this answer.
            OutputInvalid: a required field of the schema cannot be filled from the input.
        """
        source = _source(request.messages)
        pieces = _object(source, request) if request.output_schema is not None else _prose(source, request)
        text, reason = _limited("".join(pieces), request)
        rest = rest_of(text, request, engine=self.name)
        sent, end = len(request.prefix), 0
        for piece in pieces:
            end += len(piece)
            if more := text[sent:end]:
                sent += len(more)
                yield TextDelta(more)
                await asyncio.sleep(0)
        yield Finished(reason, approx_usage(request, rest, cost_usd=0.0))


def _source(messages: Sequence[Message]) -> _Source:
    prompt = asked(messages)
    system = " ".join(message.content for message in messages if message.role == "system")
    if marker := _FACTS.search(prompt):
        blocks = split_blocks(prompt[marker.end() :], line_is_sentence=True)
        source = _Source(blocks, f"{system} {prompt[: marker.start()]}", are_facts=True)
    else:
        instructions, blocks = _without_instructions(split_blocks(prompt))
        source = _Source(blocks, f"{system} {instructions}", are_facts=False)
    if not source.blocks:
        raise EngineRefused(
            "the extractive engine found no sentence to write from; put the material into the prompt, "
            "a fact a line after a line 'FACTS:', or choose a model with MOSAIC_MODEL"
        )
    return source


def _without_instructions(blocks: list[Block]) -> tuple[str, list[Block]]:
    """The instructions that lead a message in, and what is left; all of it where nothing would be left."""
    instructions: list[str] = []
    rest = list(blocks)
    while rest and _INSTRUCTION.match(rest[0].sentences[0]):
        first = rest.pop(0)
        whole = first.sentences[-1].endswith(":") or all(map(_INSTRUCTION.match, first.sentences))
        cut = len(first.sentences) if whole else 1
        instructions += first.sentences[:cut]
        if not whole:
            rest.insert(0, Block(first.sentences[cut:], first.heading))
    return " ".join(instructions), rest or blocks


def _prose(source: _Source, request: EngineRequest) -> list[str]:
    """The pieces of the answer; joined they are the text."""
    sentences = ranked(source.blocks, source.instructions)
    count = _asked_sentences(source.instructions)
    if count is None and not source.are_facts and request.max_tokens is None:
        count = max(_PROSE_LEAST, math.ceil(len(sentences) * _PROSE_SHARE))
    picked = chosen(sentences, count=count, chars=_asked_chars(source.instructions, request))
    if not picked:  # not even the shortest fits: it is cut
        picked = chosen(sentences, count=1, chars=max(len(one.text) for one in sentences))
    pieces: list[str] = []
    for paragraph in paragraphs(picked):
        pieces += [f"{' ' if place else chr(10) * 2}{text}" for place, text in enumerate(paragraph)]
    return [pieces[0].lstrip("\n"), *pieces[1:]]


def _object(source: _Source, request: EngineRequest) -> list[str]:
    """The pieces of the JSON answer, one a field."""
    sentences = ranked(source.blocks, source.instructions)
    return list(_json_pieces(fill(request.output_schema or {}, sentences, chars=_max_chars(request))))


def _json_pieces(value: Any) -> Iterator[str]:
    if not isinstance(value, dict) or not value:
        yield json.dumps(value, ensure_ascii=False)
        return
    lead = "{"
    for name, inner in value.items():
        yield f"{lead}{json.dumps(name, ensure_ascii=False)}: {json.dumps(inner, ensure_ascii=False)}"
        lead = ", "
    yield "}"


def _limited(text: str, request: EngineRequest) -> tuple[str, FinishReason]:
    """The text up to the first stop string and to `max_tokens`. A stop string inside JSON is no end."""
    stops = () if request.output_schema is not None else request.stop
    text = before_stop(text, stops)
    is_open = request.output_schema is not None and request.max_tokens is None
    most = len(text) if is_open else _max_chars(request)
    if len(text) <= most:
        return text, "stop"
    return text[: most + 1].rpartition(" ")[0] or text[:most], "length"


def _max_chars(request: EngineRequest) -> int:
    return (request.max_tokens or DEFAULT_MAX_TOKENS) * CHARS_PER_TOKEN


def _asked_sentences(instructions: str) -> int | None:
    if not (said := _SENTENCES.search(instructions)):
        return None
    number = said.group(1).lower()
    return _WORDS.get(number) or max(1, int(number))


def _asked_chars(instructions: str, request: EngineRequest) -> int:
    most = _max_chars(request)
    said = _WORD_LIMIT.search(instructions)
    return min(most, int(said.group(1)) * _CHARS_PER_WORD) if said else most
