"""The model pool: which models there are, how good they are at what, what they cost, and where each may run.

It is read from `routing/models.yaml`, or from the file that MOSAIC_MODELS names; the comments there tell what may stand
in it. A model on a GPU class, or at a provider, is a *deployment*: `h100/llama-3.1-8b`, `api.openai/gpt-4o-mini`.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import structlog
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainValidator,
    StringConstraints,
    ValidationInfo,
    field_validator,
    model_validator,
)

from mosaic_queues.documents import read_model
from mosaic_queues.errors import ConfigurationError
from mosaic_queues.settings import settings
from mosaic_routing.classes import Format
from mosaic_routing.degrading import Step
from mosaic_routing.guards.limits import EACH, Limits
from mosaic_routing.memory import active_parameters, layers, parameters, weight_bytes
from mosaic_routing.queues import API_PREFIX, HOSTED

log = structlog.get_logger(__name__)

API = API_PREFIX.removeprefix("mosaic.")
"""Before the name of a provider, where it stands in the place of a GPU class: `api.openai`."""
_BESIDE = Path(__file__).with_name("models.yaml")
"""Where a wheel has the pool that ships; a clone has it one folder above."""
_USABLE = 0.9
"""Of a GPU's memory: what vLLM takes unless it is told otherwise."""
_SET_ELSEWHERE = {
    "alias": "the model's name in the pool is its alias",
    "tensor_parallel": "each class under 'classes' says its own",
}

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)]
ClassName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]*$")]
Share = Annotated[float, Field(ge=0, le=1)]
Dollars = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class Price(_Part):
    """US dollars for a million tokens.

    Attributes:
        cached: of a prompt's tokens that the provider had read before; default: as `input`.
    """

    input: Dollars = 0.0
    output: Dollars = 0.0
    cached: Dollars | None = None


class Speed(_Part):
    """How fast a deployment is for one request alone.

    Attributes:
        prefill_tokens_s: tokens of a prompt that it reads in a second.
        decode_tokens_s: tokens of an answer that it writes in a second.
        first_token_s: until the first token of a prompt of no length.
        estimated: nobody measured it.
    """

    prefill_tokens_s: Rate
    decode_tokens_s: Rate
    first_token_s: float = Field(0.0, ge=0, allow_inf_nan=False)
    estimated: bool = False

    def latency_s(self, *, input_tokens: float, output_tokens: float) -> float:
        """Until the last token of an answer, where nothing else runs."""
        return (
            self.first_token_s + input_tokens / self.prefill_tokens_s + output_tokens / self.decode_tokens_s
        )


class Place(_Part):
    """A GPU class that can host a model.

    Attributes:
        tensor_parallel: GPUs that share the model.
        price: what tokens cost there; default: the model's.
        speed: where it was measured or published; otherwise it is estimated from the class's data sheet.
    """

    tensor_parallel: int = Field(1, ge=1)
    price: Price | None = None
    speed: Speed | None = None


class Size(msgspec.Struct, frozen=True):
    """What a model's configuration tells of it.

    Attributes:
        active: parameters at work for one token.
        weight_bytes: of all GPUs together.
    """

    parameters: int
    active: int
    layers: int
    weight_bytes: int


class Hosting(_Part):
    """How workers host a model.

    Attributes:
        spec: fields of a model spec, as a worker's `--model FILE` has them.
        classes: on which GPU classes.
        config: of the model's `config.json` what its memory is told from.
    """

    spec: dict[str, Any]
    classes: dict[ClassName, Place]
    config: dict[str, Any] = {}

    @field_validator("spec")
    @classmethod
    def _names_a_model(cls, spec: dict[str, Any]) -> dict[str, Any]:
        if not isinstance(spec.get("model"), str) or not spec["model"]:
            raise ValueError("it names no model; write at least 'model: <path or name>'")
        for field in sorted(spec.keys() & _SET_ELSEWHERE.keys()):
            raise ValueError(f"{field!r} does not belong here: {_SET_ELSEWHERE[field]}")
        return spec

    @field_validator("config")
    @classmethod
    def _tells_memory(cls, config: dict[str, Any]) -> dict[str, Any]:
        if config:
            try:
                parameters(config)
            except ConfigurationError as error:
                raise ValueError(str(error)) from None
        return config

    @cached_property
    def size(self) -> Size | None:
        """None: the pool does not have its configuration."""
        if not self.config:
            return None
        stored = weight_bytes(self.config, dtype=self.dtype, quantization=self.quantization)
        return Size(parameters(self.config), active_parameters(self.config), layers(self.config), stored)

    def usable_gb(self, whole_gb: float) -> float:
        """What the model takes of each of its GPUs, for weights and KV cache.

        Args:
            whole_gb: memory of such a GPU.
        """
        return float(self.spec.get("memory_gb") or whole_gb * _USABLE)

    @property
    def dtype(self) -> str:
        """Of the weights, as the spec says it."""
        return str(self.spec.get("dtype") or "auto")

    @property
    def kv_dtype(self) -> str:
        """Of the KV cache, as the spec says it."""
        return str((self.spec.get("options") or {}).get("kv_cache_dtype") or "auto")

    @property
    def quantization(self) -> str | None:
        """How weights are quantised on loading; None: as they are stored."""
        return self.spec.get("quantization")


