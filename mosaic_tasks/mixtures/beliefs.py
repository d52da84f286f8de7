"""What is believed of the answers that were heard: who said the same, what it weighs, how likely it is right.

A call whose expert is right with probability p, and whose wrong answers coincide with other wrong ones with probability
c, tells for its answer with the log-odds `log(p / (1 - p)) - log c`: the optimal weights of a vote (Nitzan and Paroush
1982, Optimal decision rules in uncertain dichotomous choice situations; Dawid and Skene 1979, Maximum likelihood
estimation of observer error-rates), with the second term for questions that have many wrong answers. Set against the
hypothesis that none of the answers is right, an answer's log-odds are the sum of its votes less `-log c`, since a first
answer coincides with nothing.

Experts err together, on the hard questions, so that each further vote repeats a part of what was known: the k-th
strongest counts `1 / (1 + (k - 1) r)`, the form of the design effect of correlated values (Kish 1965, Survey sampling).
Between experts r is 1, so that it counts 1 / k: on recorded GSM8K answers of 12 models the log-loss of the leader's
probability is within 0.005 of what the best r gives, on either half of the questions. Within a *family*, experts of
one model or whose errors nearly coincide, it is higher: an assumption, since those models are no families. One more
vote can only add; and the order in which they came plays no part.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec

from mosaic_tasks.mixtures.agreement import Similarity, groups
from mosaic_tasks.mixtures.semantics import embedded
from mosaic_tasks.mixtures.values import Answer, AnswerForm, Candidate, Heard, Profile, View

PRIOR_STRENGTH = 20.0  # outcomes that a measured quality is worth
COINCIDENCE = 0.25  # of two wrong answers: how often they are the same, where there are many
REPEATED = 1.0  # r: how much further votes repeat the first
FAMILY_REPEATED = 3.0  # and those of one family
TOGETHER = 0.35  # correlation of the errors of two experts of which nothing is known
FAMILY_FROM = 0.65  # correlation from which on two experts are a family
PAIR_STRENGTH = 20.0  # outcomes of a pair that what is known of no pair is worth
MOST_SURE = 0.98  # nobody is believed more than that, nor less than its complement
VOTE = -math.log(COINCIDENCE)  # log-odds that weigh 1: what somebody tells who is right half of the time

Calibration = Callable[[Mapping[str, float]], float]
Votes = list[tuple[Answer, list[Heard]]]


def view_of(
    heard: Sequence[Heard],
    profiles: Mapping[str, Profile],
    form: AnswerForm,
    *,
    planned: int,
    upcoming: Profile | None = None,
    calibration: Calibration | None = None,
    similarity: Similarity | None = None,
    families: Mapping[str, str] | None = None,
) -> View:
    """What is known once `heard` came.

    Args:
        heard: in the order in which they came.
        profiles: of the experts, by name; one of which nothing is known is an average one.
        form: how answers are compared.
        planned: how many calls there are at most, in all.
        upcoming: who would be asked next.
        calibration: from `features` to the probability that the leader is right.
        similarity: of texts, as in `agreement.groups`; default: what the form says.
        families: what `families_of(profiles)` gives, where the caller keeps it.
    """
    votes = _votes(heard, form, similarity)
    kin = families_of(profiles) if families is None else families
    coincidence = _coincidence(form)
    candidates = _candidates(votes, profiles, kin, coincidence)
    keys = {one.index: answer.key for answer, members in votes for one in members}
    after = upcoming or Profile(name="")
    return View(
        candidates=_calibrated(candidates, len(heard), calibration),
        order=tuple(keys.get(one.index, "") for one in heard),
        planned=planned,
        next_usd=after.usd,
        next_s=after.latency_s,
        next_quality=accuracy(after),
        coincidence=coincidence,
    )


def agreeing(view: View) -> View:
    """The view after one more answer that says the same as the leader, of an expert of which no more is known."""
    more = vote(view.next_quality, view.coincidence)
    if view.leader is None:
        candidates: tuple[Candidate, ...] = (Candidate(Answer("?", "?"), (-1,), more, view.next_quality),)
    else:
        gained = more / (1.0 + view.leader.votes * REPEATED)
        odds = math.exp(gained * VOTE)
        candidates = _agreed(view.leader, view.candidates[1:], gained, odds)
    order = (*view.order, candidates[0].answer.key)
    return msgspec.structs.replace(view, candidates=candidates, order=order)


def accuracy(profile: Profile) -> float:
    """Expected share of right answers: of the outcomes, with its measured quality as `PRIOR_STRENGTH` more."""
    outcomes = profile.right + profile.wrong
    return _bounded((profile.quality * PRIOR_STRENGTH + profile.right) / (PRIOR_STRENGTH + outcomes))


def vote(right: float, coincidence: float = COINCIDENCE) -> float:
    """How much the answer of a call weighs that is right with this probability; one that tells nothing weighs 0."""
    return max(_log_odds(_bounded(right)) - math.log(coincidence), 0.0) / VOTE


def stacked(values: Iterable[float], repeated: float) -> float:
    """What votes weigh in all that repeat each other so much: the strongest counts fully."""
    ordered = sorted(values, reverse=True)
    return sum(value / (1.0 + place * repeated) for place, value in enumerate(ordered))


def together(one: Profile, other: Profile) -> float:
    """How much the errors of two experts go together, 0 to 1: `TOGETHER` where no outcomes tell, 1 of one model."""
    if one.name == other.name or (one.model and one.model == other.model):
        return 1.0
    both_wrong, judged = one.agrees.get(other.name) or other.agrees.get(one.name) or (0.0, 0.0)
    return _correlation(1.0 - accuracy(one), 1.0 - accuracy(other), both_wrong, judged)


def families_of(profiles: Mapping[str, Profile]) -> dict[str, str]:
    """The family of each expert, named by a member: those of one model, and those whose errors nearly coincide."""
    family = {name: name for name in profiles}
    models: dict[str, str] = {}
    for name, profile in profiles.items():
        if profile.model:
            _join(family, name, models.setdefault(profile.model, name))
        for other in _judged_with(profile, profiles):
            if together(profile, other) >= FAMILY_FROM:
                _join(family, name, other.name)
    return {name: _head(family, name) for name in family}


def features(candidates: Sequence[Candidate], heard: int) -> dict[str, float]:
    """What a calibration goes by: the leader's probability, votes and lead, among so many calls that were heard, and
    what its tokens' log-probabilities tell, where they are known."""
    leader, *others = candidates
    return {
        "probability": leader.probability,
        "votes": float(leader.votes),
        "share": leader.votes / heard,
        "lead": leader.weight - (others[0].weight if others else 0.0),
        "answers": float(len(candidates)),
        **leader.signals,
    }


