"""What is known of experts, in the server: by tenant and scope, for all processes.

A scope is what experts are asked about: the capability by which a mixture chooses them, or `WORKFLOW/NODE` where it
names them. All keys of a tenant are `<namespace>:{experience:<tenant>}:...`, one slot. What is known stays for
`KEEP_S` after something was noted last, and takes no more room than `MOST_SCOPES` times `MOST_EXPERTS` experts.

What a mixture of a run taught is noted in one step, which remembers what it added. So it counts once, however often a
process that died comes back to it, and a score takes back what was noted before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from importlib import resources
from typing import Literal, NamedTuple, cast

import msgspec
import structlog
from redis import Redis
from redis.commands.core import Script

from mosaic_queues.keys import Keys
from mosaic_tasks.mixtures.beliefs import PRIOR_STRENGTH
from mosaic_tasks.mixtures.experience import Experience
from mosaic_tasks.mixtures.judging import Judged, Observed

log = structlog.get_logger(__name__)

KEEP_S = 400 * 86_400.0
"""More than a year: what is asked once a year finds what the last time taught."""
NOTED_FACTOR = 2.0
"""What was added is remembered for so many times the longest life of a run, which a rerun may prolong."""
LEAST_SHARE = 0.05
"""Of the last call in the means of price, time, tokens and faults: some twenty calls count."""
MOST_OUTCOMES = 1_000.0
"""Older outcomes fade beyond these; they tell a share of right answers to within 3 points."""
MOST_WEAK = PRIOR_STRENGTH
"""The same of what models judged. They are asked on hard questions alone, where experts are wrong more often: together
they count no more than the measured quality does."""
MOST_EXPERTS = 256
MOST_SCOPES = 1_000

Noted = Literal["noted", "known", "late"]
_SCRIPT = resources.files("mosaic_tasks.execution.mixtures").joinpath("experiences.lua").read_text("utf-8")
_decode = msgspec.msgpack.Decoder(Experience).decode


class Lesson(NamedTuple):
    """What a mixture of a run taught.

    Attributes:
        mixture: `RUN/NODE`.
        begun_ms: when it began: tells one execution of it from the next.
        is_scored: somebody scored it, which goes before what it told by itself.
        judged: by expert.
    """

    scope: str
    mixture: str
    begun_ms: int
    is_scored: bool
    judged: Mapping[str, Judged]
    observed: Sequence[Observed] = ()


class Experiences:
    """What is known of a tenant's experts.

    Args:
        run_s: the longest that a run lives.
    """

    def __init__(self, client: Redis, keys: Keys, tenant: str, *, run_s: float) -> None:
        self._client = client
        self._prefix = f"{keys.namespace}:{{experience:{tenant}}}:"
        self._noted_s = run_s * NOTED_FACTOR

    @cached_property
    def _script(self) -> Script:
        return self._client.register_script(_SCRIPT)

    def known(self, scope: str, experts: Sequence[str]) -> dict[str, Experience]:
        """What is known of these experts; one trip, O(experts).

        Raises:
            redis.RedisError: the server is away.
        """
        if not experts:
            return {}
        found = cast("list[bytes | None]", self._client.hmget(self._of(scope), list(experts)))
        return dict(self._readable(scope, zip(experts, found, strict=True)))

    def everyone(self, scope: str) -> dict[str, Experience]:
        """What is known of all experts of a scope, by name.

        Raises:
            redis.RedisError: the server is away.
        """
        found = cast("dict[bytes, bytes]", self._client.hgetall(self._of(scope)))
        return dict(self._readable(scope, sorted((name.decode(), raw) for name, raw in found.items())))

    def scopes(self) -> list[str]:
        """The scopes of which something is known, sorted.

        Raises:
            redis.RedisError: the server is away.
        """
        found = cast("list[bytes]", self._client.zrange(f"{self._prefix}scopes", 0, -1))
        return sorted(scope.decode() for scope in found)

    def note(self, lesson: Lesson) -> Noted:
        """Adds what was learned, in the place of what was noted for this mixture of this run before.

        Returns:
            `known`: it was noted already, or a later execution was; nothing changes. `late`: it began too long ago to
            know whether it was noted.

        Raises:
            redis.RedisError: the server is away, or full.
        """
        keys = [f"{self._prefix}scopes", self._of(lesson.scope), f"{self._prefix}noted:{lesson.mixture}"]
        told = cast(bytes, self._script(keys=keys, args=[msgspec.msgpack.encode(self._argument(lesson))]))
        return cast(Noted, told.decode())

    def _argument(self, lesson: Lesson) -> dict[str, object]:
        return {
            "scope": lesson.scope,
            "begun": lesson.begun_ms,
            "scored": lesson.is_scored,
            "judged": lesson.judged,
            "observed": [_call(one) for one in lesson.observed],
            "share": LEAST_SHARE,
            "most": MOST_OUTCOMES,
            "most_weak": MOST_WEAK,
            "experts": MOST_EXPERTS,
            "scopes": MOST_SCOPES,
            "keep": int(KEEP_S * 1000),
            "keep_noted": int(self._noted_s * 1000),
        }

    def _of(self, scope: str) -> str:
        return f"{self._prefix}of:{scope}"

    def _readable(
        self, scope: str, found: Iterable[tuple[str, bytes | None]]
    ) -> Iterable[tuple[str, Experience]]:
        for name, raw in found:
            if raw is None:
                continue
            try:
                yield name, _decode(raw)
            except msgspec.MsgspecError as error:
                log.warning(
                    "experience.unreadable",
                    what="what is known of an expert cannot be read; it counts as new until more is noted",
                    scope=scope,
                    expert=name,
                    error=str(error),
                )


def _call(one: Observed) -> tuple[object, ...]:
    """As the script takes it: Lua has no None in a list, and false stands for what is not known."""
    costs = (one.seconds, one.tokens, one.usd)
    return (one.expert, one.quality, one.is_faulty, *(False if cost is None else cost for cost in costs))


__all__ = ["Experiences", "Lesson", "Noted"]
