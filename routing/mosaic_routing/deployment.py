"""Whether a topology and the model pool fit together, and what each group of workers then serves: pure.

A *contradiction* is what no worker could do, or what two workers would do differently: a class that is none, a model
that does not fit on its GPUs, a queue of a model that the group does not host. A *gap* is what nobody does: agents may
ask for it, and would wait.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec

from mosaic_queues.errors import ConfigurationError
from mosaic_queues.topology import Topology, WorkerGroup
from mosaic_routing.classes import CLASSES, CPU, gpu_class
from mosaic_routing.pool import API, Deployment, ModelPool, hint
from mosaic_routing.queues import API_PREFIX, GPU_PREFIX, hosting_queues
from mosaic_routing.requirements import Requirement, match
from mosaic_routing.serving import hosted_model, unhosted, untakable

SIMULATED = "simulated"
"""Stands where a model stands in the pool's spec of one that simulated GPUs answer for."""
NOTHING: Mapping[str, Any] = MappingProxyType({})


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something that does not fit.

    Attributes:
        told: what, and what to do about it.
        group: that it is about; empty: about several.
    """

    told: str
    group: str = ""

    def __str__(self) -> str:
        return f"group {self.group!r}: {self.told}" if self.group else self.told


class Served(msgspec.Struct, frozen=True):
    """A queue, and the groups of workers that serve it."""

    queue: str
    groups: tuple[str, ...]
    model: str = ""


class Gap(msgspec.Struct, frozen=True):
    """A model of the pool that no group answers for: agents that name it would wait.

    Attributes:
        queues: to serve one of these would mend it.
    """

    model: str
    queues: tuple[str, ...]


class Report(msgspec.Struct, frozen=True):
    """What `check` found."""

    contradictions: tuple[Problem, ...]
    gaps: tuple[Gap, ...]


def queues_of(group: WorkerGroup) -> tuple[str, ...]:
    """All that each worker of a group serves, its direct queue aside."""
    hosting = [queue for model in group.models for queue in hosting_queues(group.gpu_class, model)]
    return tuple(dict.fromkeys((*group.queues, *hosting)))


def served(topology: Topology) -> tuple[Served, ...]:
    """By queue, who serves it; in the order of the topology."""
    groups: dict[str, list[str]] = defaultdict(list)
    for group in topology.workers:
        for queue in queues_of(group):
            groups[queue].append(group.name)
    return tuple(Served(queue, tuple(names), hosted_model(queue) or "") for queue, names in groups.items())


def gpus_of(group: WorkerGroup, pool: ModelPool) -> int:
    """GPUs of one worker: what the topology says, or else what its models need; 0 where it has none."""
    if group.gpus or group.gpu_class == CPU:
        return group.gpus
    return sum(found.tensor_parallel for found in _deployments(group, pool))


def specs_of(
    models: Sequence[str], name: str, pool: ModelPool, *, gpus: int = 0, options: Mapping[str, Any] = NOTHING
) -> list[dict[str, Any]]:
    """The fields of the model specs of a worker that hosts models of the pool.

    Args:
        name: GPU class.
        gpus: of the worker; 0: as many as the models need. Where there are enough, each model has GPUs of its own.
        options: arguments of the engine.

    Raises:
        ConfigurationError: the pool lacks a model, or does not have it on this class.
    """
    found = [hosted_on(model, name, pool) for model in models]
    specs = [_with_options(pool.spec(each), options) for each in found]
    needed = sum(each.tensor_parallel for each in found)
    is_apart = name != CPU and len(specs) > 1 and needed <= (gpus or needed)
    return _apart(specs) if is_apart else specs


def hosted_on(model: str, name: str, pool: ModelPool) -> Deployment:
    """A model of the pool on a GPU class.

    Raises:
        ConfigurationError: the pool lacks it, or does not have it there.
    """
    hosting = pool.model(model).hosting
    if (found := _deployment(model, name, pool)) is None:
        raise ConfigurationError(_nowhere(model, name, hosting.classes if hosting else ()))
    return found


def check(topology: Topology, pool: ModelPool) -> Report:
    """All contradictions between them, and all gaps."""
    wrong = [Problem(told, group.name) for group in topology.workers for told in _wrong(group, pool)]
    wrong += [Problem(told) for told in _unlike(topology.workers)]
    return Report(tuple(wrong), tuple(_gaps(topology, pool)))


def _wrong(group: WorkerGroup, pool: ModelPool) -> Iterator[str]:
    """What no worker of a group could do."""
    yield from _of_class(group, pool)
    yield from _of_queues(group)
    for model in group.models:
        yield from _of_model(group, model, pool)
    yield from _of_gpus(group, pool)


def _of_class(group: WorkerGroup, pool: ModelPool) -> Iterator[str]:
    name = group.gpu_class
    named = [each.gpu_class for each in pool.deployments if each.is_hosted]
    if name != CPU and gpu_class(name) is None and name not in named:
        yield f"there is no GPU class {name!r}; {hint(name, tuple(dict.fromkeys((CPU, *CLASSES, *named))))}"


def _of_queues(group: WorkerGroup) -> Iterator[str]:
    hosting = [queue for model in group.models for queue in hosting_queues(group.gpu_class, model)]
    for queue in unhosted(group.queues, hosting):
        yield (
            f"it cannot serve the queue {queue!r}, since it does not host the model {hosted_model(queue)!r} on its "
            f"class {group.gpu_class!r}; leave it out, or add the model to 'models'"
        )
    yield from untakable(group.queues)


def _of_model(group: WorkerGroup, model: str, pool: ModelPool) -> Iterator[str]:
    if (known := pool.models.get(model)) is None:
        yield f"the model pool has no model {model!r}; {hint(model, pool.models)}"
        return
    name, hosting = group.gpu_class, known.hosting
    if hosting is None or name not in hosting.classes:
        yield _nowhere(model, name, hosting.classes if hosting else ())
        return
    if hosting.spec.get("model") == SIMULATED:
        yield (
            f"{model!r} is simulated, and a group hosts real models alone; start its workers by hand, with a file that "
            f"says 'simulated: true': mosaic worker --class {name} --model FILE.yaml"
        )
        return
    gpu = gpu_class(name)
    found = match(Requirement(model=model, classes=(name,)), pool, {name: gpu})
    for miss in found.misses:
        if gpu is not None and (miss.gpu_class, miss.model) == (name, model):
            told = " and ".join(each.told for each in miss.shortfalls)
            yield f"the class {name!r} cannot host {model!r}: {told}; take a larger class, or a higher tensor_parallel"


def _nowhere(model: str, name: str, classes: Iterable[str]) -> str:
    told = ", ".join(classes)
    if not told:
        return f"no worker can host {model!r}: the pool has providers of it only; name their queues instead"
    return f"the pool does not say that {model!r} may run on {name!r}; it may on {told}"


def _of_gpus(group: WorkerGroup, pool: ModelPool) -> Iterator[str]:
    """Whether the GPUs of one worker do for its models."""
    found, gpu = _deployments(group, pool), gpu_class(group.gpu_class)
    most = max((each.tensor_parallel for each in found), default=0)
    if not group.gpus or group.gpu_class == CPU:
        return
    if most > group.gpus:
        yield f"its models need {most} GPUs of a worker, and it has {group.gpus}; raise 'gpus'"
    elif gpu is not None and sum(each.tensor_parallel for each in found) > group.gpus:
        hosts = (pool.model(model).hosting for model in group.models)
        taken = sum(hosting.usable_gb(gpu.memory_gb) for hosting in hosts if hosting is not None)
        if taken > gpu.memory_gb:
            yield (
                f"its models share GPUs, and would take {taken:.4g} of {gpu.memory_gb:g} GB of one; give it "
                f"{sum(each.tensor_parallel for each in found)} GPUs, or the models a 'memory_gb' in the pool"
            )


def _unlike(groups: Sequence[WorkerGroup]) -> Iterator[str]:
    """Groups that host one model in ways that answer differently: a call in the model's queue would be answered by
    either."""
    hosts: dict[str, list[WorkerGroup]] = defaultdict(list)
    for group in groups:
        for model in group.models:
            hosts[model].append(group)
    for model, hosting in hosts.items():
        if other := next((each for each in hosting[1:] if each.options != hosting[0].options), None):
            yield (
                f"the groups {hosting[0].name!r} and {other.name!r} serve the queue {GPU_PREFIX + model!r} with "
                "different options, so that calls would be answered by either; give them the same, or add the model "
                "to the pool under another name"
            )


def _gaps(topology: Topology, pool: ModelPool) -> Iterator[Gap]:
    queues = {each.queue for each in served(topology)}
    for model in pool.models:
        places = [each.gpu_class for each in pool.deployments if each.model == model]
        named = tuple(_queue_at(model, place) for place in places)
        if not queues.intersection(named):
            yield Gap(model, named)


def _queue_at(model: str, place: str) -> str:
    """Where a model's calls go on a GPU class, or at a provider."""
    is_provider = place.startswith(API)
    return API_PREFIX + place.removeprefix(API) if is_provider else hosting_queues(place, model)[1]


def _deployments(group: WorkerGroup, pool: ModelPool) -> list[Deployment]:
    found = (_deployment(model, group.gpu_class, pool) for model in group.models)
    return [each for each in found if each is not None]


def _deployment(model: str, name: str, pool: ModelPool) -> Deployment | None:
    return next((each for each in pool.deployments if each.name == f"{name}/{model}"), None)


def _with_options(spec: dict[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    if not options:
        return spec
    return {**spec, "options": {**(spec.get("options") or {}), **options}}


def _apart(specs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each model with GPUs of its own."""
    placed, first = [], 0
    for spec in specs:
        last = first + spec["tensor_parallel"]
        placed.append({"gpus": list(range(first, last)), **spec})
        first = last
    return placed


__all__ = [
    "Gap",
    "Problem",
    "Report",
    "Served",
    "check",
    "gpus_of",
    "hosted_on",
    "queues_of",
    "served",
    "specs_of",
]
