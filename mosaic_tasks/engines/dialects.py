"""What servers that speak OpenAI's API understand, and how a question is put to each.

| server | what differs |
|---|---|
| `vllm` | orders requests by `priority`; continues an answer (`continue_final_message`); adapters are models |
| `tgi` | older ones take a schema only as `value` of `json_object`; no `top_p` of 1; adapters are models |
| `ollama` | knows `max_tokens` alone, and passes over what it does not know |
| `llamacpp` | takes a schema in `json_object` too, as `schema` |

What one server refuses beyond that is learnt from its refusal, for that endpoint alone.
"""

from __future__ import annotations

import re
from typing import Any, Literal

import msgspec

from mosaic_tasks.engines.endpoints import Endpoint, Kind
from mosaic_tasks.engines.protocol import EngineRequest, approx_tokens

_Optional = Literal["stream_options", "logprobs", "priority"]

_ADAPTERS: frozenset[Kind] = frozenset({"vllm", "tgi"})
_CONTINUES: frozenset[Kind] = frozenset({"vllm"})
_SCHEMA_IN_OBJECT: dict[Kind, str] = {"tgi": "value", "llamacpp": "schema"}
_OPTIONAL: dict[_Optional, str] = {
    "stream_options": "stream_options|include_usage",
    "logprobs": "logprobs",
    "priority": "priority",
}
"""What an answer is the same without, and the words by which a server complains of it."""
_FORMATS = re.compile("response_format|json_schema|json_object")
_NOT_STRICT = {"allOf", "oneOf", "not", "if", "then", "else", "dependentRequired", "dependentSchemas"} | {
    "patternProperties",
    "propertyNames",
    "prefixItems",
    "contains",
    "minContains",
    "maxContains",
    "uniqueItems",
    "unevaluatedProperties",
    "unevaluatedItems",
    "default",
}


class Dialect(msgspec.Struct, frozen=True):
    """What one endpoint understands."""

    output: Literal["json_schema", "json_object", "prompt"] = "json_schema"
    limit: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    lacks: frozenset[_Optional] = frozenset()


def unsuited(endpoint: Endpoint, request: EngineRequest) -> str | None:
    """What in `request` this endpoint cannot do, in words; None where it can do all."""
    if request.adapter and endpoint.kind not in _ADAPTERS:
        return f"cannot choose the adapter {request.adapter!r}; name it in 'model' of an endpoint"
    if request.prefix and not can_continue(endpoint, request):
        return "cannot continue an answer; ask again without a prefix"
    return None


def can_continue(endpoint: Endpoint, request: EngineRequest) -> bool:
    """Whether the endpoint can go on from a prefix. A grammar would begin anew behind it."""
    return endpoint.kind in _CONTINUES and request.output_schema is None


def arguments(request: EngineRequest, endpoint: Endpoint, dialect: Dialect) -> dict[str, Any]:
    """The keyword arguments of `chat.completions.create`."""
    chosen = {
        "temperature": request.temperature,
        "top_p": _top_p(request, endpoint.kind),
        dialect.limit: _max_tokens(request),
        "seed": request.seed,
        "stop": list(request.stop) or None,
        "response_format": _response_format(request, endpoint.kind, dialect),
        "logprobs": True if request.logprobs and "logprobs" not in dialect.lacks else None,
        "stream_options": None if "stream_options" in dialect.lacks else {"include_usage": True},
        "extra_body": _extra(request, endpoint.kind, dialect) or None,
    }
    given = {name: value for name, value in chosen.items() if value is not None}
    model = request.adapter or endpoint.model
    return {"model": model, "messages": _messages(request, dialect), "stream": True, **given}


def simpler(spoken: Dialect, request: EngineRequest, kind: Kind, complaint: str) -> Dialect:
    """The dialect without what the server complains of; the same one when it complains of something else."""
    if "max_completion_tokens" in complaint and request.max_tokens is not None:
        return msgspec.structs.replace(spoken, limit="max_completion_tokens")
    for name, words in _OPTIONAL.items():
        if _sent(name, request, kind) and re.search(words, complaint, re.IGNORECASE):
            return msgspec.structs.replace(spoken, lacks=spoken.lacks | {name})
    if request.output_schema is not None and _FORMATS.search(complaint):
        return msgspec.structs.replace(spoken, output=_next_output(spoken, request.output_schema, kind))
    return spoken


