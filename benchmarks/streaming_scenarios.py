"""The workflows that are run streaming and as barriers: what they are, the recorded answers, and their lower bounds.

Each is one workflow, from one file; `barrier` makes the other side of it.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from streaming_bound import After, Step, answer, batches, bound_s, tool

from mosaic_tasks import Workflow, compile_workflow, submit
from mosaic_tasks.definition.edges import SO_FAR
from mosaic_tasks.engines.protocol import EngineRequest, Message
from mosaic_tasks.engines.recordings import Recording, find

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
START_S = 120.0
_Item = TypeVar("_Item")


@dataclass(frozen=True)
class Scenario:
    """A workflow and how it is run.

    Attributes:
        read: the node whose text a reader sees, which is the final report.
        steps: for the lower bound.
        places: queues with a worker of their own, and how many calls it takes at once; none has to wait in the others.
    """

    workflow: Workflow
    read: str
    steps: Sequence[Step]
    inputs: Mapping[str, Any] = field(default_factory=dict)
    places: Mapping[str, int] = field(default_factory=dict)

    @property
    def bound_s(self) -> float:
        """No run can be shorter."""
        return bound_s(self.steps, self.places)


def barrier(workflow: Workflow) -> Workflow:
    """The same workflow where every node waits until what it reads has closed.

    A fold, and an agent whose prompt reads its own answer so far, are streams by their nature: they begin when that is
    whole, and take it at once. The limit of an answer to a batch is none of the answer to all of them.
    """
    plan = compile_workflow(workflow)
    data = _data(workflow)
    for node in plan.nodes:
        written = data["nodes"][node.name]
        is_by_nature = node.kind == "tool" or (node.agent is not None and SO_FAR in node.agent.prompt)
        for edge in node.edges:
            if edge.kind == "stream" and node.agent is not None:
                written["agent"].pop("max_tokens", None)
            edges, source = written.setdefault("edges", {}), plan.nodes[edge.source].name
            keeps = edge.kind == "stream" and is_by_nature
            edges[source] = {**edges[source], "stable": True} if keeps else {"kind": "final"}
        written.pop("batch", None)
    return Workflow.from_data(data)


def _data(workflow: Workflow) -> dict[str, Any]:
    return workflow.model_dump(by_alias=True, exclude_defaults=True, mode="json")


def _with_model(workflow: Workflow, recordings: Path) -> Workflow:
    """The workflow with all of its agents answered from a file."""
    data = _data(workflow)
    data["defaults"] = {**data.get("defaults", {}), "model": f"replay:{recordings}"}
    return Workflow.from_data(data)


def _write(path: Path, recorded: Iterable[Recording], speed: float) -> None:
    """Keeps answers for the engine, so many times as fast as they were recorded."""
    path.write_bytes(b"".join(msgspec.json.encode(_faster(each, speed)) + b"\n" for each in recorded))


def _faster(recorded: Recording, speed: float) -> Recording:
    rate, prefill_rate = recorded.tokens_per_s, recorded.prefill_tokens_per_s
    return msgspec.structs.replace(
        recorded,
        first_token_s=recorded.first_token_s / speed,
        tokens_per_s=rate and rate * speed,
        prefill_tokens_per_s=prefill_rate and prefill_rate * speed,
        deltas=tuple((at_s / speed, text) for at_s, text in recorded.deltas),
    )


def _found(path: Path, prompt: str) -> Recording:
    """The recording that answers a prompt."""
    return find(str(path), EngineRequest(messages=(Message("user", prompt),)))


def _by(size: int, items: Sequence[_Item]) -> list[Sequence[_Item]]:
    """Items in batches of so many."""
    return [items[first : first + size] for first in range(0, len(items), size)]


# -- a chain of agents ---------------------------------------------------------------------------------------------

STAGES = {"draft": 1149, "critique": 1009, "revision": 1216, "edit": 994}
"""Characters of each stage's answer: the lengths of four answers of claude-3-haiku to questions of GSM8K."""
FIRST_TOKEN_S = 0.35
TOKENS_PER_S = 60.0
SENTENCES = 8
TOGETHER = 2
"""Sentences that a stage answers at once."""
_FILLER = (
    " the figures of the second quarter were read again and agree with what the ledger says about them" * 9
)


