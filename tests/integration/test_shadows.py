"""A call that takes long is asked a second time: its shadow in the ledger, whoever is first, dies or comes too late."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence

import pytest
from redis import Redis

from mosaic_queues.connection import server_ms
from mosaic_queues.deliveries import Delivery
from mosaic_queues.errors import ClaimLost
from mosaic_queues.events import Event, read_events
from mosaic_queues.ledger import Ledger
from mosaic_queues.recalls import RecallListener
from mosaic_queues.streams import Commit, Flush, Piece
from mosaic_queues.transitions import Claim, Done, JoinStep, Route, Usage, shadow_of

pytestmark = pytest.mark.integration
NIL = b"\x00\xc0"
END = JoinStep("end", 1, None)
SENT, FIRST = b"where the shadow goes", b"where the call went"
_ids = itertools.count()


class Hedged:
    """A run with two calls or more, of which `0.0` is held by `slow` and has a shadow; who hears what is noted."""

    def __init__(self, client: Redis, *more: str) -> None:
        self.ledger, self.run_id = Ledger(client), f"hedged-{next(_ids)}"
        self.ledger.open_run(
            self.run_id,
            plan="p",
            name="n",
            inputs=NIL,
            roots=[("there", ["0.0", "0.1", *more])],
            retention_s=60.0,
            max_run_s=60.0,
        )
        self.ledger.route(self.run_id, [Route("0.0", "there", "slow", "", 0, FIRST)])
        self.first = self.claim("0.0", "slow#1")
        self.told: list[tuple[str, list[str]]] = []
        self.listeners = [self._listener(name) for name in ("slow", "quick", "other")]

    def _listener(self, name: str) -> RecallListener:
        listener = RecallListener(self.ledger.client, self.ledger.keys)
        listener.add(lambda _run_id, calls: self.told.append((name, list(calls))))
        return listener

    def heard(self) -> list[tuple[str, list[str]]]:
        """What was sent to whom."""
        for name, listener in zip(("slow", "quick", "other"), self.listeners, strict=True):
            listener.listen(name)
        return self.told

    def hedge(self, claim: Claim | None = None) -> bool:
        held = claim or self.first
        shadow = Route(shadow_of(held.call), "here", "quick", "it is sooner", 0, SENT)
        return self.ledger.hedge(self.run_id, held, shadow, holder="slow#1")

    def claim(self, call: str, holder: str) -> Claim:
        (claimed,) = self.ledger.advance(self.run_id, holder=holder, claim=[call]).claimed
        return claimed

    def shadow(self) -> Claim:
        """The shadow, held by `quick`."""
        assert self.hedge()
        return self.claim("0.0.~", "quick#7")

    def record(self, claim: Claim, holder: str, *, ends: bool = False) -> Sequence[str]:
        joins, steps = (["end"], [END]) if ends else ([], [])
        done = Done(claim.call, claim.fence, NIL, "done", joins)
        return self.ledger.advance(self.run_id, holder=holder, done=[done], joins=steps).stale

    def live(self) -> dict[str, tuple[str, str]]:
        """Calls that live: their state and who holds them."""
        return {each.call: (each.state, each.holder) for each in self.ledger.live_calls(self.run_id)}

    def events(self, *kinds: str) -> list[Event]:
        found = read_events(self.ledger.client, self.ledger.keys, self.run_id)
        return [event for event in found if event.kind in kinds]

    def outputs(self, *names: str) -> list[bytes | None]:
        return self.ledger.outputs(self.run_id, names)


@pytest.fixture
def hedged(redis_client: Redis) -> Iterator[Hedged]:
    yield from checked(Hedged(redis_client))


@pytest.fixture
def boxed(redis_client: Redis) -> Iterator[Hedged]:
    """With a mailbox, which may cut calls."""
    yield from checked(Hedged(redis_client, "1.m"))


def checked(made: Hedged) -> Iterator[Hedged]:
    yield made
    for listener in made.listeners:
        listener.close()
    ended = Counter(call for event in made.events("done") for call in event.calls)
    assert max(ended.values(), default=0) <= 1, "a call was recorded twice"


def test_a_shadow_is_ready_elsewhere_beside_its_call(hedged: Hedged) -> None:
    assert hedged.hedge()
    (shadow,) = [each for each in hedged.ledger.live_calls(hedged.run_id) if each.call == "0.0.~"]
    assert (shadow.state, shadow.queue) == ("ready", "here")
    assert hedged.live()["0.0"] == ("claimed", "slow")
    assert hedged.outputs("0.0.~>") == [SENT]
    (event,) = hedged.events("hedged")
    assert (event.calls, event.target, event.holder) == (("0.0.~",), "quick", "slow")
    assert event.fence == hedged.claim("0.0.~", "quick#7").fence


def test_a_call_has_one_shadow_for_each_claim(hedged: Hedged) -> None:
    assert hedged.hedge()
    assert hedged.hedge()  # sent again, since the answer was lost
    assert len(hedged.events("hedged")) == 1
    shadow = hedged.claim("0.0.~", "quick#7")
    assert not hedged.hedge()
    hedged.ledger.hand_back(hedged.run_id, [(shadow.call, shadow.fence)], holder="quick#7")
    assert not hedged.hedge()
    hedged.ledger.take_back(hedged.run_id, [(hedged.first.call, hedged.first.fence)], holder="slow")
    assert not hedged.hedge()
    assert hedged.hedge(hedged.claim("0.0", "other#1"))


def test_a_shadow_that_answers_first_takes_the_call_over(hedged: Hedged) -> None:
    shadow = hedged.shadow()
    taken = hedged.ledger.overtake(hedged.run_id, shadow, holder="quick#7")
    assert taken == Claim("0.0", hedged.first.fence + 1, 0, 0)
    assert hedged.live()["0.0"] == ("claimed", "quick")
    assert "0.0.~" not in hedged.live()
    assert hedged.outputs("0.0>", "0.0.~>") == [SENT, None]
    assert hedged.heard() == [("slow", ["0.0"])]
    assert hedged.record(hedged.first, "slow#1") == ["0.0"]  # it is fenced
    assert hedged.record(taken, "quick#7") == []
    assert [event.holder for event in hedged.events("overtaken")] == ["quick"]


def test_to_take_over_again_changes_nothing(hedged: Hedged) -> None:
    """As after an answer that was lost."""
    shadow = hedged.shadow()
    taken = [hedged.ledger.overtake(hedged.run_id, shadow, holder="quick#7") for _ in range(2)]
    assert taken[0] == taken[1]
    assert len(hedged.events("overtaken")) == 1
    assert taken[0] is not None
    assert hedged.record(taken[0], "quick#7") == []
    assert hedged.ledger.overtake(hedged.run_id, shadow, holder="quick#7") is None


def test_what_the_first_holder_says_after_that_is_refused(hedged: Hedged) -> None:
    shadow = hedged.shadow()
    said = [Flush("0", 1 + part, (), [Piece("text", 3 * part, 3, b"abc")]) for part in range(2)]
    told = [Delivery(hedged.run_id, hedged.first, "slow#1", [flush]) for flush in said]
    assert hedged.ledger.publish(told[:1]) == [[]]
    hedged.ledger.overtake(hedged.run_id, shadow, holder="quick#7")
    (refused,) = hedged.ledger.publish(told[1:])
    assert isinstance(refused, ClaimLost)


@pytest.mark.parametrize("ends", [False, True])
def test_a_call_that_ends_first_drops_its_shadow_and_recalls_it(hedged: Hedged, *, ends: bool) -> None:
    shadow = hedged.shadow()
    done = Done("0.0", hedged.first.fence, NIL, "done", ["end"] if ends else [])
    answer = hedged.ledger.advance(hedged.run_id, holder="slow#1", done=[done], joins=[END] if ends else [])
    assert (list(answer.dropped), answer.closed) == ([shadow], ends)
    assert "0.0.~" not in hedged.live()
    assert hedged.heard() == [("quick", ["0.0.~"])]
    assert hedged.ledger.lost({hedged.run_id: [shadow]}) == [[shadow]]
    assert hedged.ledger.overtake(hedged.run_id, shadow, holder="quick#7") is None
    assert hedged.outputs("0.0.~>") == [None]


def test_a_shadow_that_nobody_claimed_is_dropped_with_the_claim_that_was_to_come(hedged: Hedged) -> None:
    assert hedged.hedge()
    done = Done("0.0", hedged.first.fence, NIL, "done", [])
    answer = hedged.ledger.advance(hedged.run_id, holder="slow#1", done=[done])
    (event,) = hedged.events("hedged")
    assert [(claim.call, claim.fence) for claim in answer.dropped] == [("0.0.~", event.fence)]
    assert hedged.heard() == []
    assert hedged.ledger.advance(hedged.run_id, holder="quick#7", claim=["0.0.~"]).claimed == []


@pytest.mark.parametrize("death", ["hand_back", "take_back", "wake"])
def test_a_shadow_whose_process_or_message_is_lost_is_gone_and_its_call_goes_on(
    hedged: Hedged, death: str
) -> None:
    if death == "wake":
        assert hedged.hedge()
        groups = hedged.ledger.wake(hedged.run_id, ["0.0.~"], now_ms=server_ms(hedged.ledger.client))
    else:
        back = [(hedged.shadow()[:2])]
        groups = getattr(hedged.ledger, death)(hedged.run_id, back, holder="quick#7")
    assert groups == []
    assert hedged.live() == {"0.0": ("claimed", "slow"), "0.1": ("ready", "")}
    assert hedged.outputs("0.0.~>") == [None]
    assert hedged.record(hedged.first, "slow#1") == []


def test_a_shadow_outlives_the_first_holder_and_takes_the_call_over(hedged: Hedged) -> None:
    shadow = hedged.shadow()
    hedged.ledger.take_back(hedged.run_id, [(hedged.first.call, hedged.first.fence)], holder="slow#1")
    assert hedged.live()["0.0"] == ("ready", "")
    taken = hedged.ledger.overtake(hedged.run_id, shadow, holder="quick#7")
    assert taken == Claim("0.0", hedged.first.fence + 1, 0, 1)
    assert hedged.ledger.advance(hedged.run_id, holder="other#1", claim=["0.0"]).claimed == []
    assert hedged.heard() == []
    assert hedged.record(taken, "quick#7") == []


def test_a_shadow_overtakes_the_second_holder_too(hedged: Hedged) -> None:
    shadow = hedged.shadow()
    hedged.ledger.take_back(hedged.run_id, [(hedged.first.call, hedged.first.fence)], holder="slow#1")
    second = hedged.claim("0.0", "other#1")
    taken = hedged.ledger.overtake(hedged.run_id, shadow, holder="quick#7")
    assert taken is not None
    assert hedged.heard() == [("other", ["0.0"])]
    assert hedged.record(second, "other#1") == ["0.0"]
    assert hedged.record(taken, "quick#7") == []


def test_where_both_die_the_call_runs_again(hedged: Hedged) -> None:
    shadow = hedged.shadow()
    hedged.ledger.take_back(hedged.run_id, [(shadow.call, shadow.fence)], holder="quick#7")
    hedged.ledger.take_back(hedged.run_id, [(hedged.first.call, hedged.first.fence)], holder="slow#1")
    assert hedged.record(hedged.claim("0.0", "other#1"), "other#1") == []
    assert hedged.ledger.overtake(hedged.run_id, shadow, holder="quick#7") is None


def test_a_process_that_took_over_and_dies_loses_the_call_as_any(hedged: Hedged) -> None:
    taken = hedged.ledger.overtake(hedged.run_id, hedged.shadow(), holder="quick#7")
    assert taken is not None
    groups = hedged.ledger.take_back(hedged.run_id, [(taken.call, taken.fence)], holder="quick#7")
    assert [list(calls) for _, calls in groups] == [["0.0"]]
    again = hedged.claim("0.0", "other#1")
    assert (again.losses, hedged.record(taken, "quick#7"), hedged.record(again, "other#1")) == (
        1,
        ["0.0"],
        [],
    )


def test_a_call_that_waits_for_another_attempt_may_be_taken_over(hedged: Hedged) -> None:
    shadow = hedged.shadow()
    assert hedged.ledger.fail(hedged.run_id, hedged.first, holder="slow#1", error="boom", retry_s=60.0)
    taken = hedged.ledger.overtake(hedged.run_id, shadow, holder="quick#7")
    assert taken is not None
    assert hedged.record(taken, "quick#7") == []


@pytest.mark.parametrize("answers", [True, False])
def test_a_call_whose_last_attempt_fails_has_failed_once_its_shadow_has_too(
    hedged: Hedged, *, answers: bool
) -> None:
    shadow, ledger, run_id = hedged.shadow(), hedged.ledger, hedged.run_id
    assert ledger.fail(run_id, hedged.first, holder="slow#1", error="boom", retry_s=None)
    assert hedged.live()["0.0"] == ("delayed", "")
    if answers:
        taken = ledger.overtake(run_id, shadow, holder="quick#7")
        assert taken is not None
        assert hedged.record(taken, "quick#7") == []
        return
    ledger.hand_back(run_id, [(shadow.call, shadow.fence)], holder="quick#7")
    ledger.wake(run_id, ["0.0"], now_ms=server_ms(ledger.client) + 60_000)
    again = hedged.claim("0.0", "other#1")
    assert ledger.fail(run_id, again, holder="other#1", error="boom again", retry_s=None)
    assert ledger.run(run_id).error == "boom again"


def test_a_run_that_ends_recalls_both(hedged: Hedged) -> None:
    shadow = hedged.shadow()
    hedged.ledger.end_run(hedged.run_id, "cancelled", "enough")
    assert sorted(hedged.heard()) == [("quick", ["0.0.~"]), ("slow", ["0.0"])]
    assert hedged.ledger.overtake(hedged.run_id, shadow, holder="quick#7") is None


def test_the_shadow_of_a_call_that_is_no_more_ends_with_its_answer(hedged: Hedged) -> None:
    """As of an item that was taken back."""
    shadow = hedged.shadow()
    hedged.ledger.client.hdel(hedged.ledger.keys.run(hedged.run_id)[1], "0.0")
    assert hedged.ledger.overtake(hedged.run_id, shadow, holder="quick#7") is None
    assert list(hedged.live()) == ["0.1"]


def test_what_both_used_is_noted_once_each(hedged: Hedged) -> None:
    shadow = hedged.shadow()
    of_first = Usage("0.0", "m", 1, 2, 0.5, fence=hedged.first.fence)
    of_shadow = Usage(shadow.call, "m", 3, 4, 0.25, fence=shadow.fence)
    for _ in range(2):
        hedged.ledger.advance(hedged.run_id, holder="any", usages=[of_first, of_shadow])
    assert [event.cost_usd for event in hedged.events("usage")] == [0.5, 0.25]


def test_a_call_that_is_cut_takes_its_shadow_along(boxed: Hedged) -> None:
    """Both holders are told, and what each of them claimed, or would have, is told to whom counts loads."""
    shadow, box = boxed.shadow(), boxed.claim("1.m", "other#1")
    commit = Commit({}, {}, b"decided", cut=["0.0", "0.1"], decided="{}")

    drain = boxed.ledger.consume(boxed.run_id, box, holder="other#1", sources=[], need=None, commit=commit)

    assert sorted(drain.cut) == [("0.0", boxed.first.fence), ("0.0.~", shadow.fence), ("0.1", 1)]
    assert sorted(boxed.heard()) == [("quick", ["0.0.~"]), ("slow", ["0.0"])]
    assert [live.call for live in boxed.ledger.live_calls(boxed.run_id)] == ["1.m"]
    assert boxed.record(boxed.first, "slow#1") == ["0.0"]
    assert boxed.record(shadow, "quick#7") == ["0.0.~"]


def test_a_cut_that_is_sent_again_cuts_nothing_twice(boxed: Hedged) -> None:
    box = boxed.claim("1.m", "other#1")
    commit = Commit({}, {}, b"decided", cut=["0.0"], decided="{}")
    for _ in range(2):
        boxed.ledger.consume(boxed.run_id, box, holder="other#1", sources=[], need=None, commit=commit)
    assert [event.kind for event in boxed.events("cut", "decided")] == ["cut", "decided"]
