"""What the routing policies do to a fleet, on a virtual clock: the modules of `mosaic_routing`, and simulated machines.

The machines are simulated. A request waits for a slot, reads what its machine's prefix cache does not hold of the
prompt, and writes its answer, both at a fixed speed. Policies know what a process knows: a snapshot that is up to half
a second old, what they sent since, and lengths that are learned from calls that ended: on the first half of the Azure
trace, and then as they end. What is reported is the second half.
"""

from __future__ import annotations

import heapq
import itertools
import random
import statistics
import time
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, get_args

import msgspec
from harness import Report, percentile, ratio, show_table, shown, versions, wants_quick
from harness import Target as Goal
from routing_traces import BLOCK_TOKENS, Call, azure, halves, mooncake, scaled

from mosaic_routing.affinity import Memory
from mosaic_routing.hedging import Hedges, hedge_after_s, is_worth_hedging, steal
from mosaic_routing.lengths import Length, Lengths
from mosaic_routing.router import Policy, PolicyName, route
from mosaic_routing.snapshot import Snapshot
from mosaic_routing.targets import Ask, Decision, Target

NODE, MODEL = "chat", "simulated"
SPEEDS = (4, 2, 1)
"""Of a fleet of unlike machines."""
SLOTS = 8
TOKENS_S = 40.0
"""That a machine of speed 1 writes for one request; it reads `PREFILL` times as many."""
PREFILL = 40.0
LOAD = 0.8
REFRESH_S = 0.5
"""Between two looks of a process at the fleet."""
AGAIN = 1.5
"""A straggler that is not worth a second time yet is looked at again after so many times its age."""
STALL = 10.0
EQUAL_MACHINES = 8
"""In the fleet of the trace with prefixes."""
DECISIONS = 2_000
QUICK_CALLS = 1_000
GOALS = (
    Goal("p99_over_least_outstanding", most=0.6),
    Goal("p99_over_round_robin", most=0.4),
    Goal("prefill_tokens_ratio", most=0.55),
    Goal("max_over_mean_load", most=1.25),
    Goal("decision_us_p50", most=100),
)


@dataclass(frozen=True)
class Setting:
    """How a simulation is run beside the fleet and the calls.

    Attributes:
        load: part of the fleet's capacity that the calls ask for.
        moves: idle machines take calls from the queues of fuller ones.
        hedge_share: so many calls more may be sent a second time.
        processes: that decide, each with its own snapshot and memory.
        stalls: part of the calls that take `STALL` times as long at the machine that they are sent to first.
        blind: nothing is learned of lengths.
        cache_blocks: of a machine's prefix cache.
    """

    policy: Policy
    load: float = LOAD
    moves: bool = False
    hedge_share: float = 0.0
    processes: int = 1
    blind: bool = False
    stalls: float = 0.0
    cache_blocks: int = 20_000


@dataclass
class Sent:
    """A call at a machine."""

    number: int
    call: Call
    decision: Decision
    at_s: float
    machine: Machine
    length: Length
    second: bool = False


class Machine:
    """A simulated machine: slots, a queue, and a prefix cache of which the least recently used goes first."""

    def __init__(self, target: Target, *, cache_blocks: int) -> None:
        self.target = target
        self.running: set[int] = set()
        self.queue: deque[Sent] = deque()
        self.backlog_tokens = 0.0
        self.read_tokens = 0.0
        self.work_tokens = 0.0
        self._cache: OrderedDict[int, None] = OrderedDict()
        self._cache_blocks = cache_blocks

    @property
    def now(self) -> Target:
        """What the fleet's snapshot says of it."""
        active = len(self.running) + len(self.queue)
        return msgspec.structs.replace(
            self.target, active=active, backlog_tokens=max(self.backlog_tokens, 0.0)
        )

    def service_s(self, call: Call) -> float:
        """How long a call takes from its slot on; what it reads is in the cache then."""
        unread = call.input_tokens - self._take_cached(call)
        self.read_tokens += unread
        self.work_tokens += call.output_tokens + unread / PREFILL
        return unread / self.target.prefill_tokens_s + call.output_tokens / self.target.decode_tokens_s

    def _take_cached(self, call: Call) -> int:
        cache = self._cache
        blocks = sum(1 for _ in itertools.takewhile(cache.__contains__, call.prefix))
        for block in reversed(call.prefix):
            cache[block] = None
            cache.move_to_end(block)
        while len(cache) > self._cache_blocks:
            cache.popitem(last=False)
        return min(blocks * BLOCK_TOKENS, call.input_tokens - 1) if blocks else 0


