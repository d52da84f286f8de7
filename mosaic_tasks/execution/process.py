"""What one process needs to run calls: connections, its incarnation, the plans it has read, what it measured."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import Any, Protocol

import msgspec
from celery import Celery
from redis import ConnectionPool, Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from mosaic_queues.connection import connect, server_ms
from mosaic_queues.following import close_hub
from mosaic_queues.ledger import Ledger
from mosaic_queues.liveness import Liveness, incarnation, live_processes
from mosaic_queues.outbox import BatchSize, Outbox
from mosaic_queues.payloads import PayloadStore
from mosaic_queues.recalls import RecallListener
from mosaic_queues.settings import Settings, settings
from mosaic_queues.streams import Letter
from mosaic_queues.transitions import Claim, Group, LiveCall, Redo
from mosaic_routing.degrading import Changed
from mosaic_routing.guards import Guards, Limited, ServerBackend
from mosaic_tasks import logs
from mosaic_tasks.definition.collector import collector_paused
from mosaic_tasks.definition.plan import Plan
from mosaic_tasks.execution.learning import Learning
from mosaic_tasks.execution.loop import close_loop
from mosaic_tasks.execution.prepared import PreparedPlan
from mosaic_tasks.execution.reporting import Reporter
from mosaic_tasks.execution.sent import Sent, Straggler
from mosaic_tasks.execution.sharing import Lengths, batch_size
from mosaic_tasks.observability.lines import with_call
from mosaic_tasks.observability.observer import Observer
from mosaic_tasks.observability.tracing import open_tracer
from mosaic_tasks.webhooks.pending import PendingWebhooks

PLANS_KEPT = 32
VALUES_KEPT = 4096


class WorkerFacts(msgspec.Struct, frozen=True):
    """What the worker that this process belongs to was started with."""

    hostname: str = "client"
    queues: tuple[str, ...] = ()
    slots: int = 0
    task_events: bool = False
    pid: int = 0


class Host(Protocol):
    """What runs calls on an event loop that they share."""

    def take(self, run_id: str, calls: Sequence[str], done: Callable[[], object], *, plan: str = "") -> None:
        """Takes up a message, which may name the run's plan by its content hash; `done` is called, from any thread,
        when none of its calls needs it any more."""

    def has_room(self) -> bool:
        """Whether half of its slots are free."""


class Places(Protocol):
    """What decides where calls go that the router is to place."""

    def dispatch(self, run_id: str, plan: PreparedPlan, calls: Sequence[str]) -> dict[int, list[Group]]:
        """Records where they go; returns those to be published now, by the priority of their messages."""

    def fewer_experts(self, experts: int, *, least: int) -> Changed:
        """How many experts a mixture asks that begins now, of so many without load."""

    def early(self, delayed: Mapping[str, Sequence[LiveCall]]) -> Mapping[str, Sequence[str]]:
        """By run, calls that wait for their turn at full targets, for as many as there is room now."""

    def begins(self) -> None:
        """A call is asked here; of so many, some may be asked a second time elsewhere."""

    def hedge(self, run_id: str, plan: PreparedPlan, straggler: Straggler) -> str:
        """Has a call that takes long asked a second time, where that is worth it. Returns the target, or an empty
        text: not now."""

    def held_up(self, run_id: str, call: str, sent: Sent, error: Limited) -> None:
        """Limits did not let a call through where it was sent: it is to go elsewhere, or to wait."""


class Process:
    """The resources of this process, made once per process id (a forked child makes its own).

    Attributes:
        serves: the queues whose calls this process may go on to without the broker.
        recalls: hears which calls of this process do not count any more, once it listens.
        host: runs calls on an event loop that they share, where the worker has the async pool.
        places: decides where calls go that the router is to place.
    """

    def __init__(self, app: Celery, facts: WorkerFacts) -> None:
        self.app, self.facts = app, facts
        self.settings: Settings = settings()
        self.client: Redis = connect(ledger_url(app))
        self.once: Redis = sending_once(self.client)
        self.ledger = Ledger(
            self.client,
            once=self.once,
            namespace=self.settings.namespace,
            history_runs=self.settings.history_runs,
        )
        self.recalls = RecallListener(self.client, self.ledger.keys)
        self.payloads = PayloadStore.from_settings(self.client)
        self.observer = Observer(
            self.client, self.ledger.keys, open_tracer(self.settings.tracing), now_ms=self.now_ms
        )
        self._ahead_s = 0.0
        self._compare_clocks()
        self.outbox = Outbox(app, clock=lambda: time.time() + self._ahead_s, ledger=self.client)
        self.reporter = Reporter(app, hostname=facts.hostname, enabled=facts.task_events)
        self.lengths = Lengths()
        self.serves = facts.queues
        self.host: Host | None = None
        self.places: Places | None = None
        self._values: OrderedDict[tuple[str, int, str], bytes] = OrderedDict()
        self._plans: OrderedDict[str, PreparedPlan] = OrderedDict()
        self._plan_hashes: OrderedDict[str, str] = OrderedDict()
        self._slots: dict[str, int] = {}
        self._hosted: Collection[str] = ()
        self._drives = 0
        self._parts = itertools.count()
        self._leaving: set[tuple[str, str]] = set()
        self.pid = os.getpid()
        self._liveness: Liveness | None = None
        self._lock = threading.Lock()

    @cached_property
    def guards(self) -> Guards:
        """The limits that calls keep which the router sent somewhere."""
        return Guards(ServerBackend(self.client, self.ledger.keys))

    @cached_property
    def learning(self) -> Learning:
        """What is known of the lengths of prompts and answers."""
        return Learning(self.client, self.ledger.keys, holder=incarnation())

    @cached_property
    def webhooks(self) -> PendingWebhooks:
        """The ends of runs that somebody is still to be told of."""
        keep_s = self.settings.max_run_s + self.settings.retention_s
        return PendingWebhooks(self.client, namespace=self.settings.namespace, keep_s=keep_s)

    # -- identity ----------------------------------------------------------------------------------------------

    @property
    def holder(self) -> str:
        """The incarnation in whose name this process claims; starts its liveness."""
        if self._liveness is None:
            self.start_liveness()
        assert self._liveness is not None
        return self._liveness.name

    def start_liveness(self, *, queues: Sequence[str] = (), slots: int = 0, hosts: bool = False) -> None:
        """Announces this process; a worker's main process says which queues it serves."""
        with self._lock:
            if self._liveness is not None:
                return
            liveness = Liveness(
                self.client,
                self.ledger.keys,
                expiry_s=self.settings.liveness_s,
                queues=queues,
                slots=slots,
                hosts=hosts,
                on_beat=self._beat,
            )
            liveness.start()
            self._count_slots()
            self._liveness = liveness

    def serve(self, queues: tuple[str, ...]) -> None:
        """Announces which queues it serves from now on, where these are others."""
        if queues == self.serves:
            return
        self.serves = queues
        if self._liveness is not None:
            self._liveness.serve(queues)
            self._count_slots()

    def assure_alive(self) -> None:
        """Called before each claim, so that nobody claims who counts as dead.

        Raises:
            redis.RedisError: the server is away or full.
        """
        if self._liveness is not None:
            self._liveness.assure()

    def claimant(self) -> str:
        """A name under which a part of this process claims."""
        return f"{self.holder}#{next(self._parts)}"

    def listen_to_recalls(self) -> None:
        """Called while something runs, so that calls which do not count any more end at once."""
        self.recalls.listen(self.holder)

    def let_go(self, run_id: str, claimant: str, *, now: bool = True) -> None:
        """Hands back what a part of this process still holds of a run; when the server is away, with a later beat.

        Args:
            now: False: it is known to be away.
        """
        self._leaving.add((run_id, claimant))
        if now:
            with suppress(RedisError):
                self._hand_back()

    def _hand_back(self) -> None:
        for run_id, claimant in list(self._leaving):
            calls = [call for call in self.ledger.live_calls(run_id) if call.claimant == claimant]
            claims = [(call.call, call.fence) for call in calls if call.state == "claimed"]
            if claims:
                groups = self.ledger.hand_back(run_id, claims, holder=claimant)
                self.publish(run_id, self.plan_of(run_id), groups)
            self._leaving.discard((run_id, claimant))

    def close(self) -> None:
        """Says goodbye; what is still claimed is re-issued."""
        close_loop()
        self.recalls.close()
        close_hub(self.client, self.ledger.keys)
        if "guards" in self.__dict__:
            self.guards.close()
        if self._liveness is not None:
            self._liveness.stop()
        self.reporter.close()
        self.observer.close()
        self.once.connection_pool.disconnect()
        self.client.close()

    # -- sharing -----------------------------------------------------------------------------------------------

    def _beat(self) -> None:
        self._count_slots()
        self._compare_clocks()
        self._hand_back()
        if "learning" in self.__dict__:
            self.learning.share()  # those that place calls do by themselves; workers that answer have news for them
        self.observer.flush()

    def _compare_clocks(self) -> None:
        """How far the server's clock is ahead of this machine's."""
        self._ahead_s = server_ms(self.client) / 1000 - time.time()

    def _count_slots(self) -> None:
        slots: dict[str, int] = {}
        shared: set[str] = set()
        for process in live_processes(self.client, self.ledger.keys):
            for queue in process.queues:
                slots[queue] = slots.get(queue, 0) + (1 if process.hosts else process.slots)
                if not process.hosts:
                    shared.add(queue)
        self._slots, self._hosted = slots, slots.keys() - shared

    @contextmanager
    def driving(self) -> Iterator[None]:
        """Counts the drives that are at work."""
        with self._lock:
            self._drives += 1
        try:
            yield
        finally:
            with self._lock:
                self._drives -= 1

    def has_room(self) -> bool:
        """Whether half of this process's slots are free. A forked child has one slot, and knows of no other."""
        if self.host is not None:
            return self.host.has_room()
        return self.pid == self.facts.pid and 2 * self._drives <= self.facts.slots

    def slots(self, queue: str) -> int:
        """How many messages of a queue run at once, over all live workers; 1 when not known. A worker that hosts calls
        counts once: a message may bring it all that it has slots for."""
        return self._slots.get(queue, 1)

    def is_served(self, queue: str) -> bool:
        """Whether a live worker takes from a queue."""
        return queue in self._slots

    def publish(self, run_id: str, plan: PreparedPlan, groups: Sequence[Group]) -> None:
        """Publishes ready calls in batches that suit their measured length and the workers there are."""
        self.publish_placed(run_id, plan, self._placed(run_id, plan, groups))

    def publish_placed(self, run_id: str, plan: PreparedPlan, placed: Mapping[int, Sequence[Group]]) -> None:
        """The same of calls whose queues are known, by the priority of their messages."""
        for level, groups in placed.items():
            self.outbox.publish(
                run_id, groups, batch_size=self._batch_size(plan), priority=level, plan=plan.hash
            )

    def _placed(
        self, run_id: str, plan: PreparedPlan, groups: Sequence[Group]
    ) -> Mapping[int, Sequence[Group]]:
        """The groups by the priority of their messages; calls that the router is to place are where it sends them, and
        stay in the ledger where nobody here can place them: no worker takes from the queue that they wait in."""
        routed = [call for _, calls in groups for call in calls if plan.is_routed(call)]
        if not routed:
            return {plan.plan.priority: groups} if groups else {}
        placed = self.places.dispatch(run_id, plan, routed) if self.places is not None else {}
        rest = [(queue, [call for call in calls if not plan.is_routed(call)]) for queue, calls in groups]
        if left := [group for group in rest if group[1]]:
            placed.setdefault(plan.plan.priority, []).extend(left)
        return placed

    def letters(self, run_id: str, plan: PreparedPlan, groups: Sequence[Group]) -> list[Letter] | None:
        """What `publish` would send of them, for a transition that sends it itself; see `Outbox.letters`. None also
        where the router decides about a queue."""
        if any(plan.is_routed(call) for _, calls in groups for call in calls):
            return None
        return self.outbox.letters(
            run_id, groups, batch_size=self._batch_size(plan), priority=plan.plan.priority, plan=plan.hash
        )

    def publish_chord(self, run_id: str, plan: PreparedPlan, header: Sequence[Group], close: Group) -> None:
        """Publishes the calls of a fan-out, in such batches, as a chord."""
        for level, placed in self._placed(run_id, plan, header).items():
            self.outbox.publish_chord(
                run_id, placed, close, batch_size=self._batch_size(plan), priority=level, plan=plan.hash
            )

    def redo(
        self,
        run_id: str,
        again: Redo,
        *,
        holder: str,
        is_over: bool = False,
        claim: Claim | None = None,
        fields: Mapping[str, bytes] | None = None,
    ) -> bool:
        """Has nodes of a run, over or not, run again; crash-safe as opening a run is. False: see `Ledger.redo`."""
        config, plan = self.settings, self.plan_of(run_id)
        keep_s = config.max_run_s + config.retention_s
        self.ledger.prolong_plans([plan.hash], keep_s=keep_s)
        is_untold = is_over and self.ledger.is_listed(run_id)
        self.ledger.list_run(run_id, now_ms=self.now_ms(), keep_s=keep_s)
        ready = self.ledger.redo(
            run_id,
            again,
            holder=holder,
            keep_s=keep_s,
            is_over=is_over,
            is_untold=is_untold,
            claim=claim,
            fields=fields,
        )
        if ready is None:
            return False
        self.payloads.keep_objects_until([run_id], time.time() + keep_s)
        self.ledger.list_run(run_id, now_ms=self.now_ms(), keep_s=keep_s)  # may have been unlisted meanwhile
        self.publish(run_id, plan, ready)
        return True

    def _batch_size(self, plan: PreparedPlan) -> BatchSize:
        def size(queue: str, calls: Sequence[str]) -> int:
            return batch_size(
                len(calls),
                length_s=plan.expected_length(self.lengths, calls[0]),
                workers=self.slots(queue),
                batch_s=self.settings.batch_s,
                batch_calls=self.settings.batch_calls,
                concurrent=plan.is_concurrent(calls[0]),
                hosted=queue in self._hosted,
            )

        return size

    # -- plans and values --------------------------------------------------------------------------------------

    def plan(self, plan_hash: str) -> PreparedPlan:
        """The plan with this hash, read once."""
        prepared = self._plans.get(plan_hash)
        if prepared is None:
            data = self.ledger.load_plan(plan_hash)
            with collector_paused():
                prepared = PreparedPlan(plan_hash, Plan.decode(data))
            self._remember(self._plans, plan_hash, prepared, PLANS_KEPT)
        return prepared

    def plan_of(self, run_id: str) -> PreparedPlan:
        """The plan of a run.

        Raises:
            UnknownRun: the run or its plan is past its retention.
        """
        plan_hash = self._plan_hashes.get(run_id)
        if plan_hash is None:
            plan_hash = self.ledger.run(run_id).plan
            self._remember(self._plan_hashes, run_id, plan_hash, VALUES_KEPT)
        return self.plan(plan_hash)

    def knows_plan_of(self, run_id: str) -> bool:
        """Whether `plan_of` a run need not ask which one it has."""
        return run_id in self._plan_hashes

    def plan_at_hand(self, plan_hash: str) -> PreparedPlan | None:
        """The plan with this hash, where it need not be read."""
        return self._plans.get(plan_hash)

    def learn_plans(self, run_ids: Iterable[str]) -> None:
        """Asks which plans these runs have, in one trip, where that is not at hand.

        Raises:
            redis.RedisError: the server does not answer.
        """
        unknown = [run_id for run_id in dict.fromkeys(run_ids) if run_id not in self._plan_hashes]
        if unknown:
            for run_id, plan_hash in zip(unknown, self.ledger.plan_hashes(unknown), strict=True):
                if plan_hash is not None:
                    self._remember(self._plan_hashes, run_id, plan_hash, VALUES_KEPT)

    def remember_plan(self, run_id: str, prepared: PreparedPlan) -> None:
        """Keeps the plan of a run at hand."""
        self._remember(self._plans, prepared.hash, prepared, PLANS_KEPT)
        self._remember(self._plan_hashes, run_id, prepared.hash, VALUES_KEPT)

    def now_ms(self) -> int:
        """The server's time in milliseconds, as far as this process knows."""
        return int((time.time() + self._ahead_s) * 1000)

    def value(self, run_id: str, epoch: int, call: str) -> bytes | None:
        """An envelope that is at hand."""
        return self._values.get((run_id, epoch, call))

    def remember_value(self, run_id: str, epoch: int, call: str, envelope: bytes) -> None:
        """Keeps an envelope at hand for the calls that read it next in the same epoch."""
        self._remember(self._values, (run_id, epoch, call), envelope, VALUES_KEPT)

    def _remember(self, cache: OrderedDict[Any, Any], key: Any, value: Any, most: int) -> None:
        with self._lock:
            cache[key] = value
            while len(cache) > most:
                cache.popitem(last=False)


