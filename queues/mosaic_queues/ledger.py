"""The ledger: every transition of a run, as one typed class over the Lua scripts.

Each method is one atomic step on the server. A step that carries a claim's fencing token applies once; with a
stale token it changes nothing. What became ready is returned to the caller, who publishes it; until somebody claims
such a call it stands in the outbox (state ready), where the sweeper finds it if the caller died.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, cast

import msgspec
from redis import Redis

from mosaic_queues.advancing import OtherPlan, Transition
from mosaic_queues.deliveries import Delivery
from mosaic_queues.errors import ClaimLost, IllegalTransition, UnknownRun
from mosaic_queues.history import History
from mosaic_queues.keys import Keys
from mosaic_queues.openings import Opened, Openings
from mosaic_queues.recalls import Recalled, Recalls
from mosaic_queues.scripts import Script
from mosaic_queues.streams import ENTRIES_READ, Chunk, Commit, Drain, Letter, chunks_of
from mosaic_queues.transitions import (
    Advance,
    CallState,
    Claim,
    Done,
    Group,
    JoinStep,
    LiveCall,
    Redo,
    Release,
    Route,
    RunRecord,
    RunStanding,
    RunStatus,
    Usage,
    process_of,
    shadowed,
)

_CALL_STATES: dict[str, CallState] = {"r": "ready", "d": "delayed", "c": "claimed", "i": "idle"}


class KeyedRun(msgspec.Struct, frozen=True):
    """A run that has an idempotency key, and what it was opened for.

    Attributes:
        name: of its workflow.
        workflow: content hash of its plan, whatever its priority.
        inputs: content hash of its inputs.
    """

    run_id: str
    name: str
    workflow: str
    inputs: str


class Ledger:
    """All transitions and reads of runs in one server.

    Args:
        client: a connection with `decode_responses=False`, which may send a command again after an error.
        once: one that sends each command once, for the transitions that claim: when their answer is lost, nobody
            knows what was claimed. Default: `client`.
        namespace: prefix of all keys.
        history_runs: so many runs are listed of a tenant, and of all together.
    """

    def __init__(
        self,
        client: Redis,
        *,
        once: Redis | None = None,
        namespace: str = "mosaic",
        history_runs: int = 100_000,
    ) -> None:
        self.client = client
        self._once = once or client
        self.keys = Keys(namespace)
        self.recalls = Recalls(client, self.keys)
        self.history = History(client, self.keys, most=history_runs)
        self._openings = Openings(client, self.keys, self.history)

    # -- transitions -------------------------------------------------------------------------------------------

    def open_run(
        self,
        run_id: str,
        *,
        plan: str,
        name: str,
        inputs: bytes,
        roots: Sequence[Release],
        retention_s: float,
        max_run_s: float,
        tenant: str = "",
        origin: str = "",
        plan_data: bytes | None = None,
        entered_ms: int | None = None,
        letters: Sequence[Letter] | None = None,
    ) -> Opened:
        """Opens a run and makes its roots ready. Its plan is stored and it is entered before that: in the same trip
        where the letters are given and this process has stored the plan before.

        Args:
            plan: content hash of its plan.
            plan_data: the plan, encoded, which is stored where the server does not have it; None: it is there.
            tenant: on whose account.
            origin: the span in whose course that is, as W3C's `traceparent`.
            max_run_s: the sweeper ends it when it is older; its keys outlive that by the retention.
            entered_ms: the server's time; the run is entered into the index and the history before it is opened. None:
                it was.
            letters: of its roots, which are put into their queues in the same step; None: that is left to the caller.
        """
        argument = {
            "run_id": run_id,
            "plan": plan,
            "name": name,
            "tenant": tenant,
            "roots": roots,
            "retention_ms": int(retention_s * 1000),
            "keep_ms": int((max_run_s + retention_s) * 1000),
            "origin": origin,
        }
        return self._openings.open(
            argument, inputs, plan_data=plan_data, entered_ms=entered_ms, letters=letters
        )

    def advance(
        self,
        run_id: str,
        *,
        holder: str,
        done: Sequence[Done] = (),
        joins: Sequence[JoinStep] = (),
        usages: Sequence[Usage] = (),
        claim: Sequence[str] = (),
        read: Sequence[str] = (),
        keep: int = 0,
        serves: Sequence[str] = (),
        open_: Mapping[str, Sequence[str]] | None = None,
        fences: bool = False,
        plan: str = "",
    ) -> Advance:
        """Records `done`, releases what they made ready, claims `claim` and up to `keep` of the released calls.

        Args:
            read: finished calls whose envelopes come back with the claims (at most some hundreds).
            open_: mailboxes of `claim` with the streams that they read: what they read first comes with their claims.
            fences: notes by which claim each call of `done` was held, to be read as `fence_of`.
            plan: content hash of the plan that the run has to have; empty: whichever.

        Raises:
            OtherPlan: the run has another one.
        """
        transition = Transition(
            run_id, holder, done, joins, usages, claim, read, keep, serves, open_ or {}, fences, plan
        )
        client = self._once if transition.claims else self.client
        keys = self.keys.run(run_id)
        answer = _ADVANCE(client, keys, transition.argument(), transition.envelopes())
        advance = self._advance_of(transition, answer)
        if isinstance(advance, Exception):
            raise advance
        return advance

    def advance_together(self, transitions: Sequence[Transition]) -> list[Advance | Exception]:
        """`advance` for several runs, each a step of its own, all in one trip; an error stands where an answer would.

        Raises:
            redis.RedisError: the server does not answer; nobody knows which of them happened.
        """
        orders = [(self.keys.run(each.run_id), each.argument(), each.envelopes()) for each in transitions]
        answers = _ADVANCE.together(self._once, orders)
        return [
            answer if isinstance(answer, Exception) else self._advance_of(each, answer)
            for each, answer in zip(transitions, answers, strict=True)
        ]

    def _advance_of(self, asked: Transition, answer: Any) -> Advance | OtherPlan:
        told, *found = answer
        if not told:
            return OtherPlan(f"run {asked.run_id} has not the plan {asked.plan}")
        outputs = {
            call: envelope for call, envelope in zip(asked.read, found, strict=False) if envelope is not None
        }
        opened = {
            call: _opened(raw, sources)
            for (call, sources), raw in zip(asked.open_.items(), found[len(asked.read) :], strict=False)
            if raw is not None
        }
        return self._advanced(asked.run_id, told)._replace(outputs=outputs, opened=opened)

    def _advanced(self, run_id: str, answer: Any) -> Advance:
        stale, claimed, ready, closed, dropped, *more = answer
        waited, gaps = more or ((), ())
        self._recall(run_id, [(holder, [call]) for call, _, holder in dropped if holder])
        shadows = [Claim(call, int(fence), 0, 0) for call, fence, _ in dropped]
        waited_ms = {call: int(ms) for call, ms in waited}
        claims = [Claim(*claim) for claim in claimed]
        return Advance(stale, claims, ready, closed, dropped=shadows, waited_ms=waited_ms, gaps=gaps)

    def expand(
        self,
        run_id: str,
        claim: Claim,
        *,
        holder: str,
        join: str,
        items: Sequence[Group],
        size: int,
        close: Group,
        keep: int = 0,
        serves: Sequence[str] = (),
    ) -> Advance:
        """Turns the opening call of a fan-out into its item calls; `close` is ready when all of them are done."""
        argument = {
            "holder": holder,
            "id": claim.call,
            "fence": claim.fence,
            "join": join,
            "size": size,
            "items": items,
            "close": [close],
            "keep": keep,
            "serves": serves,
        }
        client = self._once if keep else self.client
        return self._advanced(run_id, _EXPAND(client, self.keys.run(run_id), argument))

    def publish(self, deliveries: Sequence[Delivery]) -> list[list[Group] | Exception]:
        """Appends chunks of claimed calls to their streams, and announces complete fields: each delivery a step of its
        own, all in one trip. Repeating it changes nothing.

        Returns:
            For each delivery the calls to publish; or why it was refused: `ClaimLost`, `IllegalTransition` where a
            chunk does not follow on the last one of its stream, since the server has lost some; or the server's error.

        Raises:
            redis.RedisError: the server does not answer.
        """
        orders = [(self.keys.run(each.run_id), each.argument(), each.data()) for each in deliveries]
        answers = _PUBLISH.together(self.client, orders)
        return [_published(each, answer) for each, answer in zip(deliveries, answers, strict=True)]

    def consume(
        self,
        run_id: str,
        claim: Claim,
        *,
        holder: str,
        sources: Sequence[str],
        need: int | None,
        due_ms: int | None = None,
        commit: Commit | None = None,
    ) -> Drain:
        """Commits what a mailbox made of its chunks, and reads the next ones. Repeating it changes nothing.

        Args:
            sources: the streams to read, `ENTRIES_READ` entries of each.
            need: how many chunks wake the mailbox, when it goes idle because there is nothing to read; None: it stays.
            due_ms: by the server's clock, when it is woken in any case.
            commit: None reads cursors and state of the last commit.

        Raises:
            ClaimLost: the claim is not this one any more.
            IllegalTransition: the server has lost what was read, or what was put out last: go on from the last commit.
        """
        argument: dict[str, Any] = {
            "holder": holder,
            "id": claim.call,
            "fence": claim.fence,
            "commit": commit is not None,
            "flushes": (),
            "grow": False,
            "seal": False,
            "undo": False,
            "cut": (),
            "decided": "",
            "sources": sources,
            "limit": ENTRIES_READ,
            "need": need or False,
            "due": due_ms or False,
        }
        data: list[bytes] = []
        if commit is not None:
            argument |= commit.argument()
            data = commit.data()
        (state, cursors, ready, *cut), kept, *entries = _CONSUME(
            self.client, self.keys.run(run_id), argument, data
        )
        _check(state, run_id, claim)
        ended = cut[0] if cut else []
        self._recall(run_id, [(each_holder, [call]) for call, _, each_holder in ended if each_holder])
        return Drain(
            state,
            dict(cursors or {}),
            bytes(kept),
            _by_stream(sources, entries),
            _groups(ready),
            [(call, int(fence)) for call, fence, _ in ended],
        )

    def lag(self, run_id: str, streams: Mapping[str, Sequence[str]], *, wait: bool = False) -> int:
        """How many items or characters the slowest reader that runs is behind; `streams` with their readers.

        Args:
            wait: the readers' next commits are told to `await_reading`.
        """
        argument = {"streams": list(streams.items()), "wait": wait}
        return int(_LAG(self.client, self.keys.run(run_id), argument))

    def await_reading(self, run_id: str, streams: Iterable[str], *, after: str, block_ms: int) -> str:
        """Blocks until a reader of a stream commits, or for `block_ms`.

        Returns:
            Where to wait on from; begin with `0`.
        """
        tellers: dict[Any, Any] = {self.keys.stream(run_id, f"{stream}!"): after for stream in streams}
        found = cast("list[tuple[bytes, Any]] | None", self.client.xread(tellers, block=block_ms))
        return max((entries[-1][0].decode() for _, entries in found or ()), default=after)

    def mailbox_state(self, run_id: str, mailbox: str) -> bytes | None:
        """What the last commit of a mailbox left; None: there was none."""
        return cast("bytes | None", self.client.hget(self.keys.run(run_id)[6], f"m:{mailbox}"))

    def item_envelopes(self, run_id: str, calls: Sequence[str]) -> list[bytes | None]:
        """The items of grown calls."""
        if not calls:
            return []
        return cast(
            "list[bytes | None]", self.client.hmget(self.keys.run(run_id)[6], [f"i:{call}" for call in calls])
        )

    def chunks(self, run_id: str, stream: str, *, after: str = "0-0", most: int | None = None) -> list[Chunk]:
        """The chunks of a stream behind the entry `after`."""
        return chunks_of(self.client.xrange(self.keys.stream(run_id, stream), f"({after}", count=most))

    def await_chunks(
        self, run_id: str, cursors: Mapping[str, str], *, block_ms: int
    ) -> dict[str, list[Chunk]]:
        """Blocks until a stream has chunks behind its cursor, or for `block_ms`; returns them."""
        names = {self.keys.stream(run_id, stream).encode(): stream for stream in cursors}
        after: dict[Any, Any] = {
            self.keys.stream(run_id, stream): cursor for stream, cursor in cursors.items()
        }
        found = cast("list[tuple[bytes, Any]] | None", self.client.xread(after, block=block_ms))
        return {names[key]: chunks_of(entries) for key, entries in found or ()}

    def redo(
        self,
        run_id: str,
        again: Redo,
        *,
        holder: str,
        keep_s: float,
        is_over: bool = False,
        is_untold: bool = False,
        claim: Claim | None = None,
        fields: Mapping[str, bytes] | None = None,
    ) -> list[Group] | None:
        """Opens a new epoch: some nodes run again, the rest is kept. Returns the calls to publish.

        None: nothing happened, since the run is not over any more, or is so now: look again.

        Args:
            is_over: whether the run is taken to be over; it is not asked where a producer corrects itself.
            is_untold: whether those who watch many runs have to be told of its whole, since it ended a moment ago.
            claim: of the producer that corrects `fields`, parts of its output that it announced.

        Raises:
            ClaimLost: the claim is not this one any more.
            UnknownRun: the run is past its retention.
        """
        argument = {
            "claim": (claim.call, claim.fence) if claim else False,
            "over": is_over,
            "untold": is_untold,
            "nodes": again.nodes,
            "joins": again.joins,
            "roots": again.roots,
            "boxes": again.boxes,
            "fields": list(fields or ()),
            "holder": holder,
            "keep_ms": int(keep_s * 1000),
        }
        envelopes = list((fields or {}).values())
        epoch, ready = _REDO(self.client, self.keys.run(run_id), argument, envelopes)
        if epoch < 0:
            return None
        if not epoch and claim:
            _check("stale", run_id, claim)
        if not epoch:
            raise UnknownRun(f"no run {run_id!r}: it is past its retention")
        return _groups(ready)

    def fail(self, run_id: str, claim: Claim, *, holder: str, error: str, retry_s: float | None) -> bool:
        """Schedules another attempt in `retry_s` seconds, or with None fails the run. False: the claim is stale."""
        argument = {
            "holder": holder,
            "id": claim.call,
            "fence": claim.fence,
            "error": error,
            "retry_ms": False if retry_s is None else int(retry_s * 1000),
        }
        counts, holders = _FAIL(self.client, self.keys.run(run_id), argument)
        self._recall(run_id, holders)
        return bool(counts)

    def hand_back(
        self, run_id: str, claims: Iterable[tuple[str, int]], *, holder: str, is_loss: bool = False
    ) -> list[Group]:
        """Puts claims (call, fence) of this process back; returns the calls to publish. Shadows are dropped.

        Args:
            is_loss: it counts as a lost process: a call may be what engines die of.
        """
        return self._reopen(run_id, claims, kind="released", loss=int(is_loss), holder=holder)

    def take_back(self, run_id: str, claims: Iterable[tuple[str, int]], *, holder: str) -> list[Group]:
        """Puts claims (call, fence) of the dead process `holder` back; returns the calls to publish."""
        return self._reopen(run_id, claims, kind="lost", loss=1, holder=holder)

    def _reopen(
        self, run_id: str, claims: Iterable[tuple[str, int]], *, kind: str, loss: int, holder: str
    ) -> list[Group]:
        argument = {"calls": list(claims), "kind": kind, "loss": loss, "holder": holder}
        return _groups(_REOPEN(self.client, self.keys.run(run_id), argument))

    def wake(
        self, run_id: str, calls: Sequence[str], *, now_ms: int, early: Sequence[str] = ()
    ) -> list[Group]:
        """Makes due calls ready and restarts the clock of calls whose message is lost; returns what to publish.

        Args:
            early: delayed calls that need not wait until they are due.
        """
        argument = {"calls": [*calls, *early], "now_ms": now_ms, "early": early}
        return _groups(_WAKE(self.client, self.keys.run(run_id), argument))

    def route(self, run_id: str, routes: Sequence[Route]) -> dict[str, int]:
        """Says where ready calls go. Returns those that go at once and that nobody has claimed, to be published; of
        each, the fence of the claim that comes next."""
        if not routes:
            return {}
        argument = {"routes": [route[:5] for route in routes]}
        envelopes = [route.envelope for route in routes]
        sent = _ROUTE(self.client, self.keys.run(run_id), argument, envelopes)
        return {call: int(fence) for call, fence in sent}

    def hedge(self, run_id: str, claim: Claim, shadow: Route, *, holder: str) -> bool:
        """Gives a call that this process holds a shadow, ready where `shadow` says. False: it has one already, or had
        one beside this claim, or is not held by it any more. Repeating it changes nothing."""
        argument = {
            "holder": holder,
            "id": claim.call,
            "fence": claim.fence,
            "queue": shadow.queue,
            "target": shadow.target,
            "reason": shadow.reason,
        }
        return bool(_HEDGE(self.client, self.keys.run(run_id), argument, [shadow.envelope]))

    def overtake(self, run_id: str, shadow: Claim, *, holder: str) -> Claim | None:
        """Has the process that holds a shadow hold the call itself, whoever held it until now and is told. None: the
        call is over, or the shadow was dropped. Repeating it gives the same claim."""
        call = shadowed(shadow.call)
        argument = {"holder": holder, "id": call, "shadow": shadow.call, "fence": shadow.fence}
        claim, first = _OVERTAKE(self.client, self.keys.run(run_id), argument)
        self._recall(run_id, [(first, [call])] if first else [])
        return Claim(*claim) if claim else None

    def end_run(self, run_id: str, status: Literal["failed", "cancelled"], error: str) -> bool:
        """Ends a run from outside. False when it is unknown or already over."""
        argument = {"status": status, "error": error}
        ended, holders = _END_RUN(self.client, self.keys.run(run_id), argument)
        self._recall(run_id, holders)
        return bool(ended)

    def _recall(self, run_id: str, holders: Iterable[tuple[str, Sequence[str]]]) -> None:
        """These held calls of a run whose claims do not count any more."""
        self.recalls.send(Recalled(holder, run_id, calls) for holder, calls in holders)

    # -- plans and the index of runs ---------------------------------------------------------------------------

    def prolong_plans(self, plan_hashes: Iterable[str], *, keep_s: float) -> None:
        """Keeps plans alive that unfinished runs use."""
        with self.client.pipeline(transaction=False) as pipe:
            for plan_hash in plan_hashes:
                pipe.pexpire(self.keys.plan(plan_hash), int(keep_s * 1000))
            pipe.execute()

    def load_plan(self, plan_hash: str) -> bytes:
        """The encoded plan.

        Raises:
            UnknownRun: no run of the last days used it.
        """
        data = cast("bytes | None", self.client.get(self.keys.plan(plan_hash)))
        if data is None:
            raise UnknownRun(f"no plan {plan_hash!r}: the run that used it is past its retention")
        return data

    def list_run(self, run_id: str, *, now_ms: int, keep_s: float) -> None:
        """Enters a run into the index of unfinished runs, before it is opened. The index lives for `keep_s` more."""
        with self.client.pipeline(transaction=False) as pipe:
            pipe.zadd(self.keys.runs, {run_id: now_ms})
            pipe.pexpire(self.keys.runs, int(keep_s * 1000))
            pipe.execute()

    def is_listed(self, run_id: str) -> bool:
        """Whether a run is in the index of unfinished runs; one that has ended is, until a sweep finds it over."""
        return self.client.zscore(self.keys.runs, run_id) is not None

    def listed_runs(self) -> list[tuple[str, int]]:
        """The unfinished runs, oldest first: (run id, time of entry in ms)."""
        found = cast("list[tuple[bytes, float]]", self.client.zrange(self.keys.runs, 0, -1, withscores=True))
        return [(run_id.decode(), int(score)) for run_id, score in found]

    def prolong_list(self, *, keep_s: float) -> None:
        """Keeps the index of unfinished runs for `keep_s` more."""
        self.client.pexpire(self.keys.runs, int(keep_s * 1000))

    def unlist_runs(self, run_ids: Sequence[str]) -> None:
        """Takes runs that are over out of the index."""
        if run_ids:
            self.client.zrem(self.keys.runs, *run_ids)

    def run_for_key(self, tenant: str, key: str, asked: KeyedRun, *, keep_s: float) -> KeyedRun:
        """The run that the tenant's idempotency key stands for; `asked` itself when the key is new."""
        name = self.keys.once(tenant, key)
        if self.client.set(name, msgspec.msgpack.encode(asked), nx=True, px=int(keep_s * 1000)):
            return asked
        return self.known_run(tenant, key) or asked

    def known_run(self, tenant: str, key: str) -> KeyedRun | None:
        """The run that the tenant's idempotency key stands for, which may not be open yet; None: the key is new."""
        found = cast("bytes | None", self.client.get(self.keys.once(tenant, key)))
        return msgspec.msgpack.decode(found, type=KeyedRun) if found else None

    # -- reads -------------------------------------------------------------------------------------------------

    def run(self, run_id: str) -> RunRecord:
        """The run as a whole.

        Raises:
            UnknownRun: never opened, or past its retention.
        """
        values = cast("list[bytes | None]", self.client.hmget(self.keys.run(run_id)[0], _RECORD))
        found = _record(run_id, values)
        if found is None:
            raise _unknown(run_id)
        return found

    def ask_status(self, pipe: Any, run_id: str) -> None:
        """Asks in a trip of others for what `is_running` takes."""
        pipe.hget(self.keys.run(run_id)[0], "status")

    @staticmethod
    def is_running(run_id: str, status: bytes | None) -> bool:
        """Whether a run with this status goes on.

        Raises:
            UnknownRun: it has none: never opened, or past its retention.
        """
        if status is None:
            raise _unknown(run_id)
        return status == b"running"

    def runs(self, run_ids: Sequence[str]) -> list[RunRecord | None]:
        """The record of each run, None where it is unknown; one round trip."""
        with self.client.pipeline(transaction=False) as pipe:
            for run_id in run_ids:
                pipe.hmget(self.keys.run(run_id)[0], _RECORD)
            return [_record(*found) for found in zip(run_ids, pipe.execute(), strict=True)]

    def plans_of(self, run_ids: Sequence[str]) -> set[str]:
        """The plans of these runs, without those of unknown runs; one round trip."""
        with self.client.pipeline(transaction=False) as pipe:
            for run_id in run_ids:
                pipe.hget(self.keys.run(run_id)[0], "plan")
            return {raw.decode() for raw in pipe.execute() if raw}

    def statuses(self, run_ids: Sequence[str]) -> list[RunStatus | None]:
        """The status of each run, None where it is unknown; one round trip."""
        with self.client.pipeline(transaction=False) as pipe:
            for run_id in run_ids:
                pipe.hget(self.keys.run(run_id)[0], "status")
            return [cast(RunStatus, raw.decode()) if raw else None for raw in pipe.execute()]

    def plan_hashes(self, run_ids: Sequence[str]) -> list[str | None]:
        """Content hash of the plan of each run, None where it is unknown; one round trip."""
        with self.client.pipeline(transaction=False) as pipe:
            for run_id in run_ids:
                pipe.hget(self.keys.run(run_id)[0], "plan")
            return [raw.decode() if raw else None for raw in pipe.execute()]

    def standings(self, run_ids: Sequence[str]) -> list[RunStanding | None]:
        """How each run stands, None where it is unknown; one round trip."""
        with self.client.pipeline(transaction=False) as pipe:
            for run_id in run_ids:
                pipe.hmget(self.keys.run(run_id)[0], _STANDING)
            return [_standing(values) if values[0] else None for values in pipe.execute()]

    def live_calls(self, run_id: str) -> list[LiveCall]:
        """The calls that are not finished: ready, delayed, claimed, or mailboxes that are idle."""
        found = cast("Mapping[bytes, bytes]", self.client.hgetall(self.keys.run(run_id)[1]))
        return _live_calls(found)

    def live_calls_of(self, run_ids: Sequence[str]) -> list[list[LiveCall]]:
        """`live_calls` of several runs in one round trip."""
        with self.client.pipeline(transaction=False) as pipe:
            for run_id in run_ids:
                pipe.hgetall(self.keys.run(run_id)[1])
            return [_live_calls(found) for found in pipe.execute()]

    def lost(self, held: Mapping[str, Sequence[Claim]]) -> list[list[Claim]]:
        """Of the claims that somebody holds, by run, those that count no more, run by run: they were taken back, or the
        run is over; one round trip."""
        with self.client.pipeline(transaction=False) as pipe:
            for run_id, claims in held.items():
                pipe.hmget(self.keys.run(run_id)[1], [claim.call for claim in claims])
            return [
                [claim for claim, raw in zip(claims, found, strict=True) if not _holds(claim, raw)]
                for claims, found in zip(held.values(), pipe.execute(), strict=True)
            ]

    def outputs(self, run_id: str, calls: Sequence[str]) -> list[bytes | None]:
        """The envelopes of finished calls; `in` stands for the run's inputs."""
        if not calls:
            return []
        return cast("list[bytes | None]", self.client.hmget(self.keys.run(run_id)[2], list(calls)))


