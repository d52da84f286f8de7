"""What to give up under load, in the order that was declared: pure.

Load is a number: 1 is what the targets can take. Each step names the load at which it begins, and ends only once the
load has been clearly lower for a while, so that an answer's quality does not change from call to call.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Kind = Literal["cheaper_model", "fewer_experts", "shorter_output"]

_RELIEF = 0.8
"""A step ends when the load is below so much of that at which it began."""
HOLD_S = 2.0
"""For so long the load must be high before the next step begins: a burst is none."""
CALM_S = 15.0
"""For so long the load must be low before the last step ends."""


class Step(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One thing to give up.

    Attributes:
        kind: what.
        load: at which it begins.
        model: `cheaper_model`: which instead.
        share: `fewer_experts`, `shorter_output`: so much of them, above 0 and below 1.
    """

    kind: Kind
    load: float = 1.0
    model: str = ""
    share: float = 0.5

    def __post_init__(self) -> None:
        if self.kind == "cheaper_model" and not self.model:
            raise ValueError("the step 'cheaper_model' names no model; give one of the pool")
        if self.kind != "cheaper_model" and not 0.0 < self.share < 1.0:
            raise ValueError(
                f"{self.share!r} is no share for the step {self.kind!r}; give one between 0 and 1"
            )


class Degrading(msgspec.Struct, frozen=True, kw_only=True):
    """How far things are given up.

    Attributes:
        level: so many steps of the list apply.
        change: the load calls for one step more (1) or less (-1), or for neither (0).
        since_s: for how long it does: since then.
    """

    level: int = 0
    change: Literal[-1, 0, 1] = 0
    since_s: float = 0.0


class Changed(msgspec.Struct, frozen=True, kw_only=True):
    """What a call asks for after the steps that apply.

    Attributes:
        sentences: what was given up, and why; recorded on the result.
    """

    model: str
    experts: int
    output_tokens: int
    sentences: tuple[str, ...] = ()


def advanced(state: Degrading, load: float, *, steps: tuple[Step, ...], now_s: float) -> Degrading:
    """The state after the load was looked at; at most one step more or less."""
    level = min(state.level, len(steps))
    change = _wanted(level, load, steps)
    since_s = state.since_s if change == state.change else now_s
    if change and now_s - since_s >= (HOLD_S if change > 0 else CALM_S):
        return Degrading(level=level + change)
    return Degrading(level=level, change=change, since_s=since_s)


def _wanted(level: int, load: float, steps: tuple[Step, ...]) -> Literal[-1, 0, 1]:
    if level < len(steps) and load >= steps[level].load:
        return 1
    if level > 0 and load < _RELIEF * steps[level - 1].load:
        return -1
    return 0


def degraded(
    state: Degrading,
    steps: tuple[Step, ...],
    *,
    model: str,
    experts: int = 1,
    output_tokens: int = 1024,
    least_experts: int = 1,
    load: float,
) -> Changed:
    """What a call asks for now, of what it would ask for without load.

    Args:
        least_experts: fewer are not asked on account of load.
        load: for the sentences.
    """
    changed = Changed(model=model, experts=experts, output_tokens=output_tokens)
    for step in steps[: state.level]:
        changed = _without(changed, step, load, least_experts)
    return changed


def fewer_experts(
    state: Degrading, steps: tuple[Step, ...], *, experts: int, least: int, load: float
) -> Changed:
    """What a mixture asks for as it begins: the steps of its calls apply to each of these by itself."""
    own = tuple(step for step in steps[: state.level] if step.kind == "fewer_experts")
    at = Degrading(level=len(own))
    return degraded(at, own, model="", experts=experts, least_experts=least, load=load)


def _without(asked: Changed, step: Step, load: float, least_experts: int) -> Changed:
    """One step applied; it says nothing where it changes nothing."""
    values: dict[str, str | int]
    match step.kind:
        case "cheaper_model":
            values, said = {"model": step.model}, f"asked {step.model} instead of {asked.model}"
        case "fewer_experts":
            experts = min(asked.experts, max(least_experts, int(asked.experts * step.share)))
            values, said = {"experts": experts}, f"asked {experts} instead of {asked.experts} experts"
        case "shorter_output":
            tokens = max(1, int(asked.output_tokens * step.share))
            values, said = (
                {"output_tokens": tokens},
                f"limited the answer to {tokens} instead of {asked.output_tokens} tokens",
            )
    after = msgspec.structs.replace(asked, **values)
    if after == asked:
        return asked
    sentence = f"under load ({load:.2f} of what the targets can take): {said}"
    return msgspec.structs.replace(after, sentences=(*asked.sentences, sentence))


__all__ = [
    "CALM_S",
    "HOLD_S",
    "Changed",
    "Degrading",
    "Kind",
    "Step",
    "advanced",
    "degraded",
    "fewer_experts",
]