def chain(directory: Path, speed: float) -> Scenario:
    """Draft, critique, revision, edit: each stage reads the sentences of the one before, two at a time."""
    path = directory / "chain.jsonl"
    _write(path, _chain_recordings(), speed)
    return Scenario(_chain_workflow(path), "edit", list(_chain_steps(path)))


def _chain_workflow(path: Path) -> Workflow:
    nodes: dict[str, Any] = {}
    before = ""
    for stage in STAGES:
        material = f"{{{{ {before} if {before} is string else {before} | join(' ') }}}}" if before else ""
        nodes[stage] = {"agent": {"prompt": f"Do the {stage}.\n\n{material}"}}
        if before:
            nodes[stage]["edges"] = {before: {"kind": "stream", "by": "sentence"}}
            nodes[stage]["batch"] = {"min_items": TOGETHER, "max_items": TOGETHER}
        before = stage
    workflow = Workflow.from_data({"name": "chain", "nodes": nodes, "output": before})
    return _with_model(workflow, path)


def sentence(stage: str, number: int) -> str:
    """A sentence of a stage's answer; together with what stands between them they have the stage's length."""
    text = f"Point {number} of the {stage} says that{_FILLER}"
    return f"{text[: STAGES[stage] // SENTENCES].rpartition(' ')[0]}."


def _pairs(stage: str) -> list[Sequence[str]]:
    """The sentences of a stage, as they are answered together."""
    return _by(TOGETHER, [sentence(stage, number) for number in range(1, SENTENCES + 1)])


def _recorded(text: str, *match: str) -> Recording:
    return Recording(text=text, match=match, first_token_s=FIRST_TOKEN_S, tokens_per_s=TOKENS_PER_S)


def _whole(stage: str) -> str:
    return "\n\n".join(" ".join(pair) for pair in _pairs(stage))


def _chain_recordings() -> Iterator[Recording]:
    """Of each stage the whole answer, to all sentences of the stage before, and that to each pair of them."""
    before = ""
    for stage in STAGES:
        asked = f"Do the {stage}."
        said = _pairs(before) if before else []
        yield _recorded(_whole(stage), asked, *(each for pair in said for each in pair))
        for pair, reply in zip(said, _pairs(stage), strict=False):
            yield _recorded(" ".join(reply), asked, *pair)
        before = stage


def _chain_steps(path: Path) -> Iterator[Step]:
    """A stage begins a pair when it has come and the pair before is answered."""
    first = next(iter(STAGES))
    yield answer(first, _found(path, f"Do the {first}."))
    came: list[After] = [(first, said[-1]) for said in _pairs(first)]
    for before, stage in pairwise(STAGES):
        recorded = [_found(path, f"Do the {stage}. {' '.join(said)}") for said in _pairs(before)]
        steps = batches(stage, zip(recorded, ([each] for each in came), strict=True))
        yield from steps
        came = [(step.name, "") for step in steps]


# -- the financial report ------------------------------------------------------------------------------------------


def finance(directory: Path, speed: float) -> Scenario:
    """The example, with its own recordings."""
    example = EXAMPLES / "financial_report"
    path = directory / "finance.jsonl"
    lines = (example / "recordings.jsonl").read_bytes().splitlines()
    _write(path, (msgspec.json.decode(line, type=Recording) for line in lines), speed)
    workflow = _with_model(Workflow.from_file(example / "workflow.yaml"), path)
    annual_report = (example / "annual_report.md").read_text(encoding="utf-8")
    return Scenario(workflow, "report", _finance_steps(path, annual_report))


