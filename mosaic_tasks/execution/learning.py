"""What the processes of a deployment learn of the lengths of prompts and answers, shared through the server.

Each process publishes what it counted itself, and adds up what all of them published; so nothing counts twice.
"""

from __future__ import annotations

import threading
import time

import msgspec
import structlog
from redis import Redis
from redis.exceptions import RedisError

from mosaic_queues.keys import Keys
from mosaic_routing.lengths import Histogram, Length, Lengths
from mosaic_routing.reports import Reports
from mosaic_tasks.engines.protocol import CHARS_PER_TOKEN

log = structlog.get_logger(__name__)

EXPIRY_S = 3_600.0
"""What a process learned outlives it by so much."""
SHARE_S = 2.0
"""Processes tell each other so often."""
_LAST_WEIGHT = 0.2
"""Of the last call, in the means of what calls are like of late."""


class Learned(msgspec.Struct, frozen=True):
    """What one process counted.

    Attributes:
        tokens_per_char: of prompts, by node.
        service_s: how long calls run, by deployment.
    """

    holder: str
    histograms: dict[str, Histogram]
    tokens_per_char: dict[str, float]
    service_s: dict[str, float] = {}


_REPORTS = Reports("length", Learned, name=lambda learned: learned.holder, expiry_s=EXPIRY_S)


class Learning:
    """Lengths as this process knows them: its own, and what others told. Thread-safe.

    Args:
        holder: name of this process.
    """

    def __init__(self, client: Redis, keys: Keys, *, holder: str) -> None:
        self._client, self._keys, self._holder = client, keys, holder
        self._own = Lengths()
        self._all = self._own
        self._ratios: dict[str, float] = {}
        self._known_ratios: dict[str, float] = {}
        self._service_s: dict[str, float] = {}
        self._known_service_s: dict[str, float] = {}
        self._lock = threading.Lock()
        self._is_news, self._shared_at = False, float("-inf")

    def observe(self, node: str, model: str, *, chars: int, input_tokens: int, output_tokens: int) -> None:
        """A call ended: so long was its prompt, and so long its answer."""
        now_s = time.time()
        with self._lock:
            lengths = {"input_tokens": float(input_tokens), "output_tokens": float(output_tokens)}
            self._own.observe(node, model, **lengths, now_s=now_s)
            if self._all is not self._own:
                self._all.observe(node, model, **lengths, now_s=now_s)
            if chars and input_tokens:
                ratio = _of_late(self._ratios.get(node), input_tokens / chars)
                self._ratios[node] = self._known_ratios[node] = ratio
            self._is_news = True

    def observe_service(self, deployment: str, seconds: float) -> None:
        """A call ran so long at a deployment, without what it waited before."""
        with self._lock:
            mean_s = _of_late(self._service_s.get(deployment), seconds)
            self._service_s[deployment] = self._known_service_s[deployment] = mean_s
            self._is_news = True

    def service_s(self, deployment: str) -> float | None:
        """How long calls run there of late; None: that is not known yet."""
        with self._lock:
            return self._known_service_s.get(deployment)

    def prompt_tokens(self, node: str, *, chars: int) -> float:
        """Of a prompt of so many characters; 0 characters: it is not known yet, and taken to be like earlier ones."""
        with self._lock:
            if not chars:
                known = self._all.prompt(node)
                return known.mean if known.counts else 0.0
            return chars * self._known_ratios.get(node, 1.0 / CHARS_PER_TOKEN)

    def answer(self, node: str, model: str, *, input_tokens: float) -> Length:
        """How long the answer will be."""
        with self._lock:
            return self._all.answer(node, model, input_tokens=input_tokens)

    def share(self) -> None:
        """Tells others what is new here, and learns what is new there; at most once in a while."""
        if time.monotonic() - self._shared_at < SHARE_S:
            return
        self._shared_at = time.monotonic()
        try:
            self._publish()
            self._adopt(_REPORTS.all(self._client, keys=self._keys))
        except RedisError as error:
            log.info("learning.away", what="lengths are not shared now", error=str(error))

    def _publish(self) -> None:
        with self._lock:
            if not self._is_news:
                return
            self._own = self._own.pruned(time.time())
            own = Learned(self._holder, dict(self._own.histograms), dict(self._ratios), dict(self._service_s))
            self._is_news = False
        try:
            _REPORTS.publish(self._client, own, keys=self._keys)
        except RedisError:
            self._is_news = True  # still
            raise

    def _adopt(self, learned: list[Learned]) -> None:
        others = [each for each in learned if each.holder != self._holder]
        with self._lock:
            together = Lengths(self._own.histograms)
            for each in others:
                together = together.merged(Lengths(each.histograms))
                self._known_ratios = {**self._known_ratios, **each.tokens_per_char}
                self._known_service_s = {**self._known_service_s, **each.service_s}
            self._known_ratios |= self._ratios
            self._known_service_s |= self._service_s
            self._all = together


def _of_late(mean: float | None, value: float) -> float:
    """A mean in which older values fade, with one more."""
    return value if mean is None else mean + _LAST_WEIGHT * (value - mean)


__all__ = ["Learned", "Learning"]
