"""Opens runs: a plan is stored and a run entered into index and history before the run is opened, all of it in one trip
where the same server can see to that order."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from redis import Redis

from mosaic_queues.history import History
from mosaic_queues.keys import Keys
from mosaic_queues.scripts import Script
from mosaic_queues.streams import Letter

PLANS_NOTED = 1024
"""Of so many plans a process notes when it has stored them (monotonic time)."""


class Opened(NamedTuple):
    """What became of opening a run; true where that is new.

    Attributes:
        is_new: it was not open before.
        is_sent: the messages of its roots are in their queues.
    """

    is_new: bool
    is_sent: bool

    def __bool__(self) -> bool:
        return self.is_new


class Openings:
    """Of runs in one server. What `open_run.lua` is given is described there."""

    def __init__(self, client: Redis, keys: Keys, history: History) -> None:
        self._client, self._keys, self._history = client, keys, history
        self._plans_stored: dict[str, float] = {}

    def open(
        self,
        run: Mapping[str, Any],
        inputs: bytes,
        *,
        plan_data: bytes | None,
        entered_ms: int | None,
        letters: Sequence[Letter] | None,
    ) -> Opened:
        """See `Ledger.open_run`.

        Args:
            run: what the script is given of it.
        """
        if entered_ms is not None:
            if letters is not None and self._has_stored(run["plan"], run["keep_ms"]):
                found = self._at_once(run, inputs, letters, entered_ms)
                if found is not None:
                    return found
            self._prepare(run, plan_data, entered_ms)
        argument = _argument(run, letters or ())
        answer = _OPEN_RUN(self._client, self._keys.run(run["run_id"]), argument, (inputs,))
        return Opened(answer > 0, answer == _SENT and letters is not None)

    def _at_once(
        self, run: Mapping[str, Any], inputs: bytes, letters: Sequence[Letter], now_ms: int
    ) -> Opened | None:
        """In one trip. None: it is not open, since the server has lost its plan, or did not enter it."""
        history = self._history
        lists = (self._keys.runs, *history.lists(run["tenant"]))
        argument = _argument(run, letters, plan_key=self._keys.plan(run["plan"]), lists=lists)
        with self._client.pipeline(transaction=False) as pipe:
            self._enter(pipe, run, now_ms)
            order = (self._keys.run(run["run_id"]), argument, (inputs,))
            answer = _OPEN_RUN.at_the_end_of(pipe, self._client, order)
        return None if answer == _UNPREPARED else Opened(answer > 0, answer == _SENT)

    def _prepare(self, run: Mapping[str, Any], plan_data: bytes | None, now_ms: int) -> None:
        """Enters a run, and stores its plan where the server does not have it."""
        with self._client.pipeline(transaction=False) as pipe:
            self._enter(pipe, run, now_ms)
            has_plan, *_ = pipe.execute()
        if plan_data is not None:
            if not has_plan:
                self._client.set(self._keys.plan(run["plan"]), plan_data, px=run["keep_ms"])
            self._note_stored(run["plan"])

    def _enter(self, pipe: Any, run: Mapping[str, Any], now_ms: int) -> None:
        keep_ms, index = run["keep_ms"], self._keys.runs
        pipe.pexpire(self._keys.plan(run["plan"]), keep_ms)
        pipe.zadd(index, {run["run_id"]: now_ms})
        pipe.pexpire(index, keep_ms)
        self._history.enter(pipe, run["run_id"], run["tenant"], now_ms=now_ms, keep_ms=keep_ms)

    def _has_stored(self, plan_hash: str, keep_ms: int) -> bool:
        """Whether this process has stored a plan that the server keeps for some time yet."""
        stored = self._plans_stored.get(plan_hash)
        return stored is not None and time.monotonic() - stored < keep_ms / 2000

    def _note_stored(self, plan_hash: str) -> None:
        if len(self._plans_stored) >= PLANS_NOTED:
            self._plans_stored.clear()
        self._plans_stored[plan_hash] = time.monotonic()


def _argument(
    run: Mapping[str, Any], letters: Sequence[Letter], *, plan_key: str = "", lists: Sequence[str] = ()
) -> dict[str, Any]:
    texts = [(letter.key, letter.text) for letter in letters]
    return {**run, "letters": texts, "plan_key": plan_key, "lists": lists}


_OPEN_RUN = Script("open_run")
_SENT, _UNPREPARED = 2, -1
"""Its answers where it has put all messages into their queues, and where something is missing before it opens a run."""