def _unknown(run_id: str) -> UnknownRun:
    return UnknownRun(f"no run {run_id!r}: it was never opened here, or it is past its retention")


_RECORD = ("status", "plan", "name", "created_ms", "ended_ms", "error")


def _record(run_id: str, values: Sequence[bytes | None]) -> RunRecord | None:
    if values[0] is None:
        return None
    status, plan, name, created, ended, error = (value.decode() if value else "" for value in values)
    return RunRecord(
        run_id, cast(RunStatus, status), plan, name, int(created), int(ended) if ended else None, error
    )


def _opened(raw: Sequence[Any], sources: Sequence[str]) -> Drain:
    cursors, state, *entries = raw
    return Drain(
        "read", dict(msgspec.msgpack.decode(cursors) or {}), bytes(state), _by_stream(sources, entries), ()
    )


_STANDING = ("status", "created_ms", "reopened_ms", "ended_ms", "name", "origin", "untold")


def _standing(values: Sequence[bytes | None]) -> RunStanding:
    status, created, reopened, ended, name, origin, untold = (
        value.decode() if value else "" for value in values
    )
    return RunStanding(
        cast(RunStatus, status),
        int(reopened or created or 0),
        name,
        int(created or 0),  # none: its opening was broken off, and the sweeper ends it as one that is too old
        int(ended) if ended else None,
        origin,
        int(reopened) if reopened else None,
        bool(untold),
    )