def sending_once(client: Redis) -> Redis:
    """A client of the same server that never sends a command again by itself."""
    pool = client.connection_pool
    options = {**pool.connection_kwargs, "retry": Retry(NoBackoff(), 0), "retry_on_error": []}
    return Redis(connection_pool=ConnectionPool(connection_class=pool.connection_class, **options))


def ledger_url(app: Celery) -> str | None:
    """The server of the ledger: `MOSAIC_REDIS_URL`, else the app's own Redis broker, else the embedded server."""
    broker = str(app.conf.broker_url or "")
    if settings().redis_url is None and broker.startswith(("redis://", "rediss://", "redis+socket://")):
        return broker
    return None


_processes: dict[tuple[int, int], Process] = {}
_equip: dict[Callable[[Process], None], None] = {}
_facts = WorkerFacts()
_lock = threading.Lock()


logs.extend(with_call)


def set_worker_facts(facts: WorkerFacts) -> None:
    """Called in a worker's main process before its children are forked."""
    global _facts
    _facts = facts


def process_for(app: Celery) -> Process:
    """This process's resources for an app."""
    key = (os.getpid(), id(app))
    with _lock:
        process = _processes.get(key)
        if process is None:
            process = _processes[key] = Process(app, _facts)
            for equip in _equip:
                equip(process)
        return process


def equip_with(equip: Callable[[Process], None]) -> None:
    """Has each process that is made from now on given what this module cannot know."""
    _equip[equip] = None


def close_process(app: Celery) -> None:
    """Closes this process's resources, where it has any."""
    process = _processes.pop((os.getpid(), id(app)), None)
    if process is not None:
        process.close()


def close_all() -> None:
    """Closes all resources of this process, when it ends."""
    for key in [key for key in _processes if key[0] == os.getpid()]:
        _processes.pop(key).close()
