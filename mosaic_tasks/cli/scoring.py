"""Commands about what is learned of experts: score, experts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mosaic_queues.errors import InputError
from mosaic_tasks.cli.options import JsonOption, RunArgument, utf8
from mosaic_tasks.cli.output import console, print_json, table
from mosaic_tasks.inspection.wording import dollars, duration

if TYPE_CHECKING:
    from mosaic_tasks.execution.mixtures.scoring import Score
    from mosaic_tasks.mixtures.calibration import Outcome
    from mosaic_tasks.mixtures.experience import Experience

_MOST_SHOWN = 3
"""Experts that are named beside one."""


def score(
    run_id: RunArgument,
    node: Annotated[str, typer.Argument(metavar="NODE", callback=utf8, help="A mixture of the run.")],
    value: Annotated[
        float, typer.Argument(metavar="VALUE", help="How right its answer was: 0 wrong, 1 right.")
    ],
    answer: Annotated[
        str | None,
        typer.Option(metavar="TRUTH", callback=utf8, help="The right answer: each expert is judged by it."),
    ] = None,
    history: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Add a line to this history, for `mosaic calibrate`.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Say how right the answer of a mixture was, so that its experts are believed more or less from now on.

    Scoring again goes in the place of the last score of that node.

    \b
    Examples:
      mosaic score $RUN answer 1
      mosaic score $RUN answer 0 --answer 18 --history history.jsonl
    """
    from mosaic_tasks.client import get_run

    with _opened(history) as lines:
        scored = get_run(run_id).score(node, value, answer=answer)
        if lines is not None and scored.line is not None:
            _append(lines, scored.line)
    if as_json:
        print_json(scored)
    else:
        typer.echo(_told(scored))


@contextmanager
def _opened(path: Path | None) -> Iterator[FileIO | None]:
    """A history to be written; one that cannot be is told before anything is scored."""
    if path is None:
        yield None
        return
    try:
        file = FileIO(str(path), "ab")
    except OSError as error:
        raise InputError(f"cannot write the history {str(path)!r}: {error.strerror}") from error
    with file:
        yield file


def _append(file: FileIO, line: Outcome) -> None:
    import msgspec

    try:
        file.write(msgspec.json.encode(line) + b"\n")
    except OSError as error:
        raise InputError(
            f"it is scored, but the history {file.name!r} cannot be written: {error.strerror}; score it again"
        ) from error


def _told(scored: Score) -> str:
    said = ", ".join(f"{name} {_share(right)}" for name, right in scored.judged.items())
    return f"scored {scored.node} with {scored.value:g}: {said or 'which says nothing of its experts'}"


def _share(right: float) -> str:
    return {0.0: "wrong", 1.0: "right"}.get(right, f"{right:.0%} right")


def experts(
    tenant: Annotated[str, typer.Option(metavar="NAME", callback=utf8, help="Whose runs taught it.")] = "",
    capability: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            callback=utf8,
            help="As `select` names it, or WORKFLOW/NODE of a mixture that names experts.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show what runs taught of the experts of mixtures.

    QUALITY is the share of right answers that is expected, with the interval in which it lies with 90 %. FAULTS are
    answers that do not count: they refuse, are truncated, do not fit. TOGETHER is with whom it was wrong, of how often
    both were judged.

    \b
    Examples:
      mosaic experts
      mosaic experts --tenant acme --capability math --json
    """
    from mosaic_tasks.app import app
    from mosaic_tasks.execution.mixtures.expert_learning import experiences
    from mosaic_tasks.execution.process import process_for

    known = experiences(process_for(app), tenant)
    scopes = known.scopes() if capability is None else [capability]
    found = {scope: everyone for scope in scopes if (everyone := known.everyone(scope))}
    if as_json:
        print_json({"tenant": tenant, "scopes": {scope: _listed(each) for scope, each in found.items()}})
    elif not found:
        typer.echo("nothing is known of experts yet; mixtures that run teach it, and `mosaic score`")
    else:
        _show(found)


def _listed(everyone: dict[str, Experience]) -> list[dict[str, Any]]:
    import msgspec

    from mosaic_tasks.mixtures.experience import expected

    pairs = _both_ways(everyone)
    listed = []
    for name, known in everyone.items():
        mean, low, high = (round(part, 4) for part in expected(known))
        told = {**msgspec.structs.asdict(known), "together": pairs[name]}
        listed.append({"expert": name, "expected": mean, "interval": (low, high), **told})
    return sorted(listed, key=lambda row: (-row["expected"], row["expert"]))


def _both_ways(everyone: dict[str, Experience]) -> dict[str, dict[str, tuple[float, float]]]:
    """With whom each errs: a pair is kept at one of its two."""
    pairs: dict[str, dict[str, tuple[float, float]]] = {name: {} for name in everyone}
    for name, known in everyone.items():
        for other, pair in known.together.items():
            pairs[name][other] = pair
            pairs.setdefault(other, {})[name] = pair
    return pairs


def _show(found: dict[str, dict[str, Experience]]) -> None:
    rows = table(
        "SCOPE", "EXPERT", "RIGHT", "WRONG", "QUALITY", "FAULTS", "CALLS", "PRICE", "TIME", "TOGETHER"
    )
    for scope, everyone in found.items():
        for each in _listed(everyone):
            rows.add_row(scope, *_row(each))
    console(unknown_width=140).print(rows)


def _row(each: dict[str, Any]) -> tuple[str, ...]:
    low, high = each["interval"]
    return (
        each["expert"],
        f"{each['right'] + each['weak_right']:.3g}",
        f"{each['wrong'] + each['weak_wrong']:.3g}",
        f"{each['expected']:.0%} ({low:.0%} to {high:.0%})",
        f"{each['faults']:.0%}",
        f"{each['calls']:.0f}",
        "" if each["usd"] is None else dollars(each["usd"]),
        duration(1000 * each["seconds"]) if each["calls"] else "",
        _together(each["together"]),
    )


def _together(pairs: dict[str, tuple[float, float]]) -> str:
    """Those with whom it was wrong most often."""
    wrong = sorted((pair for pair in pairs.items() if pair[1][0]), key=lambda pair: -pair[1][0])
    return ", ".join(f"{name} {both:.3g} of {judged:.3g}" for name, (both, judged) in wrong[:_MOST_SHOWN])