@dataclass
class Process:
    """One that decides."""

    memory: Memory
    snapshot: Snapshot = field(default_factory=lambda: Snapshot(()))


@dataclass(frozen=True)
class Outcome:
    """What a simulation showed."""

    latencies_s: list[float]
    read_tokens: float
    input_tokens: float
    max_over_mean: float
    moved: int
    hedged: int

    @property
    def p50(self) -> float:
        return statistics.median(self.latencies_s)

    @property
    def p99(self) -> float:
        return percentile(self.latencies_s, 99)


class Simulation:
    """A fleet, calls that arrive, and a virtual clock."""

    def __init__(
        self, targets: Iterable[Target], setting: Setting, *, lengths: Lengths | None = None
    ) -> None:
        self.setting = setting
        self.machines = {one.name: Machine(one, cache_blocks=setting.cache_blocks) for one in targets}
        self.processes = [Process(Memory()) for _ in range(setting.processes)]
        self.lengths = lengths or Lengths()
        self.now_s = 0.0
        self._events: list[tuple[float, int, str, Any]] = []
        self._order = itertools.count()
        self._latencies: dict[int, float] = {}
        self._copies: dict[int, list[Sent]] = {}
        self._moved = 0
        self._stalled = random.Random(1)
        self._hedges = Hedges(share=setting.hedge_share)

    def run(self, calls: Sequence[Call]) -> Outcome:
        """Until the last call is answered."""
        calls = scaled(calls, self._stretch(calls))
        self._at(0.0, "refresh", None)
        for number, call in enumerate(calls):
            self._at(call.at_s, "arrive", (number, call))
        while len(self._latencies) < len(calls):
            self.now_s, _, what, value = heapq.heappop(self._events)
            getattr(self, f"_{what}")(value)
        return self._outcome(calls)

    def _stretch(self, calls: Sequence[Call]) -> float:
        """By what factor arrivals are further apart, so that without a cache they ask for the load."""
        work = sum(call.output_tokens + call.input_tokens / PREFILL for call in calls)
        capacity = sum(one.target.slots * one.target.decode_tokens_s for one in self.machines.values())
        return work / (capacity * self.setting.load * (calls[-1].at_s or 1.0))

    def _at(self, at_s: float, what: str, value: Any) -> None:
        heapq.heappush(self._events, (at_s, next(self._order), what, value))

    def _refresh(self, _: None) -> None:
        reported = [machine.now for machine in self.machines.values()]
        for process in self.processes:
            process.snapshot = Snapshot(reported)
        self._at(self.now_s + REFRESH_S, "refresh", None)

    def _arrive(self, arrived: tuple[int, Call]) -> None:
        number, call = arrived
        length = self.lengths.answer(NODE, MODEL, input_tokens=call.input_tokens)
        self._hedges = self._hedges.with_call()
        self._send(number, call, length, self._decide(number, call, length))

    def _decide(
        self,
        number: int,
        call: Call,
        length: Length,
        excluded: tuple[str, ...] = (),
        output_tokens: float = 0.0,
    ) -> Decision:
        ask = Ask(
            call=f"run/{number}",
            input_tokens=call.input_tokens,
            output_tokens=output_tokens or length.mean,
            prefix=call.prefix,
            excluded=excluded,
        )
        process = self._process(number)
        return route(ask, process.snapshot, policy=self.setting.policy, memory=process.memory)

    def _process(self, number: int) -> Process:
        return self.processes[number % len(self.processes)]

    def _send(
        self, number: int, call: Call, length: Length, decision: Decision, *, second: bool = False
    ) -> None:
        process, machine = self._process(number), self.machines[decision.target]
        process.snapshot.sent(decision)
        process.memory.note(decision.target, call.prefix, work_tokens=decision.work_tokens)
        sent = Sent(number, call, decision, self.now_s, machine, length, second)
        self._copies.setdefault(number, []).append(sent)
        machine.backlog_tokens += decision.work_tokens
        machine.queue.append(sent)
        if self.setting.hedge_share and not second:
            after_s = hedge_after_s(decision, machine.target, output_tokens=length.mean, p95=length.p95)
            self._at(self.now_s + after_s, "straggle", (sent, after_s))
        self._fill(machine)

    def _fill(self, machine: Machine) -> None:
        while len(machine.running) < machine.target.slots and (machine.queue or self._take(machine)):
            sent = machine.queue.popleft()
            machine.running.add(sent.number)
            stalled = self._stalled.random() < self.setting.stalls and not sent.second
            self._at(self.now_s + machine.service_s(sent.call) * (STALL if stalled else 1.0), "end", sent)

    def _take(self, machine: Machine) -> bool:
        """Late binding: the next call of a fuller machine."""
        if not self.setting.moves:
            return False
        found = steal(machine.now, [one.now for one in self.machines.values() if one.queue])
        if found is None:
            return False
        sent = self.machines[found.name].queue.popleft()
        sent.machine.backlog_tokens -= sent.decision.work_tokens
        machine.backlog_tokens += sent.decision.work_tokens
        sent.machine = machine
        machine.queue.append(sent)
        self._moved += 1
        return True

    def _end(self, sent: Sent) -> None:
        if sent.number in self._latencies:
            return
        first = self._copies[sent.number][0]
        self._latencies[sent.number] = self.now_s - first.at_s
        if not self.setting.blind:
            self.lengths.observe(
                NODE,
                MODEL,
                input_tokens=sent.call.input_tokens,
                output_tokens=sent.call.output_tokens,
                now_s=self.now_s,
            )
        for copy in self._copies.pop(sent.number):
            self._drop(copy)

    def _drop(self, sent: Sent) -> None:
        """Answered, or no longer wanted since another machine has answered."""
        machine = sent.machine
        machine.backlog_tokens -= sent.decision.work_tokens
        machine.running.discard(sent.number)
        if sent in machine.queue:
            machine.queue.remove(sent)
        self._fill(machine)

    def _straggle(self, late: tuple[Sent, float]) -> None:
        sent, after_s = late
        if sent.number in self._latencies:
            return
        elsewhere = self._decide(
            sent.number,
            sent.call,
            sent.length,
            excluded=(sent.machine.target.name,),
            output_tokens=sent.length.p95,
        )
        worth = is_worth_hedging(
            elapsed_s=self.now_s - sent.at_s,
            after_s=after_s,
            elsewhere=elsewhere,
            here_tokens_s=sent.machine.target.decode_tokens_s,
            hedges=self._hedges,
        )
        if worth:
            self._hedges = self._hedges.with_hedge()
            self._send(sent.number, sent.call, sent.length, elsewhere, second=True)
        else:
            self._at(sent.at_s + AGAIN * (self.now_s - sent.at_s), "straggle", (sent, after_s))

    def _outcome(self, calls: Sequence[Call]) -> Outcome:
        machines = list(self.machines.values())
        capacity = [one.target.slots * one.target.decode_tokens_s for one in machines]
        loads = [one.work_tokens / each for one, each in zip(machines, capacity, strict=True)]
        return Outcome(
            latencies_s=list(self._latencies.values()),
            read_tokens=sum(one.read_tokens for one in machines),
            input_tokens=sum(call.input_tokens for call in calls),
            max_over_mean=max(loads) / statistics.mean(loads),
            moved=self._moved,
            hedged=int(self._hedges.hedged),
        )


