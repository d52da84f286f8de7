"""What `mosaic doctor` judges. Pure: facts in, verdicts with advice out."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from mosaic_routing.serving import unhosted, worker_commands
from mosaic_tasks.inspection.wording import counted, listed

if TYPE_CHECKING:
    from mosaic_queues.connection import Clock, ServerFacts
    from mosaic_queues.liveness import LiveProcess
    from mosaic_routing.inventory import EngineReport

Level = Literal["ok", "warn", "fail"]

MINIMUM_SERVER = (6, 2)
MAX_SKEW_MS = 1_000
LITTLE_SPACE_BYTES = 1 << 30
NO_SPACE_BYTES = 100 << 20
NEARLY_FULL = 0.9
_NEEDED_FLAG = "extra"
START_BEAT = "celery -A mosaic_tasks.app beat"


class Check(NamedTuple):
    """One verdict; `advice` says what to do about it."""

    name: str
    level: Level
    text: str
    advice: str = ""


def worst(checks: Iterable[Check]) -> Level:
    """The gravest level."""
    levels = {check.level for check in checks}
    return "fail" if "fail" in levels else "warn" if "warn" in levels else "ok"


def check_server(facts: ServerFacts, where: str) -> list[Check]:
    """Version, eviction, memory and persistence of a server that answers."""
    return [_version(facts, where), _eviction(facts), _memory(facts), _persistence(facts)]


def _version(facts: ServerFacts, where: str) -> Check:
    text = f"{facts.flavour} {facts.flavour_version} at {where}"
    if facts.version < MINIMUM_SERVER:
        return Check("server", "fail", text, "upgrade it: Redis 6.2 or later, or Valkey, is needed")
    return Check("server", "ok", text)


def _eviction(facts: ServerFacts) -> Check:
    text = f"maxmemory-policy is {facts.maxmemory_policy}"
    if facts.maxmemory_policy == "noeviction":
        return Check("eviction", "ok", text)
    advice = "set maxmemory-policy to noeviction, or a full server drops queues and runs"
    return Check("eviction", "fail" if facts.maxmemory_bytes else "warn", text, advice)


def _memory(facts: ServerFacts) -> Check:
    used, limit = facts.used_memory_bytes, facts.maxmemory_bytes
    if not limit:
        return Check("memory", "ok", f"{size(used)} used, no limit")
    text = f"{size(used)} used of {size(limit)} (maxmemory)"
    advice = "raise maxmemory, or keep less: lower MOSAIC_RETENTION_S or MOSAIC_REDIS_BYTES"
    if used >= limit:
        return Check("memory", "fail", f"{text}: the server takes nothing more, runs stand still", advice)
    level: Level = "warn" if used > limit * NEARLY_FULL else "ok"
    return Check("memory", level, text, advice if level == "warn" else "")


def _persistence(facts: ServerFacts) -> Check:
    if facts.aof_enabled:
        return Check("persistence", "ok", "the append-only file is on")
    advice = "set appendonly to yes, or a restart of the server loses runs"
    return Check("persistence", "warn", "the append-only file is off", advice)


def check_clock(clock: Clock) -> Check:
    """How fast the server answers, and whether its clock and ours agree."""
    skew = f"the server's clock differs by {abs(clock.skew_ms):.0f} ms"
    text = f"{skew}, it answers in {clock.round_trip_ms:.2f} ms"
    if abs(clock.skew_ms) <= MAX_SKEW_MS:
        return Check("clock", "ok", text)
    return Check("clock", "warn", text, "synchronise both machines (NTP), or times shown here are wrong")


def check_right(what: str, refusal: str) -> Check:
    """A check that could not be made, since the server's user may not ask.

    Args:
        what: is not known therefore.
        refusal: what the server said, which names the command.
    """
    command = re.search(r"'(\S+)' command", refusal)
    right = f"+{command[1]}" if command else "~PATTERN of the keys"
    return Check("rights", "fail", f"cannot look at {what}: {refusal}", f"allow it: ACL SETUSER USER {right}")


def check_packages(requirements: Iterable[str], version_of: Callable[[str], str | None]) -> Check:
    """Whether the installed versions are those that this package asks for.

    Args:
        requirements: as package metadata writes them.
        version_of: the installed version of a package, None where it is missing.
    """
    from packaging.requirements import Requirement

    wrong, seen = [], []
    for requirement in map(Requirement, requirements):
        if requirement.marker is not None and not requirement.marker.evaluate({_NEEDED_FLAG: ""}):
            continue
        version = version_of(requirement.name)
        if version is None or not requirement.specifier.contains(version, prereleases=True):
            wrong.append(
                f"{requirement.name} {version or 'is missing'} (needed: {requirement.specifier or 'any'})"
            )
        elif requirement.name in ("celery", "kombu", "redis"):
            seen.append(f"{requirement.name} {version}")
    if wrong:
        return Check(
            "packages", "fail", "; ".join(wrong), "install again: python -m pip install mosaic-tasks"
        )
    return Check("packages", "ok", listed(seen))


def check_workers(processes: Sequence[LiveProcess]) -> Check:
    """Who works."""
    workers = [process for process in processes if process.queues]
    if not workers:
        return Check("workers", "warn", "no worker is alive", "start one with: mosaic worker")
    names = listed([f"{process.host}/{process.pid} ({', '.join(process.queues)})" for process in workers])
    return Check("workers", "ok", f"{counted(len(workers), 'worker')}: {names}")


def check_beat(schedules: int, *, runs: bool) -> list[Check]:
    """Who starts what is due; nothing where there are no schedules."""
    if not schedules:
        return []
    there = counted(schedules, "schedule")
    if runs:
        return [Check("beat", "ok", f"one runs, for {there}")]
    return [Check("beat", "warn", f"none runs, so {there} start nothing", f"start one: {START_BEAT}")]


def check_queues(waiting: Mapping[str, int], processes: Iterable[LiveProcess]) -> list[Check]:
    """Whether each queue with waiting calls has a worker.

    Args:
        waiting: how many calls of unfinished runs wait in each queue.
    """
    served = {queue for process in processes for queue in process.queues}
    unserved = {queue: calls for queue, calls in sorted(waiting.items()) if queue not in served}
    if not waiting:
        return [Check("queues", "ok", "no call waits")]
    if not unserved:
        return [Check("queues", "ok", f"{counted(len(waiting), 'queue')} with waiting calls, all served")]
    return [
        Check(
            "queues",
            "fail",
            f"no worker serves {queue!r}, where {counted(calls, 'call')} of unfinished runs "
            f"{'waits' if calls == 1 else 'wait'}",
            f"start one with: {worker_commands([queue])}",
        )
        for queue, calls in unserved.items()
    ]


def check_engines(reports: Sequence[EngineReport]) -> list[Check]:
    """Whether each queue of hosted models leads to one model."""
    shared: dict[str, list[EngineReport]] = {}
    for report in reports:
        for queue in report.queues:
            shared.setdefault(queue, []).append(report)
    mixed = {queue: found for queue, found in sorted(shared.items()) if len(_fingerprints(found)) > 1}
    if not mixed:
        models = sorted({report.model for report in reports})
        told = f"{counted(len(reports), 'engine')}: {listed(models)}" if models else "no model is hosted"
        return [Check("engines", "ok", told)]
    return [_mixed(queue, found) for queue, found in mixed.items()]


def _fingerprints(reports: Iterable[EngineReport]) -> set[str]:
    return {report.fingerprint for report in reports}


def _mixed(queue: str, reports: Sequence[EngineReport]) -> Check:
    hosts = listed([f"{report.holder} (model {report.model!r}, {report.fingerprint})" for report in reports])
    return Check(
        "engines",
        "fail",
        f"the workers {hosts} serve the queue {queue!r} with models that differ: either may answer a call",
        "give one of the models another alias, or start these workers with the same settings",
    )


def check_hosting(processes: Iterable[LiveProcess], reports: Sequence[EngineReport]) -> list[Check]:
    """Whether each worker hosts the models whose queues it serves: it fails their calls otherwise."""
    hosting = {report.holder: report.queues for report in reports}
    found = [(process, unhosted(process.queues, hosting.get(process.name, ()))) for process in processes]
    return [
        Check(
            "hosting",
            "fail",
            f"the worker {process.host}/{process.pid} serves {listed([repr(queue) for queue in wrong])} and hosts "
            "no such model, or is ending",
            f"stop it, and start instead: {worker_commands(wrong)}",
        )
        for process, wrong in found
        if wrong
    ]


def check_space(place: str, free_bytes: int) -> Check:
    """Whether large payloads still have room."""
    text = f"{size(free_bytes)} free at {place}"
    if free_bytes >= LITTLE_SPACE_BYTES:
        return Check("space", "ok", text)
    level: Level = "fail" if free_bytes < NO_SPACE_BYTES else "warn"
    return Check("space", level, text, "free space there, or set MOSAIC_OBJECT_STORE to another place")


def size(count: int) -> str:
    """A number of bytes for people."""
    unit, name = (1 << 30, "GiB") if count >= 1 << 30 else (1 << 20, "MiB")
    return f"{count / unit:.1f} {name}"
