"""Which target has read a prompt's beginning already: pure, from the prompts that were sent where.

An engine keeps what it computed of a prompt's beginning (its prefix cache), so a call that goes where its prefix is
costs only the rest. Three means, in this order:

1. *Holdings*: which target was sent which prefix lately, an approximation of its cache: the least recently used goes
   first.
2. *Ring*: a prefix that nobody holds has a home, by consistent hashing with virtual nodes. All processes agree on it
   without telling each other, and a target that comes or goes moves only its own share.
3. *Bound*: affinity counts at no target that has more than `bound` times its share of the work (Mirrokni, Thorup and
   Zadimoghaddam, "Consistent Hashing with Bounded Loads", 2018). Each process bounds what it sends itself, so the sum
   is bounded.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache
from hashlib import blake2b
from itertools import pairwise

BLOCK_CHARS = 1024
"""Of a prompt, in a fingerprint: some 256 tokens of English. Engines cache blocks of 16 tokens and more."""
BOUND = 1.25
"""A target has at most so many times its share of the work before affinity stops to count there."""
_HELD_BLOCKS = 20_000
"""That a target is taken to hold; more are forgotten, the least recently used first."""
_POINTS = 64
"""Of a target on the ring: shares differ by an eighth or so of their size."""
_MEMORY_CALLS = 50
"""Calls for each target in which work that was sent fades by a factor e."""
_REUSE_CALLS = 200
"""Of so many calls the reuse of prefixes is the mean, about."""
_RINGS = 64
"""Kept ready, one for each set of targets that was asked for."""
_MASK = (1 << 64) - 1


def fingerprints(prompt: str, *, block_chars: int = BLOCK_CHARS) -> tuple[int, ...]:
    """One for each whole block of a prompt, of the prompt up to its end: equal ones have an equal beginning."""
    chain, found = blake2b(digest_size=8), []
    for start, end in pairwise(range(0, len(prompt) + 1, block_chars)):
        chain.update(prompt[start:end].encode("utf-8", "surrogatepass"))
        found.append(int.from_bytes(chain.digest(), "big"))
    return tuple(found)


class Ring:
    """Consistent hashing: a key's targets in the order in which it prefers them."""

    def __init__(self, names: Collection[str]) -> None:
        points = sorted((point, name) for name in names for point in _points(name))
        self._points = [point for point, _ in points]
        self._names = [name for _, name in points]

    def home(self, key: int) -> str | None:
        """The first target for a key; None: there is none."""
        return next(self.walk(key), None)

    def walk(self, key: int) -> Iterator[str]:
        """All targets, the home first; where one is closed or full the next one is the same for every process."""
        start, seen = bisect_right(self._points, _mixed(key)), set[str]()
        for index in range(start - len(self._names), start):
            name = self._names[index]
            if name not in seen:
                seen.add(name)
                yield name


