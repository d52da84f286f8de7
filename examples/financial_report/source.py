"""The annual report that is read, and what a program finds in it by its form: labels, tables, headings and tenses."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from typing_extensions import TypedDict

BUNDLED = Path(__file__).with_name("annual_report.md")
OPENING_CHARS = 6_000
MOST_FIGURES = 20
MOST_RISKS = 10

_PAGE = re.compile(r"\[page (\d+)\]")
_HEADING = re.compile(r"(#{1,6})\s+(.+)")
_ALONE = re.compile(r"^(#{1,6} .+|\[page \d+\])$", re.MULTILINE)
_LABEL = re.compile(r"[-*•]?\s*([A-Z][\w ]{1,40}:\s+\S.{0,60})")
_NUMBER = re.compile(r"[-−]?\d[\d,.]*")
_MONEY = re.compile(r"\b([A-Z]{3}) m\b")
_SENTENCE_END = re.compile(r"(?<=[.!?]) (?=[A-Z0-9“\"])")
_RISK = re.compile(r"\brisks?\b", re.IGNORECASE)
_DANGER = re.compile(r"\b(risks?|claims?|loss|losses|overdue|impairment|shortage|attack)\b", re.IGNORECASE)
_STEP = re.compile(
    r"\b(we (have|hold|hedge)|are to|will be replaced|has committed|have agreed|opens|needs)\b", re.IGNORECASE
)
_OUTLOOK = re.compile(r"\boutlook\b", re.IGNORECASE)
_AHEAD = re.compile(
    r"\b(we (expect|plan)|(is|are) to|will (be|follow|cost|change)|from \d{4} on)\b", re.IGNORECASE
)
_LEANS = re.compile(r"(It|Its|They|Their|This|These|That|Such|Both|By|Until|Since|We (recognise|want))\b")
"""How sentences begin that say little without the one before."""


class Source(TypedDict):
    """The text of an annual report, and parts of it.

    Attributes:
        text: all of it.
        opening: the prose of its first pages, which say what the company does.
        facts: labelled lines, key figures and risks, a line each.
        outlook: sentences about what is to come.
        steps: sentences about what the company does about its risks and aims.
        questions: what the risks and the largest changes of key figures lead to ask.
    """

    text: str
    opening: str
    facts: list[str]
    outlook: list[str]
    steps: list[str]
    questions: list[str]


class _Paragraph(NamedTuple):
    """Running text, its page, and the headings that it stands under: that of its part of the report, and its own."""

    sentences: tuple[str, ...]
    page: int
    part: str
    heading: str


class _Figure(NamedTuple):
    """A row of a table of figures."""

    name: str
    value: str
    unit: str
    before: str
    change: str
    page: int


def source(path: str | None = None) -> Source:
    """Reads an annual report, a text in UTF-8; default: the bundled one, of a company that does not exist.

    Raises:
        ValueError: it cannot be read.
    """
    try:
        text = Path(path or BUNDLED).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(
            f"the annual report {path!r} cannot be read ({error}); give the path of a text"
        ) from error
    return read(text)


def read(text: str) -> Source:
    """What the form of a report tells."""
    first = text if len(text) <= OPENING_CHARS else text[:OPENING_CHARS].rpartition("\n\n")[0]
    opening, rest = list(_paragraphs(first)), list(_paragraphs(text))
    risks = _risks(rest)
    figures = list(_figures(text))
    said = {sentence for one in (*opening, *risks) for sentence in one.sentences}
    rest.sort(key=lambda one: not _OUTLOOK.search(one.part))
    later = (sentence for one in rest for sentence in one.sentences if sentence not in said)
    return Source(
        text=text,
        opening="\n\n".join(" ".join(one.sentences) for one in opening) or text[:OPENING_CHARS],
        facts=[*_labels(text), *map(_figure_line, figures[:MOST_FIGURES]), *map(_risk_line, risks)],
        outlook=_distinct(one for one in later if _AHEAD.search(one) and not _LEANS.match(one)),
        steps=_distinct(f"{_topic(one)}: {step}" for one in risks for step in _steps(one)),
        questions=_distinct(_questions(risks, figures)),
    )


def _paragraphs(text: str) -> Iterator[_Paragraph]:
    """The paragraphs of whole sentences."""
    page, part, heading = 1, "", ""
    for block in re.split(r"\n\s*\n", _ALONE.sub(r"\n\1\n", text)):
        line = " ".join(block.split())
        if mark := _PAGE.fullmatch(line):
            page = int(mark[1])
        elif named := _HEADING.fullmatch(line):
            heading = named[2]
            part = heading if len(named[1]) < 3 else part
        elif line.endswith((".", "!", "?")) and line[0] not in "|-*•":
            yield _Paragraph(tuple(_SENTENCE_END.split(line)), page, part, heading)


def _risks(paragraphs: list[_Paragraph]) -> list[_Paragraph]:
    """Those of the risk report; of a report that has none, those that speak of dangers."""
    told = [one for one in paragraphs if _RISK.search(one.part) and not _RISK.search(one.heading)]
    return (told or [one for one in paragraphs if _DANGER.search(" ".join(one.sentences))])[:MOST_RISKS]


def _steps(risk: _Paragraph) -> list[str]:
    """What is done about a risk; its first sentence says what it is."""
    return [sentence for sentence in risk.sentences[1:] if _STEP.search(sentence)]


def _labels(text: str) -> Iterator[str]:
    """Lines such as `Revenue: 1,382.2 million euros`."""
    for line in text.splitlines():
        if label := _LABEL.fullmatch(line.strip()):
            yield label[1]


def _figures(text: str) -> Iterator[_Figure]:
    """The rows of the first table that compares two years."""
    money = _MONEY.search(text)
    page, compares = 1, False
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if mark := _PAGE.fullmatch(line.strip()):
            page = int(mark[1])
        elif line.startswith("|") and cells[-1] == "Change" and len(cells) == 4:
            compares = True
        elif compares and not line.startswith("|"):
            return
        elif compares and (value := _NUMBER.match(cells[1])):
            unit = _unit(cells[0], cells[1], money[0] if money else "million")
            yield _Figure(cells[0].partition(" (")[0], value[0], unit, cells[2], cells[3], page)


def _unit(name: str, value: str, money: str) -> str:
    if "%" in value:
        return "%"
    if "share" in name.lower():
        return money.removesuffix(" m")
    if "employees" in name.lower() or "people" in name.lower():
        return "people"
    return "times" if " to " in name else money


def _figure_line(figure: _Figure) -> str:
    name = " ".join(word[0].upper() + word[1:] for word in figure.name.split() if word[0].isalnum())
    return f"{name}: value {figure.value} {figure.unit}, page {figure.page}, a key figure"


def _risk_line(risk: _Paragraph) -> str:
    steps = _steps(risk)
    told = " ".join(sentence for sentence in risk.sentences if sentence not in steps)
    return f"{_topic(risk)} (risk, page {risk.page}): {told}"


def _topic(risk: _Paragraph) -> str:
    return risk.heading or "A danger"


def _questions(risks: list[_Paragraph], figures: list[_Figure]) -> Iterator[str]:
    """Two about risks, then one about a figure, of which those that changed most come first."""
    changed = sorted(figures, key=lambda figure: -abs(_number(figure.change)))
    for place, figure in enumerate(changed):
        yield from map(_risk_question, risks[2 * place : 2 * place + 2])
        yield _figure_question(figure)
    yield from map(_risk_question, risks[2 * len(changed) :])


def _number(text: str) -> float:
    found = _NUMBER.search(text)
    return float(found[0].replace("−", "-").replace(",", "")) if found else 0.0


def _risk_question(risk: _Paragraph) -> str:
    return f"What has been done about {_lower(_topic(risk))} since the report was written?"


def _figure_question(figure: _Figure) -> str:
    verb = "fall" if figure.change[:1] in "-−" else "rise"
    return f"Why did {_lower(figure.name)} {verb} from {figure.before} to {figure.value} ({figure.unit})?"


def _lower(name: str) -> str:
    """The name in the middle of a sentence."""
    return name if name[1:2].isupper() else name[:1].lower() + name[1:]


def _distinct(sentences: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(sentences))