def _finance_steps(path: Path, annual_report: str) -> list[Step]:
    """Steps are called as the nodes whose calls they are."""
    asked = f"Extract the figures of the annual report below as JSON {annual_report}"
    extract = answer("extract", _found(path, asked))
    ratios = tool("ratios", 0.0, after=[_field(extract, "current_liabilities")])
    risks = _risks(path, extract)
    reading = partial(_reading, path)
    paragraphs = reading("risk_paragraph", "Write the next paragraph of the section", risks)
    outlook = reading(
        "outlook", "Write what the risks below mean for the coming year", paragraphs, together=2
    )
    actions = reading("actions", "Write the next point on what the board should do", outlook, beside=[ratios])
    questions = reading("questions", "Write the next questions for the general meeting", actions)
    return [extract, ratios, _overview(path, extract), *risks, *paragraphs, *outlook, *actions, *questions]


def _field(extract: Step, name: str) -> After:
    """When a field of what is extracted is whole."""
    return extract.name, f'"{name}": {json.loads(extract.text)[name]}'


def _overview(path: Path, extract: Step) -> Step:
    """It follows the year, which stands after the company."""
    asked = f"Write an overview of what {json.loads(extract.text)['company']} does"
    return answer("overview", _found(path, asked), after=[_field(extract, "year")])


def _risks(path: Path, extract: Step) -> list[Step]:
    """Each follows its warning."""
    steps = []
    for place, warning in enumerate(json.loads(extract.text)["warnings"]):
        asked = f"Assess this warning of an annual report {warning['topic']}: {warning['text']}"
        came = (extract.name, json.dumps(warning["text"], ensure_ascii=False))
        steps.append(answer(f"risks{place}", _found(path, asked), after=[came]))
    return steps


def _reading(
    path: Path,
    name: str,
    asked: str,
    before: Sequence[Step],
    *,
    together: int = 1,
    beside: Sequence[Step] = (),
) -> list[Step]:
    """An agent that is asked about so many answers of the one before at once, and about what stands beside."""
    read = _by(together, before)
    recorded = [_found(path, " ".join((asked, *(step.text for step in batch)))) for batch in read]
    came = ([(step.name, "") for step in (*batch, *beside)] for batch in read)
    return batches(name, zip(recorded, came, strict=True))


# -- the weekly report ---------------------------------------------------------------------------------------------

_MODULES = (
    "billing",
    "search",
    "accounts",
    "orders",
    "delivery",
    "pages",
    "reports",
    "mail",
    "tax",
    "stock",
    "prices",
)
_MODULES += ("returns", "gifts", "login", "support", "tracking")
AUTHORS = len(_MODULES)
"""Each has a module."""
FILES = 6
"""That a commit changes."""
LINES = 1000
"""Of each file."""
READINGS = 2
"""How often reading is timed for the bound."""
PLACES = {"work": 1, "sections": 2, "overview": 2, "edited": 2}
"""Nodes with a queue and a worker of their own, and how many calls it takes at once: one place reads from git, and each
agent has its own model, on a GPU that answers two requests at a time."""


def weekly(directory: Path, speed: float, *, commits: int) -> Scenario:
    """The example, on a repository of sixteen authors with so many commits each, with few places for what takes long.
    Its answers are those of the extractive engine, at the pace of a model."""
    repo = directory / "shop"
    make_repository(repo, commits=commits)
    workflow = Workflow.from_file(EXAMPLES / "weekly_report" / "workflow.yaml")
    inputs = {"repo": str(repo)}
    run = submit(workflow, inputs)
    run.result(START_S)
    names = [brief["name"] for brief in run.node_output("briefs")]
    sections = _told(names, run.node_output("sections"), "about what {} did this week")
    edited = _told(names, run.node_output("edited"), "Edit the section about {},")
    overview = _recorded(run.node_output("overview"), "Sum up the week in at most")
    path = directory / "weekly.jsonl"
    _write(path, [*sections.values(), *edited.values(), overview], speed)
    paced = [{name: _faster(each, speed) for name, each in told.items()} for told in (sections, edited)]
    steps = list(_weekly_steps(str(repo), *paced, _faster(overview, speed)))
    places = {_queue(node): count for node, count in PLACES.items()}
    return Scenario(deployed(_with_model(workflow, path)), "document", steps, inputs, places)