class Memory:
    """What a process sent where: prefixes and work. Not shared: the ring has processes agree, and each keeps the bound.

    Args:
        held_blocks: that a target is taken to hold.
        bound: how many times its share of the work a target has at most, before affinity stops to count there.
    """

    def __init__(self, *, held_blocks: int = _HELD_BLOCKS, bound: float = BOUND) -> None:
        self.turn = 0
        self._held_blocks = held_blocks
        self._bound = bound
        self._held: dict[str, OrderedDict[int, None]] = {}
        self._holders: dict[int, dict[str, None]] = {}
        self._work: dict[str, float] = {}
        self._total = 0.0
        self._reuse = 1.0
        self._unit = 1.0
        self._rings: dict[frozenset[str], Ring] = {}

    def note(self, target: str, prefix: Sequence[int], *, work_tokens: float = 0.0) -> None:
        """A call with this prefix was sent to a target, with so much work."""
        self.turn += 1
        self._note_work(target, work_tokens)
        self._note_reuse(prefix)
        held = self._held.setdefault(target, OrderedDict())
        for block in reversed(prefix):
            held[block] = None
            held.move_to_end(block)
            self._holders.setdefault(block, {})[target] = None
        while len(held) > self._held_blocks:
            self._drop(target, held.popitem(last=False)[0])

    def forget(self, target: str) -> None:
        """A target is gone, or has begun again with an empty cache."""
        for block in self._held.pop(target, ()):
            self._drop(target, block)
        self._work.pop(target, None)
        self._total = sum(self._work.values())

    def retain(self, targets: Collection[str]) -> None:
        """Forgets all but these; called with the targets of each new snapshot."""
        for target in [one for one in self._held if one not in targets]:
            self.forget(target)

    def cached(self, prefix: Sequence[int], *, targets: int) -> dict[str, int]:
        """How many blocks of a prefix each target holds, of those that hold any; at least so many.

        The deepest block that anybody holds is exact. Targets that hold less of it are found at halves of that depth,
        so that a decision costs a few look-ups and not one for each block and target.

        Args:
            targets: how many there are; the search ends once all are found.
        """
        found: dict[str, int] = {}
        depth = self._deepest(prefix)
        while depth and len(found) < targets:
            for name in self._holders.get(prefix[depth - 1], ()):
                found.setdefault(name, depth)
            depth //= 2
        return found

    def preferred(self, prefix: Sequence[int], names: frozenset[str]) -> Iterator[str]:
        """All of these targets, the home of a prefix first; without a prefix, a home by turns."""
        return self._ring_for(names).walk(self._key(prefix, len(names)) if prefix else self.turn)

    def is_full(self, target: str, *, share: float, work_tokens: float = 0.0) -> bool:
        """Whether a target has more than its share of the work, lately, times the bound.

        Args:
            share: of the fleet's capacity, 0 to 1.
            work_tokens: of the call that shall go there.
        """
        total = self._total + work_tokens * self._unit
        return self._work.get(target, 0.0) > self._bound * share * total

    @property
    def promise(self) -> float:
        """How likely it is that what a new prefix leaves behind is of use later, 0 to 1: 1 from a quarter of reuse on.

        A process sees its own calls only, so what it knows of is less than what there is.
        """
        return min(1.0, 4.0 * self._reuse)

    def _note_reuse(self, prefix: Sequence[int]) -> None:
        if prefix:
            known = self._deepest(prefix) / len(prefix)
            self._reuse += (known - self._reuse) / _REUSE_CALLS

    def _note_work(self, target: str, work_tokens: float) -> None:
        """Work fades by counting what is new for more, instead of what is old for less."""
        self._unit *= 1.0 + 1.0 / (_MEMORY_CALLS * max(len(self._work), 1))
        self._work[target] = self._work.get(target, 0.0) + work_tokens * self._unit
        self._total += work_tokens * self._unit
        if self._unit > 1e100:
            self._work = {name: work / self._unit for name, work in self._work.items()}
            self._total, self._unit = self._total / self._unit, 1.0

    def _deepest(self, prefix: Sequence[int]) -> int:
        """Blocks of a prefix up to the last that somebody holds."""
        holders = self._holders
        return next((depth for depth in range(len(prefix), 0, -1) if prefix[depth - 1] in holders), 0)

    def _key(self, prefix: Sequence[int], targets: int) -> int:
        """The first block that not half of the targets hold: what all hold (a system prompt) tells nothing."""
        holders, half = self._holders, targets / 2
        return next((block for block in prefix if len(holders.get(block, ())) <= half), prefix[-1])

    def _ring_for(self, names: frozenset[str]) -> Ring:
        if names not in self._rings:
            if len(self._rings) >= _RINGS:
                del self._rings[next(iter(self._rings))]
            self._rings[names] = Ring(names)
        return self._rings[names]

    def _drop(self, target: str, block: int) -> None:
        holders = self._holders[block]
        holders.pop(target, None)
        if not holders:
            del self._holders[block]


@lru_cache(maxsize=4096)
def _points(name: str) -> tuple[int, ...]:
    digests = (blake2b(f"{name}#{number}".encode(), digest_size=8).digest() for number in range(_POINTS))
    return tuple(int.from_bytes(digest, "big") for digest in digests)


def _mixed(key: int) -> int:
    """Spreads numbers that follow on each other (splitmix64)."""
    key = (key + 0x9E3779B97F4A7C15) & _MASK
    key = ((key ^ (key >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    key = ((key ^ (key >> 27)) * 0x94D049BB133111EB) & _MASK
    return key ^ (key >> 31)


__all__ = ["BLOCK_CHARS", "BOUND", "Memory", "Ring", "fingerprints"]
