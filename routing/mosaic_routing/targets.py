"""What routing decides on: what a call asks for, what it can be sent to, and what was decided. Values alone."""

from __future__ import annotations

import math
from typing import Literal

import msgspec

Objective = Literal["latency", "throughput", "cost"]
"""What a run cares for most."""


class Target(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a call can be sent to: one worker that hosts a deployment, or a provider.

    Attributes:
        name: unique in the fleet: `h100/llama-3.1-8b@gpu3`, `api.openai/gpt-5-mini`.
        deployment: the model on the class or at the provider: `h100/llama-3.1-8b`.
        model: its name in the model pool.
        engine: how a worker asks for it: `vllm:llama-3.1-8b`, `openai:gpt-5-mini`.
        queue: where its worker takes calls from.
        machine: that its worker runs on; empty: others answer.
        slots: requests that it runs at once; more wait.
        active: requests that it was sent and that have not ended.
        backlog_tokens: predicted work of those: the sum of their decisions' `work_tokens`, weights of their leases.
        prefill_tokens_s: prompt tokens that it reads in a second, of one request alone; infinite: at once.
        decode_tokens_s: tokens that it writes in a second for one request, as long as no more than `slots` run.
        first_token_s: until the first token of a prompt of no length.
        input_price, output_price: US dollars for a million tokens.
        quality: measured share of right answers, 0 to 1, of the capability that is asked for.
        context_tokens: prompt and answer together, at most.
        round_trip_s: to the server and back.
        age_s: since its last report.
        is_open: its circuit breaker lets nothing through.
        ready_in_s: its limits let nothing through for so long.
    """

    name: str
    deployment: str
    model: str
    engine: str
    queue: str
    gpu_class: str = "cpu"
    machine: str = ""
    slots: int = 1
    active: int = 0
    backlog_tokens: float = 0.0
    prefill_tokens_s: float = math.inf
    decode_tokens_s: float = 50.0
    first_token_s: float = 0.0
    input_price: float = 0.0
    output_price: float = 0.0
    quality: float = 1.0
    context_tokens: int = 1 << 20
    round_trip_s: float = 0.0
    age_s: float = 0.0
    is_open: bool = False
    ready_in_s: float = 0.0


class Ask(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a call asks for.

    Attributes:
        call: `RUN/CALL`, for ties and hashing.
        targets: names of the deployments that satisfy its requirement; empty: all do.
        input_tokens: of its prompt.
        output_tokens: predicted, mean.
        prefix: fingerprints of its prompt's blocks, each of the prompt up to its end; equal ones share a prefix cache.
        objective: of its run.
        deadline_s: it is worth nothing after so many seconds.
        budget: US dollars that it may cost.
        latency_s: it shall be answered within so many seconds.
        excluded: targets that it was sent to already.
        full: targets that have as many calls before them as their limits let run soon.
        near: machines that it wants to share.
    """

    call: str
    targets: tuple[str, ...] = ()
    input_tokens: float = 0.0
    output_tokens: float = 0.0
    prefix: tuple[int, ...] = ()
    objective: Objective = "latency"
    deadline_s: float = math.inf
    budget: float = math.inf
    latency_s: float = math.inf
    excluded: tuple[str, ...] = ()
    full: tuple[str, ...] = ()
    near: tuple[str, ...] = ()


class Decision(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a call goes, and why.

    Attributes:
        target: its name; empty: nowhere now.
        wait_s: look again after so long, where there is no target now.
        latency_s: predicted, from now to the last token.
        cost: predicted, US dollars.
        work_tokens: what the call takes of its target: its answer's tokens and those that could be written while its
            prompt is read; the weight of its lease.
        cached_tokens: of the prompt, found in the target's prefix cache, as far as is known.
        reasons: sentences for people, the weightiest first; of each target that was left out, why.
    """

    target: str = ""
    wait_s: float = 0.0
    latency_s: float = 0.0
    cost: float = 0.0
    work_tokens: float = 0.0
    cached_tokens: float = 0.0
    reasons: tuple[str, ...] = ()


__all__ = ["Ask", "Decision", "Objective", "Target"]