class Seam:
    """Where an answer is continued: servers trim a message's end, so white space there may come a second time."""

    def __init__(self, prefix: str) -> None:
        self._tail = prefix[len(prefix.rstrip()) :]

    def join(self, text: str) -> str:
        """`text` without the white space that the prefix had already."""
        while self._tail and text.startswith(self._tail[0]):
            self._tail, text = self._tail[1:], text[1:]
        if text:
            self._tail = ""
        return text


def _sent(name: _Optional, request: EngineRequest, kind: Kind) -> bool:
    match name:
        case "logprobs":
            return request.logprobs
        case "priority":
            return bool(request.priority) and kind == "vllm"
    return True


def _top_p(request: EngineRequest, kind: Kind) -> float | None:
    return None if kind == "tgi" and request.top_p == 1 else request.top_p


def _max_tokens(request: EngineRequest) -> int | None:
    """What remains of the limit behind the prefix."""
    if request.max_tokens is None or not request.prefix:
        return request.max_tokens
    return max(1, request.max_tokens - approx_tokens(request.prefix))


def _extra(request: EngineRequest, kind: Kind, dialect: Dialect) -> dict[str, Any]:
    """What OpenAI's own API does not know."""
    extra: dict[str, Any] = {}
    if _sent("priority", request, kind) and "priority" not in dialect.lacks:
        extra["priority"] = request.priority
    if request.prefix.strip():
        extra |= {"continue_final_message": True, "add_generation_prompt": False}
    return extra


def _messages(request: EngineRequest, dialect: Dialect) -> list[dict[str, str]]:
    messages = [{"role": message.role, "content": message.content} for message in request.messages]
    if request.prefix.strip():
        return [*messages, {"role": "assistant", "content": request.prefix.rstrip()}]
    if request.output_schema is None or dialect.output == "json_schema":
        return messages
    schema = msgspec.json.encode(request.output_schema).decode()
    rule = f"Answer with JSON that fits this JSON Schema, and with nothing else:\n{schema}"
    if messages and messages[0]["role"] == "system":
        return [{"role": "system", "content": f"{messages[0]['content']}\n\n{rule}"}, *messages[1:]]
    return [{"role": "system", "content": rule}, *messages]


def _response_format(request: EngineRequest, kind: Kind, dialect: Dialect) -> dict[str, Any] | None:
    schema = request.output_schema
    if schema is None or dialect.output == "prompt":
        return None
    if dialect.output == "json_object":
        place = _SCHEMA_IN_OBJECT.get(kind)
        return {"type": "json_object", **({place: schema} if place else {})}
    name = re.sub(r"[^A-Za-z0-9_-]+", "_", str(schema.get("title", "")))[:64] or "output"
    described = {"name": name, "schema": schema, "strict": _can_be_strict(schema, root=True)}
    return {"type": "json_schema", "json_schema": described}


def _next_output(spoken: Dialect, schema: dict[str, Any], kind: Kind) -> Literal["json_object", "prompt"]:
    fits = schema.get("type") == "object" or kind in _SCHEMA_IN_OBJECT
    return "json_object" if spoken.output == "json_schema" and fits else "prompt"


def _can_be_strict(schema: Any, *, root: bool = False) -> bool:
    """Whether OpenAI's strict mode takes it: each object closed, each property required, few keywords."""
    if not isinstance(schema, dict) or _NOT_STRICT & schema.keys():
        return False
    if root and schema.get("type") != "object":
        return False
    properties: dict[str, Any] = schema.get("properties", {})
    if "object" in str(schema.get("type")) and not (
        schema.get("additionalProperties") is False and set(schema.get("required", ())) == properties.keys()
    ):
        return False
    inner = [*properties.values(), *schema.get("$defs", {}).values(), *schema.get("anyOf", ())]
    if "items" in schema:
        inner.append(schema["items"])
    return all(_can_be_strict(part) for part in inner)
