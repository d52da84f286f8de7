"""What a mixture of a run learns of its experts, and from what it begins.

A server that is away, or what cannot be read, never fails a mixture: it begins with the profiles of its plan, and what
it taught is lost.
"""

from __future__ import annotations

import structlog
from redis.exceptions import RedisError

from mosaic_tasks.definition.plan import Plan
from mosaic_tasks.execution.mixtures.experiences import Experiences, Lesson, Noted
from mosaic_tasks.execution.process import Process
from mosaic_tasks.mixtures.experience import all_profiled, identity
from mosaic_tasks.mixtures.judging import Ended, Judged, by_models, by_score, observed
from mosaic_tasks.mixtures.mixture import Mixture
from mosaic_tasks.mixtures.values import Answer, Profile

log = structlog.get_logger(__name__)


class ExpertLearning:
    """Of one mixture of a run.

    Args:
        number: of its node.
    """

    def __init__(self, process: Process, run_id: str, plan: Plan, number: int) -> None:
        node = plan.nodes[number]
        assert node.mixture is not None
        self._mixture, self._run_id, self._node = node.mixture, run_id, node.name
        self._scope = scope_of(node.mixture, plan.name, node.name)
        self._experiences = experiences(process, plan.tenant)

    def profiles(self) -> dict[str, Profile]:
        """Of its experts, by name, with what is known of them now."""
        plain = {expert.name: expert.profile for expert in self._mixture.experts}
        try:
            known = self._experiences.known(self._scope, [identity(profile) for profile in plain.values()])
        except RedisError as error:
            what = "what is known of experts cannot be read; the mixture begins with the profiles of its plan"
            log.warning("experience.away", what=what, run=self._run_id, node=self._node, error=str(error))
            return plain
        return all_profiled(plain, known)

    def note(self, over: Ended) -> None:
        """What it taught by itself; noting it again changes nothing."""
        try:
            self._note(over, by_models(over), is_scored=False)
        except RedisError as error:
            what = "what the mixture taught of its experts is not noted"
            log.warning("experience.lost", what=what, run=self._run_id, node=self._node, error=str(error))

    def score(self, over: Ended, value: float, truth: Answer | None) -> Noted:
        """What a score teaches, in the place of what was noted before.

        Raises:
            redis.RedisError: the server is away, or full.
        """
        return self._note(over, by_score(over, value, truth), is_scored=True)

    def _note(self, over: Ended, judged: dict[str, Judged], *, is_scored: bool) -> Noted:
        calls = () if is_scored else observed(over)
        mixture = f"{self._run_id}/{self._node}"
        lesson = Lesson(self._scope, mixture, over.memory.begun_ms, is_scored, judged, calls)
        return self._experiences.note(lesson)


def scope_of(mixture: Mixture, workflow: str, node: str) -> str:
    """What its experts are asked about."""
    return mixture.capability or f"{workflow}/{node}"


def experiences(process: Process, tenant: str) -> Experiences:
    """What is known of a tenant's experts."""
    config = process.settings
    run_s = config.max_run_s + config.retention_s
    return Experiences(process.client, process.ledger.keys, tenant, run_s=run_s)


__all__ = ["ExpertLearning", "experiences", "scope_of"]
