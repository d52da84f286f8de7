"""What a client of OpenAI's API asks, and what of it is refused.

What steers sampling (`temperature`, `top_p`, `max_tokens`, `seed`, penalties, `reasoning_effort`) is the workflow's own
matter and passed over, as are fields that nobody knows. What would change the form or the meaning of the answer is
refused.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, FailFast, Field, WithJsonSchema

from mosaic_queues.errors import InputError
from mosaic_tasks.gateway.completions.failures import Refused
from mosaic_tasks.gateway.completions.formats import guarantees, is_object
from mosaic_tasks.gateway.completions.models import Conversation, Model

_MOST_NAME = 200
"""Names of workflows are shorter; what is longer need not be said again in an error."""
_HARMLESS: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "logit_bias": ({},),
    "stop": ([], ""),
    "modalities": (["text"],),
    "audio": (),
    "web_search_options": (),
}
"""Of each parameter that is refused, the values (beside null) that ask for nothing."""


def _text(value: Any) -> Any:
    """The text of a message that has parts."""
    if not isinstance(value, list):
        return value
    for part in value:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind != "text" or not isinstance(part.get("text"), str):
            raise ValueError(f"only parts of the type 'text' can be read here, not {kind!r}")
    return "".join(part["text"] for part in value)


_PARTS = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
        "required": ["type", "text"],
    },
}


class ChatMessage(BaseModel):
    """A message of the conversation."""

    role: Literal["system", "developer", "user", "assistant"] = Field(description="who says it")
    content: Annotated[
        str, BeforeValidator(_text), WithJsonSchema({"anyOf": [{"type": "string"}, _PARTS]})
    ] = Field(description="a text, or its parts")


class StreamOptions(BaseModel):
    """Of a streamed answer."""

    include_usage: bool | None = Field(default=None, description="a last event tells the tokens of all calls")


class NamedSchema(BaseModel):
    """A JSON Schema; its `name` and `strict` are of no matter here."""

    form: dict[str, Any] = Field(description="the schema", default_factory=dict, alias="schema")


class ResponseFormat(BaseModel):
    """The form that the answer shall have: the workflow has to give it by itself."""

    type: Literal["text", "json_object", "json_schema"] = Field(description="which form")
    json_schema: NamedSchema | None = Field(default=None, description="of the type of this name")


class ChatRequest(BaseModel):
    """A question to a workflow."""

    model_config = ConfigDict(
        extra="allow",
        json_schema_extra={
            "examples": [
                {"model": "quiz", "messages": [{"role": "user", "content": "How many edges has a cube?"}]}
            ]
        },
    )

    model: str = Field(description="name of a workflow", max_length=_MOST_NAME)
    # Of very many messages that do not fit, one is told of.
    messages: Annotated[list[ChatMessage], FailFast()] = Field(description="the conversation", min_length=1)
    stream: bool | None = Field(default=None, description="the answer comes as it is said")
    stream_options: StreamOptions | None = Field(default=None, description="of such an answer")
    response_format: ResponseFormat | None = Field(
        default=None, description="the form that the answer must have"
    )
    inputs: dict[str, Any] | None = Field(
        default=None, description="of the workflow's other inputs, by name; not in OpenAI's API"
    )

    @property
    def counts(self) -> bool:
        """Whether the stream is to tell the usage."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def conversation(self) -> Conversation:
        """The messages."""
        return [{"role": message.role, "content": message.content} for message in self.messages]

    def inputs_for(self, model: Model) -> dict[str, Any]:
        """The inputs of a run that answers it.

        Raises:
            Refused: it asks for what this model cannot give.
        """
        self._check_parameters()
        self._check_format(model)
        try:
            return model.inputs(self.conversation, self.inputs or {})
        except InputError as error:
            raise Refused(
                HTTPStatus.BAD_REQUEST, str(error), param="inputs" if self.inputs else "messages"
            ) from error

    def _check_parameters(self) -> None:
        for name, harmless in _HARMLESS.items():
            value = (self.model_extra or {}).get(name)
            if value is not None and value not in harmless:
                raise Refused(
                    HTTPStatus.BAD_REQUEST,
                    f"{name!r} is not supported here: a workflow answers once, in text; leave it out",
                    param=name,
                    code="unsupported_parameter",
                )

    def _check_format(self, model: Model) -> None:
        wanted = self.response_format
        if wanted is None or wanted.type == "text":
            return
        if wanted.type == "json_object":
            fits = is_object(model.output)
        else:
            fits = wanted.json_schema is not None and guarantees(model.output, wanted.json_schema.form)
        if not fits:
            raise Refused(
                HTTPStatus.BAD_REQUEST,
                f"the output of model {model.workflow.name!r} need not have this form; ask for the schema that the "
                "workflow gives it, or leave `response_format` out",
                param="response_format",
            )