class Offer(_Part):
    """A provider that answers for a model.

    Attributes:
        provider: workers that ask it serve `mosaic.api.PROVIDER`.
        model: its name there.
        engine: who asks it.
        price: what tokens cost there; default: the model's.
        speed: default: nothing is known of it.
    """

    provider: ClassName
    model: str = Field(min_length=1)
    engine: Name = "openai"
    price: Price | None = None
    speed: Speed | None = None


class Model(_Part):
    """A model of the pool.

    Attributes:
        capabilities: measured share of right answers by what was asked for: `{math: 0.85}`.
        context_tokens: prompt and answer together, at most.
        price: where a class or provider says none of its own.
        formats: numbers that its weights can be computed in; empty: nobody said.
    """

    capabilities: dict[Name, Share] = {}
    context_tokens: int = Field(ge=1)
    price: Price = Price()
    formats: tuple[Format, ...] = ()
    hosting: Hosting | None = None
    providers: tuple[Offer, ...] = ()

    @model_validator(mode="after")
    def _runs_somewhere(self) -> Model:
        if not self.providers and not (self.hosting and self.hosting.classes):
            raise ValueError("it runs nowhere; name GPU classes under 'hosting', or 'providers'")
        names = [offer.provider for offer in self.providers]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"the provider {min(twice)!r} is there twice; leave one")
        return self


class Deployment(msgspec.Struct, frozen=True, kw_only=True):
    """A model on a GPU class, or at a provider.

    Attributes:
        name: `h100/llama-3.1-8b`, `api.openai/gpt-4o-mini`.
        model: its name in the pool.
        gpu_class: `h100`, `api.openai`.
        engine: how a worker asks for it: `vllm:llama-3.1-8b`, `openai:gpt-4o-mini`.
        tensor_parallel: GPUs that share the model.
        speed: None: not in the pool.
    """

    name: str
    model: str
    gpu_class: str
    engine: str
    price: Price
    speed: Speed | None = None
    tensor_parallel: int = 1

    @property
    def is_hosted(self) -> bool:
        """Whether workers of this deployment host it."""
        return not self.gpu_class.startswith(API)


def _step(value: Any) -> Any:
    if isinstance(value, Step):
        return value
    try:
        return msgspec.convert(value, Step)
    except (msgspec.ValidationError, ValueError) as error:
        raise ValueError(f"it is no step: {error}") from None


DegradingStep = Annotated[Step, PlainValidator(_step)]