def fleet(speeds: Sequence[float], *, slots: int = SLOTS) -> list[Target]:
    """Simulated machines of these speeds."""
    return [
        Target(
            name=f"simulated-{number}",
            deployment=f"simulated/{MODEL}",
            model=MODEL,
            engine=f"simulated:{MODEL}",
            queue=f"mosaic.direct.simulated-{number}",
            slots=slots,
            prefill_tokens_s=speed * TOKENS_S * PREFILL,
            decode_tokens_s=speed * TOKENS_S,
        )
        for number, speed in enumerate(speeds)
    ]


def learned(calls: Iterable[Call]) -> Lengths:
    """Lengths from calls that ended before."""
    lengths = Lengths()
    for call in calls:
        lengths.observe(
            NODE, MODEL, input_tokens=call.input_tokens, output_tokens=call.output_tokens, now_s=0.0
        )
    return lengths


def unlike(calls: Sequence[Call], lengths: Lengths) -> dict[str, Outcome]:
    """All policies over a fleet of unlike speeds."""
    settings = {name: Setting(Policy(name=name)) for name in get_args(PolicyName)}
    ours = settings["adaptive"]
    settings["adaptive, late binding"] = replace(ours, moves=True)
    settings["adaptive, 8 processes"] = replace(ours, processes=8)
    settings["adaptive, lengths unknown"] = replace(ours, blind=True)
    settings["least-outstanding, 2 % stalls"] = replace(settings["least-outstanding"], stalls=0.02)
    settings["adaptive, 2 % stalls"] = replace(ours, stalls=0.02)
    settings["adaptive, 2 % stalls, hedging"] = replace(ours, stalls=0.02, hedge_share=0.05)
    return {
        name: Simulation(
            fleet(SPEEDS), one, lengths=Lengths() if one.blind else Lengths(lengths.histograms)
        ).run(calls)
        for name, one in settings.items()
    }


