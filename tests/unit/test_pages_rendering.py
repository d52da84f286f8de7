"""The templates of the status page: hostile text in every field stays text, and colours stand out."""

from __future__ import annotations

import asyncio
import re
from html.parser import HTMLParser
from importlib.resources import files

import httpx2
import made_mixtures
import msgspec
import pytest
from fastapi import APIRouter, FastAPI
from made_runs import finished, report_plan
from starlette.exceptions import HTTPException

from mosaic_queues.transitions import RunRecord
from mosaic_tasks.definition.plan import Plan
from mosaic_tasks.gateway.pages.live import changes
from mosaic_tasks.gateway.pages.looks import Detail, Look
from mosaic_tasks.gateway.pages.rendering import GLYPHS, PageRoute, fragment, wire
from mosaic_tasks.gateway.pages.run import PARTS
from mosaic_tasks.gateway.pages.texts import Text, output_text
from mosaic_tasks.inspection.arranging import arranged
from mosaic_tasks.inspection.diagram import URGENCY, boxes, diagram
from mosaic_tasks.inspection.explaining import Explanation
from mosaic_tasks.inspection.gantt import gantt
from mosaic_tasks.inspection.progress import NodeView, RunView, project
from mosaic_tasks.inspection.timeline import timeline

BAD = "\"'><script>alert(1)</script><img src=x onerror=alert(1)>&amp;\u202e"
SCOPES = frozenset({"read", "cancel", "score"})


def hostile_node(node: NodeView) -> NodeView:
    record = node.record and msgspec.convert(_hostile(msgspec.to_builtins(node.record)), type(node.record))
    return node._replace(
        name=f"{node.name}{BAD}",
        error=BAD,
        holder=BAD,
        queue=BAD,
        target=BAD,
        route=BAD,
        hedges=2,
        hedge=BAD,
        tags=(BAD,),
        asked_by=node.asked_by and f"{node.asked_by}{BAD}",
        record=record,
    )