def _by_stream(sources: Sequence[str], entries: Sequence[Any]) -> dict[str, list[Chunk]]:
    return {stream: chunks_of(found) for stream, found in zip(sources, entries, strict=False)}


def _published(delivery: Delivery, answer: Any) -> list[Group] | Exception:
    if isinstance(answer, Exception):
        return answer
    state, ready = answer
    try:
        _check(state, delivery.run_id, delivery.claim)
    except (ClaimLost, IllegalTransition) as error:
        return error
    return _groups(ready)


def _check(state: str, run_id: str, claim: Claim) -> None:
    if state == "stale":
        raise ClaimLost(f"call {claim.call!r} of run {run_id} is not held by claim {claim.fence} any more")
    if state == "gap":
        raise IllegalTransition(
            f"call {claim.call!r} of run {run_id}, claim {claim.fence}: what it read or said before is not in its "
            "streams any more, so nothing can follow on it: the server lost its last writes"
        )


def _groups(answer: Any) -> list[Group]:
    return [(queue, calls) for queue, calls in answer]


def _live_calls(found: Mapping[bytes, bytes]) -> list[LiveCall]:
    return [_live(call.decode(), raw) for call, raw in found.items() if call != b"epoch"]


def _holds(claim: Claim, raw: bytes | None) -> bool:
    live = _live(claim.call, raw) if raw else None
    return live is not None and live.state == "claimed" and live.fence == claim.fence


def _live(call: str, raw: bytes) -> LiveCall:
    state, fence, failures, losses, queue, at_ms, holder, *more = msgspec.msgpack.decode(raw)
    due_ms = int(more[2]) if len(more) > 2 else None
    found = (call, _CALL_STATES[state], fence, failures, losses, queue, int(at_ms))
    return LiveCall(*found, process_of(holder), holder, due_ms)


_ADVANCE = Script("advance", streams=True)
_PUBLISH = Script("publish", streams=True)
_CONSUME = Script("consume", streams=True)
_REDO = Script("redo", streams=True)
_LAG = Script("lag", streams=True)
_EXPAND = Script("expand")
_FAIL = Script("fail")
_REOPEN = Script("reopen")
_WAKE = Script("wake")
_ROUTE = Script("route")
_HEDGE = Script("hedge")
_OVERTAKE = Script("overtake")
_END_RUN = Script("end_run")
