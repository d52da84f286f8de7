"""What the errors of the official client mean, as errors of this project, for one server."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import openai

from mosaic_queues.errors import ContentRefused, ContextTooLong, EngineError, EngineOverloaded, EngineRefused
from mosaic_tasks.engines.endpoints import Timeouts

_OVERLOADED = frozenset({429, 503, 529})
_PASSING = frozenset({408, 409, 425})
_OF_THE_KEY = frozenset({401, 403})
_OF_THE_SERVER = _OF_THE_KEY | {404, 405}
_OUT_OF_MONEY = frozenset({"insufficient_quota", "billing_hard_limit_reached"})
_CONTENT = frozenset({"content_filter", "content_policy_violation"})
_OVERLOADED_CODES = frozenset({"rate_limit_exceeded", "overloaded", *map(str, _OVERLOADED)})
_TOO_LONG = re.compile(
    r"context[ _](length|window|size)|maximum model length|(prompt|input) is too long|too many (input )?tokens"
    r"|`inputs` (tokens \+|must have less than)",
    re.IGNORECASE,
)
"""In the words of OpenAI, vLLM, llama.cpp, Ollama and others; the last line is TGI's."""
_KEYS = re.compile(r"\b[sp]k-[\w*.-]{6,}|(?<=Bearer )\S+", re.IGNORECASE)
_SHOWN = 300


class BrokenStream(openai.OpenAIError):
    """The bytes of a stream are not a whole answer."""


class Interpreter(msgspec.Struct, frozen=True):
    """Tells what errors of one server mean, without ever showing its key.

    Attributes:
        key_source: where the key comes from, for messages.
    """

    server: str
    key: str
    key_source: str
    timeouts: Timeouts

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.server!r})"  # no key in a traceback that shows variables

    def meaning(self, error: openai.OpenAIError, model: str) -> EngineError:
        """The project's error for the client's."""
        where = f"the server {self.server!r}"
        match error:
            case openai.APIStatusError():
                return self._status(error, model)
            case openai.APITimeoutError():
                return EngineError(
                    f"{where} sent nothing within {self.timeouts.read_s:g} s "
                    f"(or no connection within {self.timeouts.connect_s:g} s)"
                )
            case openai.APIConnectionError():
                cause = self.shown(str(error.__cause__ or error))
                return EngineError(f"the connection to {where} failed: {cause}; is it running?")
            case BrokenStream():
                return EngineError(f"the stream of {where} {error}; is it an OpenAI-compatible API?")
            case openai.APIError():
                return self._event(error, model)
        return EngineError(f"{where} could not be used: {self.shown(str(error))}")

    def shown(self, text: str) -> str:
        """`text` without keys, of a readable length."""
        clean = _KEYS.sub("***", text.replace(self.key, "***"))
        return clean if len(clean) <= _SHOWN else f"{clean[:_SHOWN]}..."

    def _status(self, error: openai.APIStatusError, model: str) -> EngineError:
        status = error.status_code
        told = f"the server {self.server!r} answered {status} for model {model!r}: {self.shown(said(error))}"
        if str(error.code) in _OUT_OF_MONEY:
            return EngineRefused(f"{told}; the account has no money left")
        if status in _OVERLOADED:
            return EngineOverloaded(told)
        if status < 500 and _is_too_long(error):
            return ContextTooLong(f"{told}; shorten the prompt or choose a model with a larger context")
        if status >= 500 or status in _PASSING:
            return EngineError(told)
        if str(error.code) in _CONTENT:
            return ContentRefused(told)
        return EngineRefused(f"{told}; check {self.key_source}" if status in _OF_THE_KEY else told)

    def _event(self, error: openai.APIError, model: str) -> EngineError:
        """The meaning of an error that came inside a stream."""
        told = f"the server {self.server!r} broke off, model {model!r}: {self.shown(said(error))}"
        code = str(error.code)
        if _is_too_long(error):
            return ContextTooLong(told)
        if code in _CONTENT:
            return ContentRefused(told)
        if code in _OUT_OF_MONEY:
            return EngineRefused(told)
        return EngineOverloaded(told) if code in _OVERLOADED_CODES else EngineError(told)


def said(error: openai.APIError) -> str:
    """What the server said, out of the forms that servers give it."""
    body: Any = error.body
    if isinstance(body, dict):
        return str(body.get("message") or body.get("detail") or body)
    return str(body or error.message)


def is_the_server_s(error: openai.OpenAIError) -> bool:
    """Whether a refusal is about this server (its key, its money, its models) rather than about the request."""
    if not isinstance(error, openai.APIStatusError):
        return False
    return error.status_code in _OF_THE_SERVER or str(error.code) in _OUT_OF_MONEY


def _is_too_long(error: openai.APIError) -> bool:
    return str(error.code) == "context_length_exceeded" or bool(_TOO_LONG.search(said(error)))