def _votes(heard: Sequence[Heard], form: AnswerForm, similarity: Similarity | None) -> Votes:
    """The answers that count, and the calls that gave each."""
    if similarity is None and form.embedding:
        similarity = embedded(form.embedding)
    found = groups([one.answer for one in heard], form, similarity=similarity)
    return [(group.answer, [heard[place] for place in group.members]) for group in found]


def _candidates(
    votes: Votes, profiles: Mapping[str, Profile], kin: Mapping[str, str], coincidence: float
) -> list[Candidate]:
    """The heaviest first; of two that weigh the same the one that was said first."""
    weights = [_weight(members, profiles, kin, coincidence) for _, members in votes]
    odds = _odds([weight * VOTE + math.log(coincidence) for weight in weights])
    found = [
        Candidate(answer, tuple(one.index for one in members), weight, probability, _signals(members))
        for (answer, members), weight, probability in zip(votes, weights, odds, strict=True)
    ]
    return sorted(found, key=lambda one: (-one.weight, min(one.indices)))


def _signals(members: Sequence[Heard]) -> dict[str, float]:
    """The mean of each signal over the calls that have it."""
    found: dict[str, list[float]] = {}
    for one in members:
        for name, value in one.signals.items():
            found.setdefault(name, []).append(value)
    return {name: math.fsum(values) / len(values) for name, values in found.items()}


