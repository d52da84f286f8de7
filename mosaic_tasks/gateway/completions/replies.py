"""Answers in the form of OpenAI's API."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

import msgspec
from pydantic import BaseModel, Field

from mosaic_queues.events import Event
from mosaic_queues.transitions import SHADOW

Finish = Literal["stop", "length", "content_filter"]
DONE = b"data: [DONE]\n\n"
"""The last words of a stream."""


class CachedTokens(BaseModel):
    """Of the tokens of prompts, those that prefix caches spared."""

    cached_tokens: int = Field(description="how many")


class TokenCounts(BaseModel):
    """The tokens of all calls of the run."""

    prompt_tokens: int = Field(description="read")
    completion_tokens: int = Field(description="written")
    total_tokens: int = Field(description="both")
    prompt_tokens_details: CachedTokens = Field(description="of those that were read")


class AnswerMessage(BaseModel):
    """What the model says."""

    role: Literal["assistant"] = Field(default="assistant", description="who says it")
    content: str = Field(description="the output of the workflow's output node; what is no text as JSON")
    refusal: str | None = Field(default=None, description="null: a refusal is a `finish_reason`")


class Choice(BaseModel):
    """The only one."""

    index: Literal[0] = Field(default=0, description="its place")
    message: AnswerMessage = Field(description="the answer")
    logprobs: None = Field(default=None, description="there are none")
    finish_reason: Finish = Field(description="why it ended")


class ChatCompletion(BaseModel):
    """A whole answer; `id` is that of the run."""

    id: str = Field(description="the id of the run")
    object: Literal["chat.completion"] = Field(default="chat.completion", description="what this is")
    created: int = Field(description="when, in Unix seconds")
    model: str = Field(description="the name of the workflow")
    choices: list[Choice] = Field(description="one")
    usage: TokenCounts = Field(description="the tokens of all calls of the run")


class ModelCard(BaseModel):
    """A workflow that can be asked as a model."""

    id: str = Field(description="the name of the workflow")
    object: Literal["model"] = Field(default="model", description="what this is")
    created: int = Field(description="when the gateway started, in Unix seconds")
    owned_by: Literal["mosaic-tasks"] = Field(default="mosaic-tasks", description="whose it is")


class ModelList(BaseModel):
    """All of them."""

    object: Literal["list"] = Field(default="list", description="what this is")
    data: list[ModelCard] = Field(description="the models")


def usage_of(events: Iterable[Event]) -> TokenCounts:
    """What all calls of a run used, experts included, also those that were cut off."""
    used = [event for event in events if event.kind == "usage"]
    read, written = (sum(event.tokens[side] for event in used) for side in (0, 1))
    cached = CachedTokens(cached_tokens=sum(event.cached_tokens for event in used))
    return TokenCounts(
        prompt_tokens=read,
        completion_tokens=written,
        total_tokens=read + written,
        prompt_tokens_details=cached,
    )


def finish_of(events: Iterable[Event], number: int) -> Finish:
    """Why an answer ended: `length` where the engine cut the text of the node, by its number, that made it, or one of
    its items. What a call said last counts."""
    own = str(number)
    ends = {
        event.calls[0].removesuffix(SHADOW): event.finish
        for event in events
        if event.kind == "usage" and event.calls[0].partition(".")[0] == own
    }
    return "length" if "length" in ends.values() else "stop"


class Envelope(NamedTuple):
    """What all parts of an answer say of it.

    Attributes:
        counts: its stream ends with the usage.
    """

    run_id: str
    model: str
    created_s: int
    counts: bool = False

    @classmethod
    def now(cls, run_id: str, model: str, *, counts: bool) -> Envelope:
        """Of an answer that begins now."""
        return cls(run_id, model, int(time.time()), counts)

    def whole(self, text: str, finish: Finish, usage: TokenCounts) -> bytes:
        """The whole answer."""
        choice = Choice(message=AnswerMessage(content=text), finish_reason=finish)
        whole = ChatCompletion(
            id=self.run_id, created=self.created_s, model=self.model, choices=[choice], usage=usage
        )
        return whole.model_dump_json().encode()

    def opening(self) -> bytes:
        """The first event of a stream."""
        return self._choice({"role": "assistant", "content": ""})

    def more(self, text: str) -> bytes:
        """The answer goes on."""
        return self._choice({"content": text})

    def ending(self, finish: Finish, usage: TokenCounts) -> bytes:
        """The last events of a stream."""
        last = self._choice({}, finish)
        return last + (self._chunk([], usage.model_dump()) if self.counts else b"") + DONE

    def _choice(self, delta: dict[str, str], finish: Finish | None = None) -> bytes:
        return self._chunk([{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}], None)

    def _chunk(self, choices: list[dict[str, Any]], usage: dict[str, Any] | None) -> bytes:
        chunk = {
            "id": self.run_id,
            "object": "chat.completion.chunk",
            "created": self.created_s,
            "model": self.model,
            "choices": choices,
        }
        return event(chunk | ({"usage": usage} if self.counts else {}))


def event(data: Any) -> bytes:
    """A server-sent event."""
    return b"data: " + msgspec.json.encode(data) + b"\n\n"
