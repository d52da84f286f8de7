"""The command that learns probabilities from outcomes: calibrate."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from mosaic_queues.errors import InputError
from mosaic_queues.files import read_file
from mosaic_tasks.cli.options import JsonOption
from mosaic_tasks.cli.output import console, print_json, table

if TYPE_CHECKING:
    from mosaic_tasks.mixtures.calibration import Calibration, Outcome

_MAX_TOLD = 120
_MOST_HISTORY_MIB = 64


def calibrate(
    history: Annotated[
        Path, typer.Argument(metavar="HISTORY", help="Labelled outcomes, a line of JSON each.")
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Write the calibration here.")],
    svg: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw the reliability curve here.")] = None,
    method: Annotated[
        Literal["logistic", "isotonic"] | None,
        typer.Option(help="Default: the one that predicts lines better which it has not seen."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Learn how likely answers of mixtures are right, from outcomes.

    A line says what was known of an answer when it was chosen, and whether it was right:
    {"features": {"probability": 0.93, "votes": 3}, "right": true}

    \b
    Examples:
      mosaic calibrate history.jsonl --out calibration.json
      mosaic calibrate history.jsonl --out calibration.json --svg reliability.svg
    """
    import msgspec

    from mosaic_tasks.mixtures.calibration import learn
    from mosaic_tasks.mixtures.reliability import draw_svg

    _check_apart({"HISTORY": history, "--out": out, "--svg": svg})
    learnt = learn(_read(history), method=method)
    assert learnt.curve is not None  # `learn` measures it
    _write(out, msgspec.json.format(msgspec.json.encode(learnt)).decode() + "\n")
    if svg is not None:
        _write(svg, draw_svg(learnt, learnt.curve))
    if as_json:
        print_json(learnt)
    else:
        _tell(learnt, out)


def _check_apart(files: Mapping[str, Path | None]) -> None:
    """Refuses a file that is named twice: what is in it would be lost."""
    seen: dict[object, str] = {}
    for role, path in files.items():
        if path is not None and (first := seen.setdefault(_identity(path), role)) != role:
            raise InputError(f"{first} and {role} are one file, {str(path)!r}; name another for {role}")


def _identity(path: Path) -> object:
    """The same for all names of a file, those that links give it too."""
    try:
        status = path.stat()
    except OSError:  # it is not there yet
        return os.path.realpath(path)
    return status.st_dev, status.st_ino


def _read(path: Path) -> list[Outcome]:
    """The lines of a history; what was scored again counts once, as it was scored last."""
    try:
        lines = read_file(path, most_mib=_MOST_HISTORY_MIB).split(b"\n")
    except OSError as error:
        raise InputError(f"cannot read the history {str(path)!r}: {error.strerror}") from error
    read = [(number, _outcome(line, path, number)) for number, line in enumerate(lines, 1) if line.strip()]
    last = {(one.run, one.node) if one.run else number: one for number, one in read}
    return list(last.values())


def _outcome(line: bytes, path: Path, number: int) -> Outcome:
    import msgspec

    from mosaic_tasks.mixtures.calibration import Outcome

    try:
        return msgspec.json.decode(line, type=Outcome)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        shown = line[:_MAX_TOLD].decode("utf-8", "replace").strip()
        raise InputError(
            f'{path}:{number}: {error}: {shown!r}; write {{"features": {{"NAME": NUMBER}}, "right": true}}'
        ) from error


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        raise InputError(
            f"cannot write {str(path)!r}: {error.strerror}; name a file that can be written"
        ) from error


def _tell(learnt: Calibration, out: Path) -> None:
    assert learnt.curve is not None  # `learn` measures it
    typer.echo(f"calibration: {out}: {learnt.method}, {learnt.lines} lines, {learnt.base:.1%} right")
    typer.echo(f"on lines left out: ECE {learnt.curve.ece:.3f}, Brier {learnt.curve.brier:.3f}")
    rows = table("PREDICTED", "RIGHT", "LINES")
    for each in learnt.curve.bins:
        rows.add_row(f"{each.predicted:.1%}", f"{each.right:.1%}", str(each.lines))
    console(unknown_width=80).print(rows)
