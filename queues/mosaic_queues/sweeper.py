"""The thread that mends what a dead process, a lost message or a full stop left behind.

What is mended is the affair of policies: runs (`run_recovery`), and the chords of result backends (`chords.recovery`).
A process has one sweeper a server, whoever in it registers the first policy. For each policy one process of all leads,
whoever holds its lock: each has a lock of its own, since not every process can mend everything (the worker of an app
that only set its result backend knows no runs), and must not keep others from what it cannot do. Two leaders at once
would be harmless, since every mend is a fenced transition.
"""

from __future__ import annotations

import secrets
import threading
from typing import NamedTuple, Protocol

import structlog
from redis import Redis
from redis.exceptions import RedisError

from mosaic_queues.per_server import PerServer

log = structlog.get_logger(__name__)


class Policy(Protocol):
    """What a sweeper does in each round, while it leads."""

    @property
    def client(self) -> Redis:
        """Of the server with the lock."""

    @property
    def lock(self) -> str:
        """The key of the lock."""

    def sweep(self) -> object:
        """Looks at everything once, and mends it. Whatever it raises is logged, and the next round comes."""


class Sweeper:
    """Sweeps by its policies every `pause_s`, from a daemon thread that lives while it has any."""

    def __init__(self, *, pause_s: float) -> None:
        self._pause_s, self._lock_ms = pause_s, int(max(5 * pause_s, 5.0) * 1000)
        self._token = secrets.token_hex(8)
        self._policies: list[Policy] = []
        self._round = threading.Lock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mosaic-sweeper", daemon=True)

    def add(self, policy: Policy) -> None:
        """Sweeps by a policy from now on; starts the thread with the first."""
        self._policies.append(policy)
        if not self._thread.is_alive():
            self._thread.start()

    def remove(self, policy: Policy) -> None:
        """Ends a policy, after its last round, and gives up its lock; ends the thread with the last one."""
        with self._round:
            self._policies.remove(policy)
        self._resign(policy)
        if not self._policies:
            self._stopped.set()
            self._thread.join()

    @property
    def is_idle(self) -> bool:
        """Whether it has no policy."""
        return not self._policies

    def _run(self) -> None:
        while not self._stopped.wait(self._pause_s):
            with self._round:
                for policy in self._policies:
                    self._take_turn(policy)

    def _take_turn(self, policy: Policy) -> None:
        try:
            if self._lead(policy):
                policy.sweep()
        except Exception:
            log.exception("sweeper.failed", what="sweep failed, the next one tries again", lock=policy.lock)

    def _lead(self, policy: Policy) -> bool:
        """Takes or prolongs the lock."""
        if policy.client.set(policy.lock, self._token, nx=True, px=self._lock_ms):
            return True
        if not self._holds(policy):
            return False
        policy.client.pexpire(policy.lock, self._lock_ms)
        return True

    def _resign(self, policy: Policy) -> None:
        try:
            if self._holds(policy):
                policy.client.delete(policy.lock)
        except RedisError as error:
            log.info("sweeper.resign", what="lock left to expire", lock=policy.lock, error=str(error))

    def _holds(self, policy: Policy) -> bool:
        return policy.client.get(policy.lock) == self._token.encode()


_sweepers: PerServer[Sweeper] = PerServer()


class Sweeping(NamedTuple):
    """That this process sweeps by a policy, until `stop`."""

    sweeper: Sweeper
    policy: Policy

    def stop(self) -> None:
        """Ends it; with the last policy of a server, its sweeper too."""
        with _sweepers.lock:
            self.sweeper.remove(self.policy)
            if self.sweeper.is_idle:
                _sweepers.drop(self.sweeper)


def start_sweeping(policy: Policy, *, namespace: str, pause_s: float) -> Sweeping:
    """Has this process's sweeper of the policy's server sweep by it.

    Args:
        pause_s: between two rounds; that of a process's first policy counts.
    """
    with _sweepers.lock:
        sweeper = _sweepers.get(policy.client, namespace, lambda: Sweeper(pause_s=pause_s))
        sweeper.add(policy)
    return Sweeping(sweeper, policy)
