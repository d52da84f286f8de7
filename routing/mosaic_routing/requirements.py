"""What an agent needs of whatever answers for it, and which deployments of the model pool have that.

A `Requirement` is a value that becomes part of a plan. `match` splits the deployments into those that satisfy it and
those that miss it, with each reason; `explain_misses` tells people, the nearest misses first. Nothing here looks at the
world: the pool, the GPU classes and the providers that there are come as arguments.

A property of a GPU (memory, architecture, formats) is never satisfied by a provider: it tells nothing of its hardware.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal

import msgspec

from mosaic_routing.classes import ARCHITECTURES, CLASSES, CPU, FORMATS, GpuClass, gpu_class
from mosaic_routing.memory import GIB, kv_bytes, plan
from mosaic_routing.pool import API, Deployment, Hosting, Model, ModelPool, Size, hint
from mosaic_routing.speeds import speed_of

Classes = Mapping[str, GpuClass | None]
"""GPU classes that there are, by name; None: nothing but the name is known."""

Amount = Annotated[float, msgspec.Meta(ge=0)]
Count = Annotated[int, msgspec.Meta(ge=0)]
Part = Literal["class", "model", "both"]

_LISTS = ("architecture", "formats", "near", "classes", "excluded")
_OF_A_GPU = ("min_memory_gb", "architecture", "min_compute_capability", "formats", "memory")
_NEAREST = 3
_OTHER, _ABSENT, _BARRED, _UNKNOWN = 1.0, 2.0, 3.0, 4.0
"""How far off is what cannot be counted: another kind than asked for, a machine that is not there, a place that the
requirement itself rules out, hardware of which nothing is known."""


class MemoryNeed(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Memory that a call needs, by the length of its input; it goes before what the model's configuration tells.

    Attributes:
        base_gb: weights, and all else that does not depend on the input.
        gb_per_1k_tokens: of input and output.
    """

    base_gb: Amount = 0.0
    gb_per_1k_tokens: Amount = 0.0

    def needed_gb(self, tokens: float) -> float:
        """For so many tokens of input and output."""
        return self.base_gb + self.gb_per_1k_tokens * tokens / 1000


