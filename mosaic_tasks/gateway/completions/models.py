"""How a workflow is a model: what receives the conversation, and what of the run is its answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from mosaic_queues.errors import DefinitionError, InputError
from mosaic_tasks.definition.plan import NodePlan
from mosaic_tasks.definition.references import did_you_mean
from mosaic_tasks.definition.schemas import Schema, misfit
from mosaic_tasks.definition.workflow import Workflow
from mosaic_tasks.submission import plan_for

ALL = "messages"
"""The input that receives the whole conversation, a list of `{role, content}`."""
LAST = ("prompt", "question")
"""Inputs that receive the last message of the user, by their names; else it is the only text input."""
_CONVERSATION = [{"role": "user", "content": "?"}]

Conversation = list[dict[str, str]]
"""Messages: `role` and `content` of each."""


class NoModel(InputError):
    """A workflow cannot be asked as a model, or there is none; says why."""


class Model(NamedTuple):
    """A workflow as a model.

    Attributes:
        receiver: the input that receives the conversation.
        takes_all: it receives all of it; else what the user said last.
        streams: its answer is a text that is told while it is written; otherwise it comes at once, in the end.
        output: JSON Schema of what it gives, as far as that is known.
    """

    workflow: Workflow
    receiver: str
    takes_all: bool
    streams: bool
    output: Schema

    def inputs(self, conversation: Conversation, more: Mapping[str, Any]) -> dict[str, Any]:
        """The inputs of a run that answers a conversation.

        Args:
            more: of the other inputs.

        Raises:
            InputError: they do not fit, or nobody asks anything.
        """
        if self.receiver in more:
            raise InputError(f"the input {self.receiver!r} receives the messages; leave it out of `inputs`")
        given = conversation if self.takes_all else _last_asked(conversation)
        return self.workflow.validate_inputs({**more, self.receiver: given})


def _last_asked(conversation: Conversation) -> str:
    for message in reversed(conversation):
        if message["role"] == "user":
            return message["content"]
    raise InputError("no message is of the role 'user'; this model answers the last one that is")


def model_of(workflow: Workflow) -> Model:
    """A workflow as a model.

    Raises:
        NoModel: none of its inputs can receive a conversation, or another one has no default.
    """
    takes_all = ALL in workflow.inputs and misfit(_CONVERSATION, workflow.inputs[ALL]) is None
    receiver = ALL if takes_all else _text_input(workflow.inputs)
    if receiver is None:
        raise NoModel(
            f"workflow {workflow.name!r} is no model: give it an input {ALL!r} (an array) or {LAST[0]!r} (a string), "
            "or a single text input, which receives the conversation"
        )
    lacking = [
        name for name, schema in workflow.inputs.items() if "default" not in schema and name != receiver
    ]
    if lacking:
        raise NoModel(
            f"workflow {workflow.name!r} is no model: its input {lacking[0]!r} has no default, and a conversation "
            "brings none"
        )
    plan = plan_for(workflow)
    streams = _streams(plan.nodes[plan.output])
    return Model(workflow, receiver, takes_all, streams, workflow.analysed().output)


def _text_input(inputs: Mapping[str, Schema]) -> str | None:
    texts = [name for name, schema in inputs.items() if _is_text(schema)]
    named = [name for name in LAST if name in texts]
    needed = [name for name in texts if "default" not in inputs[name]]
    for found in (named[:1], needed, texts):
        if len(found) == 1:
            return found[0]
    return None


def _is_text(schema: Schema) -> bool:
    """Whether any text fits."""
    return "string" in schema.get("type", "string") and not schema.keys() & {"enum", "const"}


def _streams(node: NodePlan) -> bool:
    is_prose = node.agent is None or node.agent.output_schema is None
    return node.publishes == "text" and node.for_each is None and is_prose


class Models(Mapping[str, Model]):
    """The workflows of a catalog that are models, by their names."""

    def __init__(self, workflows: Mapping[str, Workflow]) -> None:
        self._models: dict[str, Model] = {}
        self._reasons: dict[str, str] = {}
        for name, workflow in workflows.items():
            try:
                self._models[name] = model_of(workflow)
            except (NoModel, DefinitionError) as error:
                self._reasons[name] = str(error)

    def named(self, name: str) -> Model:
        """The model of this name.

        Raises:
            NoModel: there is none; says why a workflow of that name is none.
        """
        if name not in self._models:
            raise NoModel(
                self._reasons.get(name) or f"there is no model {name!r}{did_you_mean(name, self._models)}"
            )
        return self._models[name]

    def __getitem__(self, name: str) -> Model:
        return self._models[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._models)

    def __len__(self) -> int:
        return len(self._models)


def text_of(output: Any) -> str:
    """What a run put out, as the text of an answer: a text as it is, any other value as JSON, nothing as no text."""
    if output is None:
        return ""
    return output if isinstance(output, str) else msgspec.json.encode(output).decode()
