"""Prefix affinity: fingerprints, the ring, what targets are taken to hold, and the bound on load."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from mosaic_routing.affinity import BLOCK_CHARS, BOUND, Memory, Ring, fingerprints

NAMES = [f"t{number}" for number in range(10)]


@given(st.text(max_size=60), st.text(max_size=60), st.text(max_size=60))
def test_prompts_share_fingerprints_exactly_as_far_as_they_begin_alike(
    common: str, one: str, other: str
) -> None:
    first, second = (fingerprints(common + rest, block_chars=4) for rest in (one, other))
    alike = next((i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), None)
    assert first[: len(common) // 4] == second[: len(common) // 4]
    if alike is not None:
        assert not set(first[alike:]) & set(second[alike:])


def test_only_whole_blocks_have_a_fingerprint() -> None:
    assert fingerprints("x" * (BLOCK_CHARS - 1)) == ()
    assert len(fingerprints("x" * (3 * BLOCK_CHARS + 1))) == 3


def test_equal_blocks_at_different_places_differ() -> None:
    assert len(set(fingerprints("x" * (3 * BLOCK_CHARS)))) == 3


@given(st.sets(st.sampled_from(NAMES), min_size=2), st.data())
def test_a_target_that_goes_moves_its_own_keys_only(names: set[str], data: st.DataObject) -> None:
    gone = data.draw(st.sampled_from(sorted(names)))
    before, after = Ring(names), Ring(names - {gone})
    for key in range(200):
        if before.home(key) != gone:
            assert before.home(key) == after.home(key)


def test_the_ring_spreads_keys_that_follow_on_each_other() -> None:
    ring = Ring(NAMES)
    homes = Counter(ring.home(key) for key in range(10_000))
    assert set(homes) == set(NAMES)
    assert max(homes.values()) < 1.6 * 1000


def test_a_walk_visits_all_targets_once_from_the_home_on() -> None:
    ring = Ring(NAMES)
    walk = list(ring.walk(7))
    assert sorted(walk) == sorted(NAMES)
    assert walk[0] == ring.home(7)


def test_a_ring_without_targets_has_no_home() -> None:
    assert Ring(()).home(1) is None


def test_the_deepest_holder_is_found_exactly_and_others_at_least_by_half() -> None:
    memory, prefix = Memory(), tuple(range(16))
    memory.note("deep", prefix[:13])
    memory.note("shallow", prefix[:7])
    assert memory.cached(prefix, targets=3) == {"deep": 13, "shallow": 6}


def test_what_a_target_was_not_sent_lately_is_forgotten_from_its_end_on() -> None:
    memory = Memory(held_blocks=4)
    memory.note("a", (1, 2, 3))
    memory.note("a", (7, 8))
    assert memory.cached((1, 2, 3), targets=1) == {"a": 2}
    assert memory.cached((7, 8), targets=1) == {"a": 2}


def test_a_target_that_began_again_holds_nothing() -> None:
    memory = Memory()
    memory.note("a", (1, 2), work_tokens=5.0)
    memory.note("b", (1,), work_tokens=5.0)
    memory.retain({"b"})
    assert memory.cached((1, 2), targets=2) == {"b": 1}
    memory.forget("b")
    assert memory.cached((1, 2), targets=2) == {}


def test_a_beginning_that_all_hold_does_not_decide_the_home() -> None:
    memory, names = Memory(), frozenset(NAMES)
    for name in NAMES:
        memory.note(name, (1, 2))
    homes = {next(memory.preferred((1, 2, rest), names)) for rest in range(100, 200)}
    assert len(homes) > 5


@given(st.lists(st.floats(1, 1e4), min_size=50, max_size=300), st.integers(2, 6), st.randoms())
def test_affinity_that_keeps_to_the_bound_loads_no_target_beyond_it(
    works: list[float], count: int, chance: random.Random
) -> None:
    """A target takes a call only as long as it is below its bound; it may exceed it by that one call."""
    memory, loads = Memory(), Counter[str]()
    names = NAMES[:count]
    for work in works:
        wanted = chance.choice(names[:1] * 8 + names)
        free = [name for name in names if not memory.is_full(name, share=1 / count, work_tokens=work)]
        assert free, "the least loaded target is always below the bound"
        name = wanted if wanted in free else free[0]
        memory.note(name, (), work_tokens=work)
        loads[name] += work
    # What was sent long ago counts for less, so the sums may differ from the bound by as much as it fades.
    faded = (1 + 1 / (50 * count)) ** len(works)
    assert max(loads.values()) <= BOUND * faded * sum(works) / count + max(works)


def test_work_fades_and_never_overflows() -> None:
    memory = Memory()
    for _ in range(60_000):
        memory.note("a", (), work_tokens=1e6)
    memory.note("b", ())
    assert memory.is_full("a", share=0.5)
    for _ in range(2_000):
        memory.note("b", (), work_tokens=1e6)
    assert not memory.is_full("a", share=0.5)


def test_the_promise_of_prefixes_follows_how_often_they_are_used_again() -> None:
    memory = Memory()
    assert memory.promise == 1.0
    for number in range(2_000):
        memory.note("a", (number,))
    assert memory.promise < 0.01
    for _ in range(2_000):
        memory.note("a", (1,))
    assert memory.promise == 1.0
