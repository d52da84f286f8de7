"""The front of the guards: a call enters when nothing limits it, and tells in the end what it used."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
import uuid
from collections.abc import Callable, Generator, Mapping
from functools import partial
from types import TracebackType
from typing import Any, NoReturn, Self

import structlog
from redis.exceptions import RedisError

from mosaic_queues.errors import ServerError
from mosaic_routing.guards.backend import Backend
from mosaic_routing.guards.breakers import JITTER_PARTS, Outcome, outcome_of
from mosaic_routing.guards.budgets import micros, shown
from mosaic_routing.guards.errors import BudgetSpent, Limited
from mosaic_routing.guards.headers import pause_ms, paused, told
from mosaic_routing.guards.keeping import Keeper
from mosaic_routing.guards.leases import MAX_WEIGHT
from mosaic_routing.guards.values import (
    Answer,
    Charge,
    Lease,
    Need,
    Query,
    Readings,
    Request,
    Settlement,
    Telling,
    Told,
)
from mosaic_routing.guards.waiting import LONGEST_S, Lines, TaskWaiter, ThreadWaiter, Waiter

log = structlog.get_logger(__name__)

_NO_NEWS = (Told(), Told())
_Steps = Generator[Callable[[], Any] | float, Any, None]
"""What an admission does: functions to call, whose results it is sent, and seconds to wait."""
_TELLING = {
    "bucket": "the rate limit {name!r} is used up",
    "breaker": "the circuit breaker of {name!r} is open",
    "probe": "{name!r} has failed, and another call tries whether it is well again",
    "lease": "all that {name!r} may do at once is in use",
    "budget": "what is left of the budget {name!r} is reserved for calls that run",
}


class Guards:
    """Lets calls through, as many as limits allow; one a process is enough.

    Args:
        backend: `ServerBackend(client, keys)` for limits over all processes, or `MemoryBackend()`.
        expiry_s: permits of a process that died are free again after this, and at most twice this.
        chance: a random number from 0 to 1; spreads how long breakers stay open.
    """

    def __init__(
        self, backend: Backend, *, expiry_s: float = 10.0, chance: Callable[[], float] = random.random
    ) -> None:
        self.backend = backend
        self.lines = Lines()
        self.chance = chance
        self.expiry_ms = int(expiry_s * 1_000)
        self.keeper = Keeper(backend, expiry_ms=self.expiry_ms)
        if not backend.blocks:
            backend.listen(self.lines.ring)

    def admit(
        self, need: Need, *, wait_s: float = LONGEST_S, permit: str = "", priority: int = 0
    ) -> Admission:
        """A context manager, sync and async, that a call runs in. Entering it waits until all that is needed is free.

        Args:
            wait_s: how long it may wait.
            permit: its name; default: a new one. One of a call makes sure that it is let through once.
            priority: among those of this process that wait for the same; a lower one goes first.

        Raises:
            Limited: it cannot wait for so long. By entering.
            BudgetSpent: a budget does not suffice. By entering.
            ServerError: the server is away, or full. By entering.
        """
        request = Request(permit=permit or uuid.uuid4().hex, need=need, expiry_ms=self.expiry_ms)
        return Admission(self, request, wait_s=wait_s, priority=priority)

    def lease(self, permit: str, *, of: str, weight: int, expiry_s: float, instead_of: str = "") -> None:
        """Counts a call that was sent somewhere, until anybody releases it by its name, or until the time is over.

        One that is sent elsewhere moves. This blocks.

        Args:
            of: where it was sent to.
            weight: predicted tokens.
            instead_of: the name under which it was counted before.
        """
        need = Need(leases=(Lease(of, min(weight, MAX_WEIGHT)),))
        replaces = (permit, instead_of) if instead_of else (permit,)
        request = Request(permit=permit, need=need, expiry_ms=int(expiry_s * 1_000), replaces=replaces)
        self.backend.admit(request)

    def release(self, permit: str) -> None:
        """Ends what `lease` counts; of an unknown one nothing. This blocks."""
        self.backend.settle(Settlement(permit=permit), self.expiry_ms)

    def tell(self, permit: Permit) -> None:
        """Has all processes know at once what a provider said of its limits; else they learn it as the call ends. This
        blocks.

        Raises:
            ServerError: the server is away, or full; it is told as the call ends.
        """
        requests, tokens = news = permit.news
        self.backend.tell(
            Telling(permit=permit.name, requests_told=requests, tokens_told=tokens), self.expiry_ms
        )
        if permit.news is news:
            permit.news = _NO_NEWS  # by the end it would be old

    def read(self, query: Query) -> Readings:
        """How limits stand; one step. This blocks."""
        return self.backend.read(query, self.expiry_ms)

    def close(self) -> None:
        """Ends its threads."""
        self.keeper.close()
        self.backend.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Permit:
    """What a call holds while it runs, and what it tells.

    Attributes:
        name: whoever knows it may settle it.
        is_probe: the call tries a deployment that has failed.
        waited_s: for limits.
        news: what the provider said of its limits, of requests and of tokens, and nobody else knows yet.
    """

    def __init__(self, name: str, *, is_probe: bool, waited_s: float) -> None:
        self.name, self.is_probe, self.waited_s = name, is_probe, waited_s
        self._tokens, self._cost, self._pause_ms = -1, -1, 0
        self._outcome: Outcome | None = None
        self.news = _NO_NEWS

    def used(self, *, tokens: int | None = None, dollars: float | None = None) -> None:
        """What the call used, in place of what was predicted. What is not said stands as before.

        Raises:
            ValueError: an amount is negative, no number, or absurdly large.
        """
        if tokens is not None:
            if not 0 <= tokens <= MAX_WEIGHT:
                raise ValueError(f"a call used {tokens!r} tokens; give a number from 0 to {MAX_WEIGHT}")
            self._tokens = int(tokens)
        if dollars is not None:
            self._cost = micros(dollars, "what a call cost")

    def answered(self, headers: Mapping[str, str], *, now_s: float | None = None) -> None:
        """What the provider's headers say of its limits; names in any case. Absurd ones say nothing."""
        lower = {name.lower(): value for name, value in headers.items()}
        clock_s = time.time() if now_s is None else now_s
        pause = self._pause_ms = pause_ms(lower, now_s=clock_s)
        requests, tokens = (told(lower, unit, now_s=clock_s) for unit in ("requests", "tokens"))
        self.news = paused(requests, pause), paused(tokens, pause)

    @property
    def has_news(self) -> bool:
        """Whether the provider said anything of its limits that nobody else knows yet."""
        return self.news != _NO_NEWS

    def ended(self, outcome: Outcome) -> None:
        """What the call tells of the deployment, where that is not to be seen by the error that leaves the block."""
        self._outcome = outcome

    def settlement(self, error: BaseException | None, *, jitter: int) -> Settlement:
        """How the call ended, with this error or none. One that failed and said nothing of money cost none."""
        cost = 0 if error is not None and self._cost < 0 else self._cost
        return Settlement(
            permit=self.name,
            outcome=self._outcome or outcome_of(error),
            pause_ms=self._pause_ms,
            jitter=jitter,
            tokens=self._tokens,
            cost=cost,
            requests_told=self.news[0],
            tokens_told=self.news[1],
        )


