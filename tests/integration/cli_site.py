"""The site in which the examples of the command line run: the files that they name, and what is there before each."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from shutil import copy, copytree, ignore_patterns

ROOT = Path(__file__).resolve().parents[2]

FILES = {
    "desk.py": """
def commits(repo: str, since: str) -> list[str]:
    return [f"{who} changed {what} of {repo} ({since})." for who, what in (("Ada", "orders"), ("Ben", "stock"))]
""",
    "report.yaml": """
name: report
inputs:
  repo: {type: string, default: .}
  since: {type: string, default: 7 days ago}
  tickets: {type: array, default: []}
nodes:
  commits: {tool: "desk:commits", with: {repo: "${inputs.repo}", since: "${inputs.since}"}}
  sections:
    for_each: "${commits}"
    as: commit
    agent: {prompt: "Tell what was done.\\n\\nFACTS:\\n{{ commit }}"}
  summary:
    agent: {prompt: "Sum it up.\\n\\nFACTS:\\n{{ sections | join('\\\\n') }}\\n{{ inputs.tickets | length }} tickets."}
output: summary
schedules:
  monday: {cron: "0 7 * * MON"}
""",
    "weekly.yaml": """
name: weekly
inputs: {repo: string}
nodes:
  commits: {tool: "desk:commits", with: {repo: "${inputs.repo}", since: 7 days ago}}
output: commits
""",
    "summary.yaml": """
name: summary
inputs: {title: string}
nodes:
  summary: {agent: {prompt: "Sum it up.\\n\\nFACTS:\\n{{ inputs.title }}"}}
output: summary
""",
    "check.yaml": """
name: check
nodes:
  check: {tool: "string:capwords", with: {s: all is well}}
output: check
""",
    "held.yaml": """
name: held
nodes:
  held: {tool: "string:capwords", with: {s: held}, queue: nobody}
output: held
""",
    "proj/__init__.py": "",
    "proj/canvases.py": """
from celery import Celery, chain

app = Celery("proj", set_as_current=False)


@app.task(name="proj.fetch")
def fetch(page: int) -> list[int]:
    return list(range(page))


@app.task(name="proj.total")
def total(rows: list[int]) -> int:
    return sum(rows)


report = chain(fetch.s(3), total.s())
""",
    "tickets.json": '["PROJ-12"]',
    "tickets.jsonl": '{"title": "Orders are lost."}\n{"title": "Stock is wrong."}\n',
    "repositories.jsonl": '{"repo": "shop"}\n{"repo": "warehouse"}\n',
}

_OVER = "RUN=$(mosaic run {} --no-wait); mosaic result $RUN --wait"
BEFORE = {
    "mosaic stream": "RUN=$(mosaic run report.yaml --no-wait)",
    "mosaic cancel": "RUN=$(mosaic run held.yaml --no-wait)",
    "mosaic rerun": _OVER.format("report.yaml"),
    "mosaic score": _OVER.format("quiz.yaml"),
    "mosaic dead requeue": "ID=$(mosaic dead list --json | jq -r '.[0].id')",
    "mosaic dead drop": "ID=$(mosaic dead list --json | jq -r '.[0].id')",
}
"""What somebody did before, by the command whose examples need it."""


def furnish(folder: Path) -> None:
    """Writes the files of the site."""
    for name in ("docker", "examples", "queues", "routing"):
        copytree(ROOT / name, folder / name, ignore=ignore_patterns("__pycache__"))
    copy(ROOT / "examples" / "quiz" / "workflow.yaml", folder / "quiz.yaml")
    for name, text in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text.lstrip("\n"), "utf-8")
    (folder / "history.jsonl").write_text(_history(), "utf-8")


def _history() -> str:
    chance = Random(7)
    claims = [0.5 + 0.1 * chance.randint(0, 4) for _ in range(60)]
    told = [{"features": {"probability": p}, "right": chance.random() < p} for p in claims]
    return "".join(f"{json.dumps(line)}\n" for line in told)
