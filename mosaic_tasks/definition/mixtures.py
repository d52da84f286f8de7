"""The shape of a mixture in a workflow file: who is asked what, when it is enough, and what becomes of the answers.

A preset stands for the fields that it names; what a file says itself goes before it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from pydantic import BeforeValidator, Field, field_validator, model_validator

from mosaic_queues.files import read_file
from mosaic_tasks.definition.parts import Duration, Part, Requires, Texts
from mosaic_tasks.mixtures.calibration import Calibration
from mosaic_tasks.mixtures.patterns import pattern_error
from mosaic_tasks.mixtures.values import AggregatorKind, Form, GateKind

Preset = Literal["self-consistency", "debate", "race", "layers", "best-of-n"]
PRESETS: dict[str, dict[str, Any]] = {
    "self-consistency": {
        "samples": 8,
        "waves": [3, 1],
        "gate": "unanimous",
        "aggregator": "majority",
        "temperature": 0.7,
    },
    "debate": {"waves": [2], "rounds": 3, "gate": {"kind": "unanimous", "window": 2}, "min_experts": 2},
    "race": {"waves": [1000], "gate": {"kind": "quorum", "quorum": 1}, "aggregator": "majority"},
    "layers": {"waves": [1000], "aggregator": "synthesis"},
    "best-of-n": {"samples": 4, "waves": [1000], "gate": "none", "aggregator": "rank", "temperature": 0.7},
}
"""What each preset says; `waves: [1000]` asks all at once."""
TAKEN_NAMES = ("verifier", "aggregator")
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")
_OTHER = re.compile(r"[^a-z0-9._-]+")
_NEEDS_MODEL = ("synthesis", "build")
_NEEDS_VERIFIER = ("verify", "rank")
MOST_SAMPLES = 64
_MOST_CALIBRATION_MIB = 1


def _as(name: str, given: Any) -> BeforeValidator:
    """A part of which mostly one field is said: that field alone stands for it.

    Args:
        given: what may stand there, for editors.
    """
    return BeforeValidator(
        lambda value: value if isinstance(value, (dict, Part)) else {name: value},
        json_schema_input_type=given,
    )


class ExpertSpec(Part):
    """Somebody who is asked; what it does not say, the mixture says."""

    name: str = Field(
        default="", max_length=60, description="in votes, events and what is learned; default: the model's"
    )
    model: str | None = Field(default=None, description="as an agent's: PROVIDER:NAME, or pool:NAME")
    requires: Requires | None = Field(
        default=None, description="instead of a model: what it must be able to do"
    )
    prompt: str | None = Field(default=None, description="instead of the mixture's")
    system: str | None = Field(default=None, description="instead of the mixture's")
    role: str = Field(
        default="",
        max_length=2000,
        description="what it is to be, such as `a critic`: its system message says so, and the aggregator's prompt",
    )
    samples: int | None = Field(
        default=None,
        ge=1,
        le=MOST_SAMPLES,
        description="how often it may be asked in a round; default: the mixture's",
    )
    layer: int = Field(default=0, ge=0, le=10, description="the round in which it is asked; 0: in each")
    queue: str | None = Field(default=None, min_length=1, description="Celery queue, instead of its model's")
    offers: Texts = Field(
        default=(), description="what it can bring that others lack, such as data, code or check"
    )
    temperature: float | None = Field(default=None, ge=0, le=10, description="instead of the mixture's")
    top_p: float | None = Field(default=None, gt=0, le=1, description="as an agent's")
    max_tokens: int | None = Field(default=None, ge=1, description="instead of the mixture's")
    seed: int | None = Field(default=None, description="as an agent's; with samples, all would be the same")
    adapter: str = Field(default="", description="a LoRA adapter that the model's workers host")

    @field_validator("name")
    @classmethod
    def _is_name(cls, name: str) -> str:
        if name and not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name; use lower case, digits, '.', '_' and '-'")
        if name in TAKEN_NAMES:
            raise ValueError(f"{name!r} is the name of another part of the mixture; choose another")
        return name


class Selection(Part):
    """Experts from the model pool."""

    capability: str = Field(description="such as math: of models of the pool that were measured in it")
    count: int = Field(default=5, ge=1, le=64, description="so many are asked in a round at most")
    among: Texts = Field(default=(), description="models of the pool; default: all that have the capability")
    quality: float = Field(default=0.0, ge=0, le=1, description="the least that was measured, 0 to 1")


class AnswerSpec(Part):
    """How answers are compared."""

    form: Form = Field(
        default="text", description="what an answer is; the same number, choice, ... is one answer"
    )
    field: str = Field(default="", description="the part of a JSON answer that is compared, such as `answer`")
    choices: Texts = Field(default=(), description="of choice: what may be chosen; default: a letter")
    tolerance: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="of numbers: the relative difference up to which two are the same",
    )
    similarity: float = Field(
        default=0.85, gt=0, le=1, description="of texts, 0 to 1: from there on two say the same"
    )
    embedding: str = Field(
        default="",
        description="of texts: a model of sentence-transformers that compares them; without it, by their words",
    )

    @field_validator("choices")
    @classmethod
    def _differ(cls, choices: tuple[str, ...]) -> tuple[str, ...]:
        known: dict[str, str] = {}
        for choice in choices:
            words = " ".join(choice.casefold().split())
            if words in known:
                raise ValueError(
                    f"{known[words]!r} and {choice!r} are one choice, as case does not count; remove one"
                )
            known[words] = choice
        return choices


class RulesSpec(Part):
    """What an answer must hold to count."""

    pattern: str = Field(
        default="",
        max_length=1000,
        description="a regular expression, without look-around, that is found in it",
    )
    entities: Texts = Field(default=(), description="words that are in it, whatever their case")
    refusals: bool = Field(default=True, description="an answer that refuses does not count")

    @field_validator("entities")
    @classmethod
    def _are_words(cls, entities: tuple[str, ...]) -> tuple[str, ...]:
        if not all(entity.strip() for entity in entities):
            raise ValueError(f"{list(entities)} has a word without letters, which no answer holds; remove it")
        return entities

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, pattern: str) -> str:
        if pattern and (reason := pattern_error(pattern)) is not None:
            raise ValueError(reason)
        return pattern


class GateSpec(Part):
    """When the mixture stops asking."""

    kind: GateKind = Field(default="probability", description="what is asked of the answers after each one")
    confidence: float | None = Field(
        default=0.95, gt=0, lt=1, description="probability that is enough; null: the rule alone decides"
    )
    window: int = Field(default=3, ge=1, le=100, description="of unanimous: so many in a row say the same")
    margin: int = Field(default=2, ge=1, le=100, description="of margin: votes ahead")
    quorum: float = Field(
        default=0.8,
        gt=0,
        allow_inf_nan=False,
        description="of quorum: votes for one answer; below 1: a share of all that may be asked",
    )
    worth: float = Field(
        default=0.01,
        ge=0,
        allow_inf_nan=False,
        description="of cost: US dollars that a right answer is worth",
    )
    second: float = Field(
        default=0.0,
        ge=0,
        allow_inf_nan=False,
        description="of cost: US dollars that a second of waiting costs",
    )


class BudgetSpec(Part):
    """What all calls of the mixture may take together."""

    usd: float | None = Field(default=None, ge=0, allow_inf_nan=False, description="US dollars")
    tokens: int | None = Field(default=None, ge=0, description="read and written")


class JudgeSpec(Part):
    """A model that judges or aggregates answers."""

    model: str | None = Field(default=None, description="as an agent's: PROVIDER:NAME, or pool:NAME")
    requires: Requires | None = Field(
        default=None, description="instead of a model: what it must be able to do"
    )
    prompt: str | None = Field(
        default=None,
        description="sees what the experts see, and `ask`: what it is to do; default: the mixture's, then `ask`",
    )
    system: str = Field(default="", description="Jinja template of its system message")
    temperature: float | None = Field(default=None, ge=0, le=10, description="as an agent's")
    max_tokens: int | None = Field(default=None, ge=1, description="as an agent's")


class AggregatorSpec(JudgeSpec):
    """What becomes of the answers where no gate passes."""

    kind: AggregatorKind = Field(
        default="weighted", description="counting (majority, weighted), a verifier (verify, rank) or a model"
    )


class MixtureSpec(Part):
    """Several experts are asked, until the answer is certain enough."""

    preset: Preset | None = Field(
        default=None, description="stands for some fields; what the file says itself goes before it"
    )
    prompt: str | None = Field(default=None, description="as an agent's; experts may have their own")
    system: str = Field(default="", description="Jinja template of the experts' system message")
    output: str | dict[str, Any] | None = Field(
        default=None, description="JSON Schema of an answer, or `module:Model`; without it answers are text"
    )
    experts: tuple[ExpertSpec, ...] = Field(default=(), description="who may be asked; or `select`")
    select: Selection | None = Field(
        default=None, description="experts from the model pool, instead of `experts`"
    )
    samples: int = Field(
        default=1, ge=1, le=MOST_SAMPLES, description="how often each expert may be asked in a round"
    )
    answer: Annotated[AnswerSpec, _as("form", Form | AnswerSpec)] = Field(
        default=AnswerSpec(), description="how answers are compared; a form alone may stand for it"
    )
    rules: RulesSpec = Field(default=RulesSpec(), description="what an answer must hold to count")
    gate: Annotated[GateSpec, _as("kind", GateKind | GateSpec)] = Field(
        default=GateSpec(), description="when asking stops; a kind alone may stand for it"
    )
    waves: Annotated[
        tuple[int, ...],
        BeforeValidator(
            lambda v: [v] if isinstance(v, int) else v, json_schema_input_type=int | tuple[int, ...]
        ),
    ] = Field(
        default=(),
        description="how many are asked at once; the last number goes on. Default: as many as the gate needs at least",
    )
    min_experts: int = Field(default=2, ge=1, description="no gate passes before so many answers count")
    most: int | None = Field(default=None, ge=1, description="so many are asked in a round at most")
    enough: float = Field(
        default=0.65,
        ge=0,
        le=1,
        description="once all experts are heard, a model aggregates or verifies only where the leader is less probable",
    )
    rounds: int = Field(default=1, ge=1, le=10, description="in later ones, experts see the earlier answers")
    aggregator: Annotated[AggregatorSpec, _as("kind", AggregatorKind | AggregatorSpec)] = Field(
        default=AggregatorSpec(),
        description="what becomes of the answers where no gate passes; a kind alone may stand for it",
    )
    verifier: JudgeSpec | None = Field(
        default=None, description="a model that judges answers, for the aggregators verify and rank"
    )
    budget: Annotated[BudgetSpec, _as("usd", float | BudgetSpec)] = Field(
        default=BudgetSpec(),
        description="what all calls together may take; US dollars alone may stand for it",
    )
    deadline: Duration | None = Field(
        default=None, description="after so long it answers with the best it has"
    )
    whole: bool | None = Field(
        default=None,
        description="the output is the leading answer as it was given, not only the part that is compared; experts "
        "then finish what they write. Default: where all of an answer is compared",
    )
    details: bool = Field(default=False, description="the output tells confidence, votes and cost as well")
    quoted_tokens: int = Field(
        default=4096,
        ge=256,
        description="so much of the answers is quoted to other experts and to the aggregator, the best parts first",
    )
    diversity: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="0 to 1: how much it counts, for who is asked next, to err in other places than those asked",
    )
    capability: str = Field(
        default="",
        description="what the questions are about, such as math: experts are measured and remembered by it; "
        "default: that of `select`, or this node",
    )
    calibration: str | None = Field(
        default=None,
        description="a file that `mosaic calibrate` wrote: how likely the leading answer is right",
    )
    temperature: float | None = Field(default=None, ge=0, le=10, description="of experts that do not say it")
    max_tokens: int | None = Field(default=None, ge=1, description="of experts that do not say it")

    @model_validator(mode="before")
    @classmethod
    def _preset(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        given = dict(PRESETS.get(str(value.get("preset")), {}))
        if value.get("preset") in ("race", "best-of-n"):
            given["min_experts"] = 1
        merged = {**given, **value}
        if (
            isinstance(value.get("aggregator"), dict)
            and "kind" not in value["aggregator"]
            and "aggregator" in given
        ):
            merged["aggregator"] = {"kind": given["aggregator"], **value["aggregator"]}
        return merged

    @field_validator("calibration")
    @classmethod
    def _is_calibration(cls, path: str | None) -> str | None:
        if path is not None:
            fitted(path)
        return path

    @field_validator("waves")
    @classmethod
    def _ask_somebody(cls, waves: tuple[int, ...]) -> tuple[int, ...]:
        if any(wave < 1 for wave in waves):
            raise ValueError(f"{list(waves)} asks nobody in one of its waves; each is 1 or more")
        return waves

    @model_validator(mode="after")
    def _fits(self) -> MixtureSpec:
        if bool(self.experts) == (self.select is not None):
            raise ValueError(
                "a mixture has either `experts` or `select`, which takes them from the model pool"
            )
        if self.prompt is None and any(expert.prompt is None for expert in self.experts or (ExpertSpec(),)):
            raise ValueError("it has no `prompt`, and not every expert has one of its own")
        for expert in self.experts:
            samples = expert.samples or self.samples
            if expert.seed is not None and samples > 1:
                raise ValueError(
                    f"the expert {expert.name or expert.model!r} has {samples} samples and a seed, by which all would "
                    "be the same; remove its `seed`, or give it `samples: 1`"
                )
        kind = self.aggregator.kind
        if kind in _NEEDS_VERIFIER and self.verifier is None:
            raise ValueError(f"the aggregator {kind!r} needs a `verifier`: the model that judges the answers")
        if kind == "synthesis" and self.aggregator.model is None and self.aggregator.requires is None:
            raise ValueError(f"the aggregator {kind!r} needs a `model`: who writes one answer of all")
        named = self.aggregator.model or self.aggregator.prompt or self.aggregator.requires
        if kind not in _NEEDS_MODEL and named:
            raise ValueError(f"the aggregator {kind!r} counts and asks no model; 'synthesis' and 'build' do")
        return self

    @property
    def is_whole(self) -> bool:
        """Whether the output is an answer as it was given."""
        if self.whole is not None:
            return self.whole
        return not self.answer.field and self.answer.form in ("text", "json", "code")

    @property
    def most_asked(self) -> int | None:
        """So many are asked in a round at most; None: as many as there are."""
        limits = [self.most, self.select.count if self.select is not None else None]
        return min((limit for limit in limits if limit is not None), default=None)

    @property
    def last_round(self) -> int:
        """How many rounds there are, layers included."""
        return max([self.rounds, *(expert.layer for expert in self.experts)])

    def named(self) -> list[ExpertSpec]:
        """The experts with their names: what they are called, or their model."""
        return named(self.experts)


def named(experts: Sequence[ExpertSpec]) -> list[ExpertSpec]:
    """Each with a name of its own: what is there twice, or is another part of the mixture, is numbered."""
    taken, following = set(TAKEN_NAMES), dict[str, int]()
    found = []
    for expert in experts:
        name = base = expert.name or _from_model(expert)
        while name in taken:
            number = following.get(base, 2)
            name, following[base] = f"{base}-{number}", number + 1
        taken.add(name)
        found.append(expert.model_copy(update={"name": name}))
    return found


def fitted(path: str) -> Calibration:
    """The calibration in a file, without its curve, which is for people.

    Raises:
        ValueError: it cannot be read, or is none that gives probabilities.
    """
    try:
        found = msgspec.json.decode(read_file(path, most_mib=_MOST_CALIBRATION_MIB), type=Calibration)
    except OSError as error:
        raise ValueError(f"the calibration {path!r} cannot be read: {error.strerror}") from None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(
            f"{path!r} is no calibration: {error}; write one with `mosaic calibrate HISTORY --out {path}`"
        ) from None
    return msgspec.structs.replace(found, curve=None)


def part_at(path: Sequence[str | int]) -> type[Part]:
    """The part of a mixture that stands at a place below it."""
    parts: dict[str, type[Part]] = {
        "experts": ExpertSpec,
        "select": Selection,
        "answer": AnswerSpec,
        "rules": RulesSpec,
        "gate": GateSpec,
        "aggregator": AggregatorSpec,
        "verifier": JudgeSpec,
        "budget": BudgetSpec,
    }
    return parts.get(str(path[0]), MixtureSpec) if path else MixtureSpec


def _from_model(expert: ExpertSpec) -> str:
    wanted = expert.model or (expert.requires.capability if expert.requires is not None else "") or "expert"
    last = re.split(r"[/:]", wanted)[-1]
    return _OTHER.sub("-", last.lower()).strip("-._") or "expert"


__all__ = [
    "PRESETS",
    "AggregatorSpec",
    "AnswerSpec",
    "BudgetSpec",
    "ExpertSpec",
    "GateSpec",
    "JudgeSpec",
    "MixtureSpec",
    "RulesSpec",
    "Selection",
    "fitted",
    "named",
    "part_at",
]