class Requirement(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What an agent needs. Whatever is left out does not matter to it.

    Attributes:
        model: its name in the model pool.
        capability: what the model was measured at, such as `math`.
        min_quality: measured share of right answers, at least.
        min_memory_gb: memory of each GPU, at least.
        architecture: of the GPU, one of these: `hopper`.
        min_compute_capability: NVIDIA's, at least: 8.9.
        formats: numbers that the GPU must compute with, all of them: `fp8`.
        latency_s: from the call to the last token, on a deployment where nothing else runs.
        memory: as a function of the input's length; default: by the model's configuration.
        input_tokens, output_tokens: the most to expect; 0: nobody knows.
        near: agents of the workflow whose machine, or at least whose class, it wants to share.
        classes: none but these: `h100`, `api.openai`; `api` stands for all providers.
        excluded: none of these.
        max_price: US dollars for a million tokens, of input and of output, at most.
    """

    model: str = ""
    capability: str = ""
    min_quality: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0
    min_memory_gb: Amount = 0.0
    architecture: tuple[str, ...] = ()
    min_compute_capability: Amount = 0.0
    formats: tuple[str, ...] = ()
    latency_s: Annotated[float, msgspec.Meta(gt=0)] | None = None
    memory: MemoryNeed | None = None
    input_tokens: Count = 0
    output_tokens: Count = 0
    near: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    max_price: Amount | None = None

    def __str__(self) -> str:
        """As it was written: `min_memory_gb 80, classes l4`."""
        return ", ".join(
            f"{name} {_shown(value)}" for name, value in msgspec.to_builtins(self).items() if name != "near"
        )

    @property
    def tokens(self) -> int:
        """Of input and output."""
        return self.input_tokens + self.output_tokens

    @property
    def needs_gpu(self) -> bool:
        """Whether it asks for a property of a GPU."""
        return any(getattr(self, name) for name in _OF_A_GPU)


class Shortfall(msgspec.Struct, frozen=True):
    """One thing that a deployment lacks.

    Attributes:
        field: of the requirement.
        part: what lacks it: the GPU class, the model, or both together.
        distance: how far it is off: a share of what is needed, or 1 and more for what cannot be counted.
        told: what it has of what is needed: `24 GB of the 30 GB needed`.
    """

    field: str
    part: Part
    distance: float
    told: str


class Miss(msgspec.Struct, frozen=True):
    """A deployment that does not satisfy a requirement, or a GPU class that none of the models may run on.

    Attributes:
        model: empty: of a class without any.
    """

    gpu_class: str
    model: str
    shortfalls: tuple[Shortfall, ...]

    @property
    def distance(self) -> float:
        """How far it is off, all together."""
        return sum(each.distance for each in self.shortfalls)

    @property
    def label(self) -> str:
        """What is to blame: a GPU class, a model, or that model on that class."""
        parts = {each.part for each in self.shortfalls}
        if parts == {"class"} or not self.model:
            return self.gpu_class
        return self.model if parts == {"model"} else f"{self.gpu_class}/{self.model}"

    def __str__(self) -> str:
        return f"{self.label} ({' and '.join(each.told for each in self.shortfalls)})"


class Match(msgspec.Struct, frozen=True):
    """The deployments of a pool, by whether they satisfy a requirement.

    Attributes:
        satisfying: in the pool's order.
        misses: the nearest first.
    """

    satisfying: tuple[Deployment, ...]
    misses: tuple[Miss, ...]


def read_requirement(data: Any) -> Requirement:
    """A requirement as people write it: one text may stand where a list of them is expected.

    Raises:
        ValueError: it is none, or contradicts itself in a way that no pool and no machine could mend.
    """
    if not isinstance(data, Mapping):
        raise ValueError(
            f"{data!r} is no requirement; write for example {{capability: math, min_quality: 0.8}}"
        )
    fields = Requirement.__struct_fields__
    for name in data:
        if name not in fields:
            raise ValueError(f"a requirement has no field {name!r}; {hint(str(name), fields)}")
    listed = {
        name: [value] if name in _LISTS and isinstance(value, str) else value for name, value in data.items()
    }
    try:
        found = msgspec.convert(listed, Requirement)
    except msgspec.ValidationError as error:
        raise ValueError(f"a requirement cannot be read: {error}") from None
    if wrong := next(_wrong(found), None):
        raise ValueError(wrong)
    return found


def _wrong(found: Requirement) -> Iterator[str]:
    for part in (found, found.memory or MemoryNeed()):
        for name in part.__struct_fields__:
            value = getattr(part, name)
            if isinstance(value, float) and not math.isfinite(value):
                yield f"{name} is {value!r}; write a number"
    if found.min_quality and not found.capability:
        yield f"min_quality {found.min_quality:g} says nothing without a capability; add 'capability'"
    for name in found.architecture:
        if name not in ARCHITECTURES:
            yield f"there is no GPU architecture {name!r}; {hint(name, ARCHITECTURES)}"
    for name in found.formats:
        if name not in FORMATS:
            yield f"there is no number format {name!r}; {hint(name, FORMATS)}"
    if both := set(found.classes) & set(found.excluded):
        yield f"{min(both)!r} stands in 'classes' and in 'excluded'; leave it in one of them"
    if found.memory and found.memory.gb_per_1k_tokens and not found.tokens:
        yield "gb_per_1k_tokens says nothing without a length; add 'input_tokens', the longest to expect"


def problems(requirement: Requirement, pool: ModelPool, classes: Classes = CLASSES) -> list[str]:
    """Why no fleet at all could satisfy a requirement; empty: some could.

    Args:
        classes: those that a fleet may have, beside the ones that the pool names.
    """
    named = {each.gpu_class: gpu_class(each.gpu_class) for each in pool.deployments if each.is_hosted}
    known = {**named, **classes}
    if unknown := list(_unknown(requirement, pool, known)):
        return unknown
    found = match(requirement, pool, known)
    return [] if found.satisfying else [explain_misses(requirement, found, anywhere=True)]


def _unknown(requirement: Requirement, pool: ModelPool, classes: Classes) -> Iterator[str]:
    known = dict.fromkeys([*classes, *(each.gpu_class for each in pool.deployments), API.rstrip(".")])
    if requirement.model and requirement.model not in pool.models:
        yield f"the model pool has no model {requirement.model!r}; {hint(requirement.model, pool.models)}"
    if requirement.capability and requirement.capability not in pool.capabilities:
        told = hint(requirement.capability, pool.capabilities)
        yield f"no model of the pool was measured at {requirement.capability!r}; {told}"
    for name in (*requirement.classes, *requirement.excluded):
        if name not in known:
            yield f"there is no GPU class and no provider {name!r}; {hint(name, known)}"


def match(
    requirement: Requirement,
    pool: ModelPool,
    classes: Classes,
    *,
    providers: Collection[str] | None = None,
) -> Match:
    """Which deployments satisfy a requirement, and what the others lack.

    Args:
        classes: the GPU classes that there are.
        providers: the providers that there are, `openai`; None: all.

    Raises:
        ConfigurationError: the pool lacks the model that it names.
    """
    if requirement.model:
        pool.model(requirement.model)
    candidates = [each for each in pool.deployments if requirement.model in ("", each.model)]
    lacking = [(each, tuple(_shortfalls(requirement, each, pool, classes, providers))) for each in candidates]
    misses = [Miss(each.gpu_class, each.model, lacks) for each, lacks in lacking if lacks]
    misses += _unused(requirement, candidates, classes)
    nearest = sorted(misses, key=lambda miss: (miss.distance, miss.gpu_class, miss.model))
    return Match(tuple(each for each, lacks in lacking if not lacks), tuple(nearest))


def explain_misses(requirement: Requirement, found: Match, *, anywhere: bool = False) -> str:
    """One sentence that says what cannot be had, and what comes nearest.

    Args:
        anywhere: the match was with all GPU classes and providers that are known, not with those of a fleet.
    """
    if not any(miss.model for miss in found.misses):
        return (
            f"the model pool is empty, so nothing satisfies {_wish(requirement)}; add a model (MOSAIC_MODELS)"
        )
    nearest = list(dict.fromkeys(str(miss) for miss in found.misses))[:_NEAREST]
    return f"{_subject(requirement, found, anywhere=anywhere)}; nearest misses: {', '.join(nearest)}"


def _subject(requirement: Requirement, found: Match, *, anywhere: bool) -> str:
    lacking = [{each.field for each in miss.shortfalls} for miss in found.misses if miss.model]
    if anywhere and not set.intersection(*lacking):
        return f"these requirements contradict each other: {requirement}"
    kind = "GPU class" if requirement.needs_gpu else "model"
    place = "" if anywhere else " here"
    return f"no {kind}{place} satisfies {_wish(requirement)}"


def _wish(requirement: Requirement) -> str:
    return str(requirement) or "an agent that asks for nothing"


def _shortfalls(
    requirement: Requirement,
    deployment: Deployment,
    pool: ModelPool,
    classes: Classes,
    providers: Collection[str] | None,
) -> Iterator[Shortfall]:
    model, name = pool.model(deployment.model), deployment.gpu_class
    gpu = classes[name] if name in classes else gpu_class(name)
    yield from _of_presence(deployment, classes, providers)
    yield from _of_class(requirement, name, gpu)
    yield from _of_model(requirement, model)
    yield from _of_price(requirement, deployment)
    if gpu is not None:
        yield from _of_formats(model, gpu)
        yield from _of_memory(requirement, deployment, model.hosting, gpu)
    yield from _of_latency(requirement, deployment, pool, gpu)


def _of_presence(
    deployment: Deployment, classes: Classes, providers: Collection[str] | None
) -> Iterator[Shortfall]:
    name = deployment.gpu_class
    if deployment.is_hosted and name not in classes:
        yield Shortfall("classes", "class", _ABSENT, "there is no such machine")
    if not deployment.is_hosted and providers is not None and name.removeprefix(API) not in providers:
        yield Shortfall("classes", "class", _ABSENT, "no worker asks this provider")


def _of_class(requirement: Requirement, name: str, gpu: GpuClass | None) -> Iterator[Shortfall]:
    """What a GPU class lacks, whatever runs on it."""
    if requirement.classes and not _is_among(name, requirement.classes):
        told = f"not among the classes {_shown(requirement.classes)}"
        yield Shortfall("classes", "class", _BARRED, told)
    if _is_among(name, requirement.excluded):
        yield Shortfall("excluded", "class", _BARRED, "it is excluded")
    if gpu is not None:
        yield from _of_gpu(requirement, gpu)
    elif asked := [field for field in _OF_A_GPU if getattr(requirement, field)]:
        yield Shortfall(asked[0], "class", _UNKNOWN, _unknown_hardware(name))


def _unknown_hardware(name: str) -> str:
    if name == CPU:
        return "it has no GPU"
    if name.startswith(API):
        return "a provider tells nothing of its hardware"
    return "nothing is known of its GPUs"


def _is_among(name: str, names: Iterable[str]) -> bool:
    return any(name == each or (name.startswith(API) and f"{each}." == API) for each in names)


def _of_gpu(requirement: Requirement, gpu: GpuClass) -> Iterator[Shortfall]:
    needed = requirement.min_memory_gb
    if gpu.memory_gb < needed:
        yield _too_little("min_memory_gb", "class", gpu.memory_gb, needed, unit=" GB")
    if requirement.architecture and gpu.architecture not in requirement.architecture:
        told = f"{gpu.architecture}, not {' or '.join(requirement.architecture)}"
        yield Shortfall("architecture", "class", _OTHER, told)
    yield from _of_capability(requirement.min_compute_capability, gpu)
    if missing := [name for name in requirement.formats if name not in gpu.formats]:
        yield Shortfall("formats", "class", _OTHER, f"it has no {' and no '.join(missing)}")


def _of_capability(needed: float, gpu: GpuClass) -> Iterator[Shortfall]:
    if not needed:
        return
    if gpu.compute_capability is None:
        yield Shortfall("min_compute_capability", "class", _OTHER, f"{gpu.vendor} has no compute capability")
        return
    major, minor = gpu.compute_capability
    if (has := major + minor / 10) < needed:
        yield _too_little("min_compute_capability", "class", has, needed, before="compute capability ")


def _of_model(requirement: Requirement, model: Model) -> Iterator[Shortfall]:
    """What a model lacks, wherever it runs."""
    if wanted := requirement.capability:
        quality, least = model.capabilities.get(wanted), requirement.min_quality
        if quality is None:
            yield Shortfall("capability", "model", _OTHER, f"nobody measured it at {wanted}")
        elif quality < least:
            yield _too_little("capability", "model", quality, least, before=f"{wanted} ")
    if requirement.tokens > model.context_tokens:
        has, needed = model.context_tokens, requirement.tokens
        yield _too_little("input_tokens", "model", has, needed, unit=" tokens", before="a context of ")


def _of_price(requirement: Requirement, deployment: Deployment) -> Iterator[Shortfall]:
    price, most = max(deployment.price.input, deployment.price.output), requirement.max_price
    if most is not None and price > most:
        told = f"{price:g} dollars a million tokens, and {most:g} allowed"
        yield Shortfall("max_price", "both", (price - most) / price, told)


def _of_formats(model: Model, gpu: GpuClass) -> Iterator[Shortfall]:
    if model.formats and not gpu.formats.intersection(model.formats):
        yield Shortfall("formats", "both", _OTHER, f"the model needs {' or '.join(model.formats)}")


def _of_memory(
    requirement: Requirement, deployment: Deployment, hosting: Hosting | None, gpu: GpuClass
) -> Iterator[Shortfall]:
    """Whether the model fits, with one request of the expected length."""
    shared = deployment.tensor_parallel
    if requirement.memory is not None:
        has, needed = gpu.memory_gb * shared, requirement.memory.needed_gb(requirement.tokens)
        if has < needed:
            yield _too_little("memory", "both", has, needed, unit=" GB")
    elif hosting is not None and hosting.size is not None:
        yield from _of_weights(max(requirement.tokens, 1), hosting, hosting.size, gpu, shared)


def _of_weights(
    tokens: int, hosting: Hosting, size: Size, gpu: GpuClass, tensor_parallel: int
) -> Iterator[Shortfall]:
    available = int(hosting.usable_gb(gpu.memory_gb) * GIB)
    types: dict[str, Any] = {"dtype": hosting.dtype, "kv_dtype": hosting.kv_dtype}
    cache = kv_bytes(hosting.config, tokens, tensor_parallel=tensor_parallel, **types)
    needed = size.weight_bytes / tensor_parallel + cache
    if needed > available:
        told = plan(
            hosting.config,
            available_bytes=available,
            max_length=tokens,
            quantization=hosting.quantization,
            tensor_parallel=tensor_parallel,
            **types,
        ).message
        yield Shortfall("input_tokens", "both", 1 - available / needed, told.partition(";")[0])


def _of_latency(
    requirement: Requirement, deployment: Deployment, pool: ModelPool, gpu: GpuClass | None
) -> Iterator[Shortfall]:
    needed = requirement.latency_s
    speed = speed_of(deployment, pool, gpu) if needed is not None else None
    if speed is None or needed is None:
        return
    takes = speed.latency_s(input_tokens=requirement.input_tokens, output_tokens=requirement.output_tokens)
    if takes > needed:
        told = f"{takes:.3g} s, and {needed:g} s allowed"
        yield Shortfall("latency_s", "both", (takes - needed) / takes, told)


def _unused(requirement: Requirement, candidates: Collection[Deployment], classes: Classes) -> Iterator[Miss]:
    """The GPU classes that none of the models may run on."""
    used, model = {each.gpu_class for each in candidates}, requirement.model or "a model"
    reason = Shortfall("model", "class", _OTHER, f"the pool does not say that {model} may run there")
    for name, gpu in classes.items():
        if name not in used:
            yield Miss(name, "", (reason, *_of_class(requirement, name, gpu)))


def _too_little(
    field: str, part: Part, has: float, needed: float, *, unit: str = "", before: str = ""
) -> Shortfall:
    told = f"{before}{_number(has)}{unit} of the {_number(needed)}{unit} needed"
    return Shortfall(field, part, (needed - has) / needed, told)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,.4g}"


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return " + ".join(f"{name} {_shown(part)}" for name, part in value.items())
    if isinstance(value, (list, tuple)):
        return " or ".join(str(part) for part in value)
    return value if isinstance(value, str) else _number(value)


__all__ = [
    "Classes",
    "Match",
    "MemoryNeed",
    "Miss",
    "Requirement",
    "Shortfall",
    "explain_misses",
    "match",
    "problems",
    "read_requirement",
]