def _weight(
    members: Sequence[Heard], profiles: Mapping[str, Profile], kin: Mapping[str, str], coincidence: float
) -> float:
    """What those who say the same weigh together."""
    by_family: dict[str, list[float]] = {}
    for one in members:
        by_family.setdefault(kin.get(one.expert, one.expert), []).append(
            vote(_right(one, profiles), coincidence)
        )
    return stacked((stacked(votes, FAMILY_REPEATED) for votes in by_family.values()), REPEATED)


def _right(one: Heard, profiles: Mapping[str, Profile]) -> float:
    """The probability that a call is right, by its expert's accuracy, its own confidence and what its verifier says.

    Those there are, are pooled by the mean of their log-odds (Genest and Zidek 1986, Combining probability
    distributions).
    """
    known = [accuracy(profiles.get(one.expert) or Profile(name=one.expert))]
    known += [_bounded(one.confidence)] if one.confidence is not None else []
    known += [_bounded(one.support)] if one.support is not None else []
    return _probability(sum(map(_log_odds, known)) / len(known))


def _calibrated(
    candidates: Sequence[Candidate], heard: int, calibration: Calibration | None
) -> tuple[Candidate, ...]:
    """The leader gets its calibrated probability; the others keep theirs in proportion, and none overtakes it."""
    if calibration is None or not candidates:
        return tuple(candidates)
    before = candidates[0].probability
    after = min(max(calibration(features(candidates, heard)), 0.0), 1.0)
    share = min(after / before, (1.0 - after) / max(1.0 - before, 1e-12))
    leader, *others = candidates
    return (_with(leader, after), *(_with(one, one.probability * share) for one in others))


def _agreed(
    leader: Candidate, others: Sequence[Candidate], more: float, odds: float
) -> tuple[Candidate, ...]:
    """The candidates once so much weight more, and odds, tell for the leader; -1 stands for the call."""
    whole = leader.probability * odds + 1.0 - leader.probability
    probability = leader.probability * odds / whole
    grown = Candidate(leader.answer, (*leader.indices, -1), leader.weight + more, probability)
    return (grown, *(_with(one, one.probability / whole) for one in others))


def _with(candidate: Candidate, probability: float) -> Candidate:
    return Candidate(candidate.answer, candidate.indices, candidate.weight, probability)


def _odds(log_odds: Sequence[float]) -> list[float]:
    """Probabilities of hypotheses, of which these are the log-odds against that none of them holds."""
    most = max([*log_odds, 0.0])
    parts = [math.exp(one - most) for one in log_odds]
    whole = math.exp(-most) + sum(parts)
    return [part / whole for part in parts]


def _coincidence(form: AnswerForm) -> float:
    """How often two wrong answers are the same: always, where only one is wrong."""
    wrong = len(form.choices) - 1
    return max(COINCIDENCE, 1.0 / wrong) if form.form == "choice" and wrong > 0 else COINCIDENCE


def _correlation(one_wrong: float, other_wrong: float, both_wrong: float, judged: float) -> float:
    """Of two errors, 0 to 1: the phi coefficient of what was judged, with `PAIR_STRENGTH` outcomes like `TOGETHER`."""
    spread = math.sqrt(one_wrong * (1.0 - one_wrong) * other_wrong * (1.0 - other_wrong))
    expected = one_wrong * other_wrong
    both = both_wrong + PAIR_STRENGTH * (expected + TOGETHER * spread)
    return min(max((both / (judged + PAIR_STRENGTH) - expected) / spread, 0.0), 1.0)


def _judged_with(profile: Profile, profiles: Mapping[str, Profile]) -> Iterator[Profile]:
    """Those with which its errors were compared; of a pair that knows of each other, only one is told of the other."""
    for name in profile.agrees:
        other = profiles.get(name)
        if other is not None and (profile.name < name or profile.name not in other.agrees):
            yield other


def _join(family: dict[str, str], one: str, other: str) -> None:
    family[_head(family, one)] = _head(family, other)


def _head(family: Mapping[str, str], name: str) -> str:
    while family[name] != name:
        name = family[name]
    return name


def _bounded(probability: float) -> float:
    return min(max(probability, 1.0 - MOST_SURE), MOST_SURE)


def _log_odds(probability: float) -> float:
    return math.log(probability / (1.0 - probability))


def _probability(log_odds: float) -> float:
    return 1.0 / (1.0 + math.exp(-log_odds))
