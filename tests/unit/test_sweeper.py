"""What the recovery of runs decides, from what the ledger says and what lives."""

from __future__ import annotations

from mosaic_queues.run_recovery import OVERDUE_MS, Mend, decide
from mosaic_queues.transitions import CallState, LiveCall

NOW = 100_000
GRACE = 2_000


def call(state: CallState, at_ms: int, *, holder: str = "", fence: int = 1, queue: str = "q") -> LiveCall:
    return LiveCall("7", state, fence, 0, 0, queue, at_ms, holder)


def decided(
    one: LiveCall,
    *,
    oldest_ms: int | None = None,
    alive: tuple[str, ...] = (),
    timeout_s: float | None = None,
    stranded: tuple[str, ...] = (),
) -> Mend:
    return decide(
        [one],
        now_ms=NOW,
        alive=alive,
        grace_ms=GRACE,
        oldest_ms={"q": oldest_ms},
        timeouts_s={"7": timeout_s},
        stranded=stranded,
    )


def test_a_claim_of_a_live_process_is_left_alone() -> None:
    assert decided(call("claimed", 0, holder="p"), alive=("p",)) == Mend([], {}, {})


def test_a_claim_of_a_dead_process_is_taken_back_with_its_token() -> None:
    assert decided(call("claimed", 0, holder="p", fence=3)) == Mend([], {"p": [("7", 3)]}, {})


def test_a_claim_past_its_timeout_is_taken_back_when_its_process_did_not_end_it() -> None:
    limit = NOW - 10_000 - OVERDUE_MS
    late, in_time = call("claimed", limit - 1, holder="p", fence=3), call("claimed", limit, holder="p")
    assert decided(late, alive=("p",), timeout_s=10.0) == Mend([], {}, {"p": [("7", 3)]})
    assert decided(in_time, alive=("p",), timeout_s=10.0) == Mend([], {}, {})


def test_a_mailbox_that_waits_for_chunks_has_no_message_to_lose() -> None:
    assert decided(call("idle", 0)) == Mend([], {}, {})


def test_a_delayed_call_wakes_when_it_is_due() -> None:
    assert decided(call("delayed", NOW + 1)).wake == []
    assert decided(call("delayed", NOW)).wake == ["7"]


def test_a_young_ready_call_may_still_be_published_by_its_process() -> None:
    assert decided(call("ready", NOW - GRACE + 1)).wake == []


def test_an_old_ready_call_with_an_empty_queue_has_lost_its_message() -> None:
    assert decided(call("ready", NOW - GRACE)).wake == ["7"]


def test_an_old_ready_call_behind_older_messages_waits_its_turn() -> None:
    assert decided(call("ready", NOW - 50_000), oldest_ms=NOW - 60_000).wake == []


def test_an_old_ready_call_before_the_oldest_message_has_lost_its_own() -> None:
    assert decided(call("ready", NOW - 50_000), oldest_ms=NOW - 10_000).wake == ["7"]


def test_an_old_ready_call_whose_message_nobody_takes_goes_elsewhere() -> None:
    assert decided(call("ready", NOW - GRACE), oldest_ms=0, stranded=("7",)).wake == ["7"]
    assert decided(call("ready", NOW - GRACE + 1), oldest_ms=0, stranded=("7",)).wake == []