class Admission:
    """One call's way through the guards: `with` or `async with`, once."""

    def __init__(self, guards: Guards, request: Request, *, wait_s: float, priority: int) -> None:
        self._guards, self._request, self._wait_s, self._priority = guards, request, wait_s, priority
        self._permit: Permit | None = None
        self._waited_s = 0.0

    def __enter__(self) -> Permit:
        waiter, sent = ThreadWaiter(self._priority), None
        with contextlib.closing(self._steps(waiter, time.monotonic)) as steps:
            try:
                while self._permit is None:
                    step = steps.send(sent)
                    call = partial(waiter.wait, step) if isinstance(step, float) else step
                    sent = call()
            except BaseException:
                self._give_back()
                raise
        return self._entered()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._settle(error)

    async def __aenter__(self) -> Permit:
        waiter, sent = TaskWaiter(self._priority), None
        with contextlib.closing(self._steps(waiter, asyncio.get_running_loop().time)) as steps:
            try:
                while self._permit is None:
                    step = steps.send(sent)
                    sent = await (waiter.wait(step) if isinstance(step, float) else self._call(step))
            except BaseException:
                await self._call(self._give_back)
                raise
        return self._entered()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._call(lambda: self._settle(error))

    def _entered(self) -> Permit:
        assert self._permit is not None
        self._permit.waited_s = self._waited_s
        return self._permit

    async def _call(self, function: Callable[[], Any]) -> Any:
        """Calls what may block in a thread, to its end also when this task is cancelled, and cancelled again: what it
        did must be known."""
        if not self._guards.backend.blocks:
            return function()
        called = asyncio.ensure_future(asyncio.to_thread(function))
        try:
            return await asyncio.shield(called)
        except asyncio.CancelledError:
            while not called.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait([called])
            raise

    def _steps(self, waiter: Waiter, clock: Callable[[], float]) -> _Steps:
        lines, began = self._guards.lines, clock()
        line = lines.find(tuple(self._request.need.blockers()))
        if line is not None:
            lines.join(line, waiter)
        try:
            while True:
                waiter.reset()
                left_s = began + self._wait_s - clock()
                if line is not None and not lines.is_first(line, waiter):
                    if left_s <= 0:
                        self._refuse_behind(line)
                    yield left_s
                    continue
                answer: Answer = yield self._ask
                self._waited_s = clock() - began
                if not answer.blocker:
                    return
                if answer.by != line:
                    line = self._change_line(line, answer.by, waiter)
                if answer.blocker == "spent" and not 0 <= answer.wait_ms <= left_s * 1_000:
                    self._refuse_spent(answer, (yield partial(self._guards.read, self._account(answer))))
                wait_s = self._patience_s(answer, left_s)
                if not (answer.is_rung and (yield self._listen)) and lines.is_first(line, waiter):
                    yield wait_s
        finally:
            if line is not None:
                lines.leave(line, waiter)

    def _change_line(self, old: str | None, new: str, waiter: Waiter) -> str:
        if old is not None:
            self._guards.lines.leave(old, waiter)
        self._guards.lines.join(new, waiter)
        return new

    def _patience_s(self, answer: Answer, left_s: float) -> float:
        """How long to wait before asking again.

        Raises:
            Limited: longer than the call can.
        """
        wait_s = answer.wait_ms / 1_000
        if left_s <= 0 or (wait_s > left_s and not answer.is_rung):
            self._refuse(answer, wait_s)
        return min(wait_s, left_s)

    def _charge(self, answer: Answer) -> Charge:
        """What does not fit into an account."""
        charges = self._request.need.charges
        return next(each for each in charges if each.account == answer.name and each.limit is not None)

    def _account(self, answer: Answer) -> Query:
        return Query(accounts=((answer.name, self._charge(answer).period),))

    def _refuse_spent(self, answer: Answer, readings: Readings) -> NoReturn:
        charge, ((spent, reserved),) = self._charge(answer), readings.accounts
        until = (
            "" if answer.wait_ms < 0 else f" until the day ends, in UTC, in {answer.wait_ms / 1_000:.0f} s"
        )
        raise BudgetSpent(
            f"the budget {answer.name!r} does not suffice for the call{until}: it is {shown(charge.limit or 0)}, of "
            f"which {shown(spent)} is spent and {shown(reserved)} reserved for calls that run, and the call may cost "
            f"{shown(charge.amount)}; raise it, ask a cheaper model, or allow fewer max_tokens",
            by=answer.by,
        )

    def _refuse(self, answer: Answer, wait_s: float) -> NoReturn:
        why = _TELLING.get(answer.blocker, "{name!r} is spent").format(name=answer.name)
        when = (
            f"that lasted for {self._waited_s:.3g} s"
            if answer.is_rung
            else f"for {wait_s:.3g} s more, and the call can wait for {self._wait_s:.3g} s"
        )
        raise Limited(f"{why}; {when}", by=answer.by, wait_s=self._waited_s if answer.is_rung else wait_s)

    def _refuse_behind(self, line: str) -> NoReturn:
        raise Limited(
            f"other calls wait for {line!r} before this one; that lasted for {self._wait_s:.3g} s",
            by=line,
            wait_s=self._wait_s,
        )

    def _ask(self) -> Answer:
        guards, name = self._guards, self._request.permit
        try:
            answer = guards.backend.admit(self._request)
        except (ServerError, RedisError):  # it may have been given all the same
            guards.keeper.owe(Settlement(permit=name, tokens=0, cost=0))
            raise
        if not answer.blocker:
            guards.keeper.hold(self._request)
            self._permit = Permit(name, is_probe=answer.is_probe, waited_s=0.0)
        return answer

    def _listen(self) -> bool:
        return self._guards.backend.listen(self._guards.lines.ring)

    def _give_back(self) -> None:
        """What was given to a call that does not begin."""
        if self._permit is not None:
            self._conclude(Settlement(permit=self._permit.name, tokens=0, cost=0))

    def _settle(self, error: BaseException | None) -> None:
        assert self._permit is not None
        jitter = int(self._guards.chance() * JITTER_PARTS)
        self._conclude(self._permit.settlement(error, jitter=min(max(jitter, 0), JITTER_PARTS)))

    def _conclude(self, settlement: Settlement) -> None:
        """The server may be away at the end of a call; what it did stands all the same."""
        keeper = self._guards.keeper
        keeper.drop(settlement.permit)
        try:
            self._guards.backend.settle(settlement, self._guards.expiry_ms)
        except (ServerError, RedisError) as error:
            keeper.owe(settlement)
            log.warning("guards.settle", what="cannot settle, the next beat tries again", error=str(error))