def _hostile(value: object) -> object:
    if isinstance(value, dict):
        return {key: each if key in ("by", "kind", "call") else _hostile(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_hostile(each) for each in value]
    return BAD if isinstance(value, str) else value


def hostile(plan: Plan, view: RunView, events: object, *, shown: int) -> Look:
    nodes = tuple(hostile_node(node) for node in view.nodes)
    view = view._replace(name=BAD, error=BAD, nodes=nodes)
    chart = timeline(plan, events, now_ms=900)  # type: ignore[arg-type]
    lanes = tuple(
        lane._replace(
            name=BAD, hedges=BAD, decision=BAD, losses=tuple(x._replace(process=BAD) for x in lane.losses)
        )
        for lane in chart.lanes
    )
    chart = chart._replace(name=BAD, lanes=lanes)
    return Look(
        record=RunRecord("0193", "running", "p", BAD, 0, None, BAD),
        view=view,
        tenant=BAD,
        diagram=diagram(plan),
        boxes=tuple(boxes(diagram(plan), nodes)),
        timeline=chart,
        gantt=gantt(chart),
        waits=[Explanation(BAD, BAD)],
        nodes=arranged(nodes),
        own=len(nodes),
        output=BAD,
        said=Text(BAD, BAD),
        detail=Detail(nodes[shown], msgspec.structs.replace(plan.nodes[shown], target=BAD), Text(BAD)),
        now_ms=900,
    )


class Elements(HTMLParser):
    """Collects elements and attributes, and whether text is where a script could be."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append(tag)
        self.found += [f"{tag} {name}" for name, _ in attrs]


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("kind", ["report", "mixture"])
def test_hostile_text_makes_no_element_and_no_attribute(part: str, kind: str) -> None:
    plan, story = (
        (report_plan(), finished()) if kind == "report" else (made_mixtures.plan(), made_mixtures.over())
    )
    look = hostile(plan, project(plan, story.events), story.events, shown=2 if kind == "report" else 0)
    text = fragment(f"_{part}", look=look, scopes=SCOPES)
    found = Elements(text).found
    assert not {"script", "img"} & set(found)
    assert [each for each in found if re.search(r" (on\w+|src|style|srcdoc)$", each)] == []
    assert "alert(1)" in text
    assert "<script" not in text


def test_half_a_character_is_a_question_mark() -> None:
    assert fragment("failure", principal=None, title="x", detail="a\ud83db").count("a?b") == 1


def test_of_an_output_with_texts_of_several_lines_people_read_these_as_they_are() -> None:
    told = output_text({"title": "A week", "body": "# One\n\n- two\n", "figures": {"n": 3}}).text
    assert told == 'title: A week\nbody:\n\n# One\n\n- two\n\nfigures: {\n  "n": 3\n}'
    assert output_text({"title": "A week"}).text == '{\n  "title": "A week"\n}'


def test_an_error_that_nobody_expected_is_told_on_a_page_without_its_words() -> None:
    web, router = FastAPI(), APIRouter(route_class=PageRoute)

    @router.get("/breaks")
    async def breaks() -> None:
        raise ZeroDivisionError("the secret")

    @router.get("/large")
    async def large() -> None:
        raise HTTPException(413, "the body is too large")

    web.include_router(router)

    async def ask(path: str) -> tuple[int, str]:
        transport = httpx2.ASGITransport(web)
        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            answer = await client.get(path)
            assert answer.headers["content-type"].startswith("text/html")
            return answer.status_code, answer.text

    status, text = asyncio.run(ask("/breaks"))
    assert (status, "secret" in text, "something went wrong here" in text) == (500, False, True)
    status, text = asyncio.run(ask("/large"))
    assert (status, "the body is too large" in text) == (413, True)


def test_states_have_a_shape_of_their_own_each() -> None:
    assert set(GLYPHS) == set(URGENCY)
    assert len(set(GLYPHS.values())) == len(GLYPHS)


def test_a_wire_is_a_curve_between_layers_and_straight_beside_boxes() -> None:
    path = wire([(190, 20), (254, 60), (444, 60), (508, 90)])
    assert re.sub(r"[-\d. ]", "", path) == "MCLC"


def test_what_a_browser_counts_on_by_itself_is_no_change() -> None:
    before = {"head": 'for <span data-since="7" data-took="3">3 s</span>', "graph": "a"}
    assert changes(before, {"head": 'for <span data-since="7" data-took="9">9 s</span>', "graph": "a"}) == {}
    assert changes(
        before, {"head": 'for <span data-since="8" data-took="3">3 s</span>', "graph": "b"}
    ).keys() == {
        "head",
        "graph",
    }
    assert changes({}, before) == before


# -- colours: by the formula of WCAG 2.2, section 1.4.3 -------------------------------------------------------------

CSS = files("mosaic_tasks.gateway.pages").joinpath("assets", "status.css").read_text("utf-8")


def colours(theme: str) -> dict[str, str]:
    light, dark = re.findall(r":root \{(.*?)\}", CSS, re.DOTALL)
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", light if theme == "light" else dark))


def luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_stands_out_from_its_ground(theme: str) -> None:
    found = colours(theme)
    texts = ["ink", "faint", "link", "waiting", "ready", "running", "done", "failed", "cancelled", "quiet"]
    pairs = [(text, ground) for text in texts for ground in ("ground", "card", "hover")]
    pairs += [(state, f"{state}-face") for state in ("ready", "running", "done", "failed", "cancelled")]
    pairs += [(text, ground) for text in ("ink", "faint") for ground in found if ground.endswith("-face")]
    weak = {
        pair: round(ratio, 2) for pair in pairs if (ratio := contrast(*(found[each] for each in pair))) < 4.5
    }
    assert weak == {}


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_bars_stand_out_from_their_ground(theme: str) -> None:
    found = colours(theme)
    weak = {
        bar: contrast(found[bar], found["card"]) for bar in ("wait-bar", "idle-bar", "pause-bar", "running")
    }
    assert {bar: ratio for bar, ratio in weak.items() if ratio < 3} == {}


def test_the_style_sheet_and_the_script_load_nothing() -> None:
    script = files("mosaic_tasks.gateway.pages").joinpath("assets", "status.js").read_text("utf-8")
    assert not re.search(r"url\(|@import|https?:", CSS)
    assert not re.search(r"https?:|eval|import\b", script)