def with_prefixes(calls: Sequence[Call]) -> dict[str, Outcome]:
    """Policies with and without affinity over a fleet of equal machines."""
    ours = Setting(Policy())
    settings = {name: Setting(Policy(name=name)) for name in ("least-outstanding", "speed", "affinity")}
    settings |= {f"adaptive, {count} processes": replace(ours, processes=count) for count in (1, 4, 16)}
    targets = fleet([2.0] * EQUAL_MACHINES)
    return {name: Simulation(targets, one).run(calls) for name, one in settings.items()}


def decision_us(count: int = 100) -> list[float]:
    """How long decisions take with so many targets, one after the other."""
    targets = [
        msgspec.structs.replace(one, active=number % 12, backlog_tokens=200.0 * (number % 12))
        for number, one in enumerate(fleet([SPEEDS[number % 3] for number in range(count)]))
    ]
    snapshot, memory, took = Snapshot(targets), Memory(), []
    for number in range(DECISIONS):
        prefix = tuple(range(number // 4 * 40, number // 4 * 40 + 40))
        ask = Ask(call=f"run/{number}", input_tokens=1000.0, output_tokens=200.0, prefix=prefix)
        start = time.perf_counter()
        decision = route(ask, snapshot, memory=memory)
        took.append(1e6 * (time.perf_counter() - start))
        memory.note(decision.target, prefix, work_tokens=decision.work_tokens)
    return took


def show(title: str, outcomes: dict[str, Outcome], base: Outcome) -> None:
    """Prints all policies beside one that is the measure."""
    rows = [
        (
            name,
            shown(one.p50),
            shown(one.p99),
            shown(one.p99 / base.p99),
            shown(one.read_tokens / base.read_tokens),
            shown(one.max_over_mean),
            str(one.moved),
            str(one.hedged),
        )
        for name, one in outcomes.items()
    ]
    show_table(
        title, ("policy", "p50 s", "p99 s", "p99 ratio", "read ratio", "max/mean", "moved", "hedged"), rows
    )


def main() -> None:
    quick = wants_quick("Routing policies over simulated machines, on a virtual clock.")
    report = Report("routing_simulation", quick, versions(["msgspec"]))
    first, second = halves(azure())
    prompts = mooncake()
    if quick:
        second, prompts = second[:QUICK_CALLS], prompts[:QUICK_CALLS]
    speeds, prefixes, took = unlike(second, learned(first)), with_prefixes(prompts), decision_us()
    show("speeds 4:2:1, simulated", speeds, speeds["least-outstanding"])
    show(f"{EQUAL_MACHINES} equal machines, prompts with prefixes, simulated", prefixes, prefixes["speed"])
    ours, known = speeds["adaptive, late binding"], prefixes["adaptive, 1 processes"]
    report.figures = {
        "p99_over_least_outstanding": ratio(ours.p99, speeds["least-outstanding"].p99),
        "p99_over_round_robin": ratio(ours.p99, speeds["round-robin"].p99),
        "prefill_tokens_ratio": ratio(known.read_tokens, prefixes["speed"].read_tokens),
        "max_over_mean_load": known.max_over_mean,
        "decision_us_p50": statistics.median(took),
        "decision_us_p99": percentile(took, 99),
    }
    report.show(GOALS)
    report.save()


if __name__ == "__main__":
    main()