class ModelPool(_Part):
    """The models, by name, and what may be used of them.

    Attributes:
        limits: of deployments, providers, models and tenants.
        degrading: what to give up under load, in this order.
    """

    version: Literal[1] = 1
    models: dict[Name, Model] = {}
    limits: Limits = Limits()
    degrading: tuple[DegradingStep, ...] = ()

    @field_validator("limits")
    @classmethod
    def _limits_what_there_is(cls, limits: Limits, info: ValidationInfo) -> Limits:
        """A limit of a name that nothing has would limit nothing, and nobody would see it."""
        models: dict[str, Model] = info.data.get("models", {})
        there = _deployments(models)
        for scope, names, known in (
            ("deployments", limits.deployments, [each.name for each in there]),
            ("providers", limits.providers, [each.gpu_class for each in there]),
            ("models", limits.models, list(models)),
        ):
            if unknown := sorted(names.keys() - {EACH, *known}):
                raise ValueError(f"{scope!r} has {unknown[0]!r}; {hint(unknown[0], tuple(known))}")
        return limits

    @field_validator("degrading")
    @classmethod
    def _asks_what_there_is(cls, steps: tuple[Step, ...], info: ValidationInfo) -> tuple[Step, ...]:
        models: dict[str, Model] = info.data.get("models", {})
        for step in steps:
            if step.model and step.model not in models:
                raise ValueError(f"the pool has no model {step.model!r}; {hint(step.model, models)}")
        return steps

    def model(self, name: str) -> Model:
        """A model.

        Raises:
            ConfigurationError: the pool has none of that name.
        """
        if (found := self.models.get(name)) is None:
            raise ConfigurationError(f"the model pool has no model {name!r}; {hint(name, self.models)}")
        return found

    @cached_property
    def capabilities(self) -> tuple[str, ...]:
        """What any of the models was measured at."""
        return tuple(sorted({name for model in self.models.values() for name in model.capabilities}))

    def capable(self, capability: str, *, min_quality: float = 0.0) -> list[str]:
        """The models that have a capability to that degree, the best first."""
        measured = {name: model.capabilities.get(capability) for name, model in self.models.items()}
        found = {
            name: share for name, share in measured.items() if share is not None and share >= min_quality
        }
        return sorted(found, key=lambda name: (-found[name], name))

    @cached_property
    def deployments(self) -> tuple[Deployment, ...]:
        """All that there may be, in the pool's order."""
        return _deployments(self.models)

    def spec(self, deployment: Deployment) -> dict[str, Any]:
        """The fields of the model spec of a worker that hosts a deployment.

        Raises:
            ConfigurationError: nobody hosts it, or the pool has no such model.
        """
        hosting = self.model(deployment.model).hosting
        if hosting is None or not deployment.is_hosted:
            raise ConfigurationError(f"{deployment.name!r} is a provider's; no worker can host it")
        return {
            **hosting.spec,
            "alias": deployment.model,
            "tensor_parallel": deployment.tensor_parallel,
        }


def hint(name: str, known: Mapping[str, Any] | tuple[str, ...]) -> str:
    """What to write in the place of a name that is not known; the end of a sentence."""
    if near := get_close_matches(name, list(known), n=1):
        return f"did you mean {near[0]!r}?"
    return f"there are: {', '.join(sorted(known))}" if known else "there are none"


def _deployments(models: Mapping[str, Model]) -> tuple[Deployment, ...]:
    return tuple(
        each for name, model in models.items() for each in (*_hosted(name, model), *_offered(name, model))
    )


def _hosted(name: str, model: Model) -> list[Deployment]:
    places = model.hosting.classes if model.hosting else {}
    return [
        Deployment(
            name=f"{gpu_class}/{name}",
            model=name,
            gpu_class=gpu_class,
            engine=f"{HOSTED}:{name}",
            price=place.price or model.price,
            speed=place.speed,
            tensor_parallel=place.tensor_parallel,
        )
        for gpu_class, place in places.items()
    ]


def _offered(name: str, model: Model) -> list[Deployment]:
    return [
        Deployment(
            name=f"{API}{offer.provider}/{name}",
            model=name,
            gpu_class=API + offer.provider,
            engine=f"{offer.engine}:{offer.model}",
            price=offer.price or model.price,
            speed=offer.speed,
        )
        for offer in model.providers
    ]


def pool_path() -> Path:
    """The file of the pool: what MOSAIC_MODELS names, or the one that ships."""
    if (named := settings().models) is not None:
        return named
    return _BESIDE if _BESIDE.exists() else _BESIDE.parents[1] / _BESIDE.name


def pool(path: Path | None = None) -> ModelPool:
    """The model pool in a file, read again only when the file was written since.

    A file that cannot be used any more changes nothing in a process that has read it: calls under way need its limits.

    Args:
        path: default: what MOSAIC_MODELS names, or the pool that ships.

    Raises:
        ConfigurationError: it cannot be read, or says what it must not: file, line and field of each problem.
    """
    file = (path or pool_path()).absolute()
    return _read(file, _written_ns(file))


def _written_ns(file: Path) -> int:
    """When the file was written; 0 where that is not to be seen, of which reading it tells the reason."""
    try:
        return file.stat().st_mtime_ns
    except OSError:
        return 0


_usable: dict[Path, ModelPool] = {}


@lru_cache(maxsize=8)
def _read(path: Path, mtime_ns: int) -> ModelPool:  # noqa: ARG001
    try:
        _usable[path] = read_model(path, ModelPool, kind="model pool")
    except ConfigurationError as error:
        if path not in _usable:
            raise
        log.error("pool.unusable", what="the model pool stays as it was", error=str(error))
    return _usable[path]


__all__ = [
    "API",
    "Deployment",
    "Hosting",
    "Model",
    "ModelPool",
    "Offer",
    "Place",
    "Price",
    "Size",
    "Speed",
    "hint",
    "pool",
    "pool_path",
]