def _told(names: Sequence[str], texts: Sequence[str], match: str) -> dict[str, Recording]:
    """What is answered about each person; `match` has a place for the name."""
    return {name: _recorded(text, match.format(name)) for name, text in zip(names, texts, strict=True)}


def _queue(node: str) -> str:
    return f"bench.{node}"


def deployed(workflow: Workflow) -> Workflow:
    """The workflow whose nodes with few places have a queue of their own."""
    data = _data(workflow)
    for node in PLACES:
        data["nodes"][node]["queue"] = _queue(node)
    return Workflow.from_data(data)


def make_repository(folder: Path, *, commits: int) -> None:
    """A repository in which each author made so many commits within three days, each in several long files."""
    folder.mkdir()
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    environment |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    for arguments, given in (
        (["init", "--quiet", "--initial-branch=main"], ""),
        (["fast-import", "--quiet"], "".join(_imported(commits))),
    ):
        subprocess.run(["git", *arguments], cwd=folder, env=environment, input=given.encode(), check=True)


def _imported(commits: int) -> Iterator[str]:
    """The commits, in the form of `git fast-import`; the authors take turns."""
    since = datetime.now(UTC).replace(microsecond=0) - timedelta(days=3)
    pause = timedelta(days=3) / (AUTHORS * commits)
    for number in range(AUTHORS * commits):
        author, turn = number % AUTHORS, number // AUTHORS
        at = f"{int((since + number * pause).timestamp())} +0000"
        who = f"Author {author + 1} <author{author + 1}@example.org>"
        message = f"Change step {turn} of {_MODULES[author]}"
        yield f"commit refs/heads/main\nauthor {who} {at}\ncommitter {who} {at}\n"
        yield f"data {len(message)}\n{message}\n"
        for part in range(FILES):
            content = _content(_MODULES[author], turn + part)
            path = f"{_MODULES[author]}/part_{part}.py"
            yield f"M 100644 inline {path}\ndata {len(content)}\n{content}\n"


def _content(module: str, turn: int) -> str:
    """The same lines in another order each time, which git takes long to compare."""
    return "".join(f"step({line * (turn + 1) % 97}, '{module}')\n" for line in range(LINES))


def _weekly_steps(
    repo: str, sections: Mapping[str, Recording], edited: Mapping[str, Recording], overview: Recording
) -> Iterator[Step]:
    """A section follows the reading of that person's changes, its editing the section, the overview the reading of all
    changes; how long reading takes is measured here, one after the other."""
    outline_s, works = _reading_lengths(repo)
    yield tool("outline", outline_s)
    for name, length_s in works.items():
        yield tool(f"work of {name}", length_s, after=[("outline", "")], line=_queue("work"))
        yield answer(name, sections[name], after=[(f"work of {name}", "")], line=_queue("sections"))
        yield answer(f"edited {name}", edited[name], after=[(name, "")], line=_queue("edited"))
    read = [(f"work of {name}", "") for name in works]
    yield answer("overview", overview, after=read, line=_queue("overview"))


def _reading_lengths(repo: str) -> tuple[float, dict[str, float]]:
    """How long reading the outline takes, and the changes of each person, at best."""
    from weekly_report.history import outline
    from weekly_report.planning import plan
    from weekly_report.tickets import tickets
    from weekly_report.writing import assignments, work

    outline_s, history = _timed(partial(outline, repo, None))
    found = tickets(None)
    works = {}
    for assignment in assignments(history, found, plan(history, found)):
        length_s, read = _timed(partial(work, assignment, repo))
        works[read["brief"]["name"]] = length_s
    return outline_s, works


def _timed(work: Callable[[], _Item]) -> tuple[float, _Item]:
    """How long it takes at best, so that the bound is one when the machine has other work too."""
    lengths = []
    for _ in range(READINGS):
        begun = time.perf_counter()
        result = work()
        lengths.append(time.perf_counter() - begun)
    return min(lengths), result
