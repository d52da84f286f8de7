"""What the policies of mixtures take and give.

A mixture asks *experts*, in *waves*. Each answer that came is a `Heard`; those that say the same make a `Candidate`;
a `View` is all that is known at a moment, and the *gate* says of it whether the leading candidate is certain enough.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Form = Literal["number", "choice", "json", "span", "code", "text"]
GateKind = Literal["probability", "posterior", "dirichlet", "unanimous", "margin", "quorum", "cost", "none"]
AggregatorKind = Literal["majority", "weighted", "verify", "build", "rank", "synthesis"]
Problem = Literal["empty", "unreadable", "refused", "truncated", "schema", "pattern", "entity"]


class AnswerForm(msgspec.Struct, frozen=True, omit_defaults=True):
    """How answers are compared.

    Attributes:
        form: what an answer is: `number` (with units, currency, percent, fractions), `choice` (one of `choices`, or of
            letters), `json` (equal values), `span` (a few words), `code` (equal once formatted), `text` (alike in
            meaning).
        field: the part of a JSON answer that is compared, `a.b`; empty: all of it.
        choices: of `choice`: what may be chosen; empty: a letter.
        tolerance: of `number`: relative difference up to which two are equal.
        similarity: of `text`, 0 to 1: from there on two texts say the same.
        embedding: of `text`: a model of sentence-transformers by which they are compared; empty: by their words.
    """

    form: Form = "text"
    field: str = ""
    choices: tuple[str, ...] = ()
    tolerance: float = 0.0
    similarity: float = 0.85
    embedding: str = ""


class Rules(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an answer must hold to count.

    Attributes:
        pattern: a regular expression that is found in it.
        entities: words that are in it, whatever their case.
        refusals: an answer that refuses does not count.
    """

    pattern: str = ""
    entities: tuple[str, ...] = ()
    refusals: bool = True


class Gate(msgspec.Struct, frozen=True, omit_defaults=True):
    """When a mixture stops asking.

    Attributes:
        kind: `probability`: that the leader is right; `posterior`: that it stays ahead of the second (Beta on the two);
            `dirichlet`: the same against all; `unanimous`: the last `window` said the same; `margin`: the leader has
            `margin` votes more than the second; `quorum`: `quorum` votes for one answer (below 1: a share of all
            experts); `cost`: one more call is worth less than it costs; `none`: never, all experts are asked.
        confidence: of `probability`, `posterior` and `dirichlet`; of the others the probability that is enough by
            itself, where it is set.
        worth_usd: of `cost`: what a right answer is worth.
        second_usd: of `cost`: what a second of waiting costs.
    """

    kind: GateKind = "probability"
    confidence: float | None = 0.95
    window: int = 3
    margin: int = 2
    quorum: float = 0.8
    worth_usd: float = 0.01
    second_usd: float = 0.0


class Profile(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is known of an expert, for one capability.

    Attributes:
        quality: expected share of right answers, before outcomes: the model pool's measured quality.
        right, wrong: outcomes, which may be fractions.
        usd: of a call.
        latency_s: of a call.
        tokens: that it writes.
        context_tokens: what it can read, 0: not known.
        agrees: by other expert, how often both were wrong together, as (both wrong, both judged).
    """

    name: str
    model: str = ""
    quality: float = 0.7
    right: float = 0.0
    wrong: float = 0.0
    usd: float = 0.0
    latency_s: float = 0.0
    tokens: float = 0.0
    context_tokens: int = 0
    offers: tuple[str, ...] = ()
    agrees: dict[str, tuple[float, float]] = {}


class Answer(msgspec.Struct, frozen=True):
    """An answer in its normal form: two with equal keys say the same.

    Attributes:
        shown: as people write it.
        value: what the mixture gives when it decides for this answer.
    """

    key: str
    shown: str
    value: Any = None


class Heard(msgspec.Struct, frozen=True, omit_defaults=True):
    """What came of one call to an expert.

    Attributes:
        index: the number of the call in its mixture.
        expert: its name; with `samples` several calls have the same.
        text: the answer as it was written, as far as it was heard.
        answer: None where it cannot be read, or does not count.
        problems: why not, or what else is wrong with it.
        confidence: its own probability of being right, by its tokens' log-probabilities; None: not known.
        signals: what its tokens' log-probabilities tell, where the engine has them; see `signals`.
        support: what a verifier says of it, 0 to 1; None: not asked.
        missing: what its expert says that it lacked, such as `data`, `code` or `check`.
        failed: why there is no answer at all.
    """

    index: int
    expert: str
    model: str = ""
    round: int = 0
    text: str = ""
    answer: Answer | None = None
    problems: tuple[Problem, ...] = ()
    confidence: float | None = None
    signals: dict[str, float] = {}
    support: float | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float | None = None
    seconds: float = 0.0
    missing: tuple[str, ...] = ()
    failed: str = ""


class Candidate(msgspec.Struct, frozen=True):
    """One answer, and who gave it.

    Attributes:
        indices: of the calls that said so, in their order.
        weight: the sum of their weights.
        probability: that it is right, calibrated where there is history.
        signals: the means of what its calls' log-probabilities tell.
    """

    answer: Answer
    indices: tuple[int, ...]
    weight: float
    probability: float
    signals: dict[str, float] = {}

    @property
    def votes(self) -> int:
        """How many said so."""
        return len(self.indices)


class View(msgspec.Struct, frozen=True):
    """All that is known at a moment.

    Attributes:
        candidates: the likeliest first.
        order: the keys of the answers in the order in which they came; "" where one does not count.
        planned: how many calls there are at most, in all.
        next_usd, next_s: what one more call costs, and how long it takes.
        next_quality: the probability that the next one is right.
        coincidence: how often two wrong answers are the same.
    """

    candidates: tuple[Candidate, ...]
    order: tuple[str, ...]
    planned: int
    next_usd: float = 0.0
    next_s: float = 0.0
    next_quality: float = 0.5
    coincidence: float = 0.25

    @property
    def leader(self) -> Candidate | None:
        """The likeliest."""
        return self.candidates[0] if self.candidates else None


class Verdict(msgspec.Struct, frozen=True):
    """What a gate says.

    Attributes:
        probability: what it went by: of the leader, in the gate's own terms.
        why: for people.
    """

    passed: bool
    probability: float
    why: str
