"""Every command and file of the documentation works, as `guides.py` runs them."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from shutil import copytree, ignore_patterns
from typing import Any

import pytest
import typer
import yaml
from redis import Redis

from mosaic_tasks.cli import application
from tests.integration.elsewhere import COMMANDS
from tests.integration.guides import ROOT, Block, Guide, blocks_of, lines_of, mosaic_lines

PAGES = sorted([*(ROOT / "docs").glob("*.md"), *ROOT.glob("examples/*/README.md")])
FOLLOWED = [page for page in PAGES if any(b.language == "sh" and not b.mark for b in blocks_of(page))]
REFERENCE = sorted((ROOT / "docs" / "reference").glob("*.md"))
ALL = [*PAGES, *REFERENCE, ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
RUN_BY_OTHERS = {
    "docs/adopting.md": {f"python name={name}" for name in ("backend", "install", "submit", "send")},
    "docs/deployment.md": {"py entry", "py module"},
    "docs/reference/cli.md": {"sh examples"},
}
"""Kinds of blocks that test_import_canvas_guide.py, test_deployed_beat.py and test_cli_examples.py run."""


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


KEEPS_KEYS = pytest.mark.leaves("keys", reason="API keys without an end stay until they are revoked")
SECURITY = ROOT / "docs" / "security.md"


@pytest.mark.integration
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=KEEPS_KEYS if page == SECURITY else (), id=name_of(page)) for page in FOLLOWED],
)
def test_its_commands_work_in_order(
    page: Path, redis_url: str, broker_url: str, redis_client: Redis, tmp_path: Path
) -> None:
    for each in ("docker", "examples", "queues", "routing"):  # pages write into them
        copytree(ROOT / each, tmp_path / each, ignore=ignore_patterns("__pycache__"))
    committed(tmp_path)
    environment = {"MOSAIC_REDIS_URL": redis_url, "MOSAIC_HOME": str(tmp_path / ".mosaic")}
    environment |= {"BROKER": broker_url, "BACKEND": broker_url}  # of apps that pages have beside ours
    guide = Guide(page, environment=environment, directory=tmp_path, client=redis_client)
    assert guide.follow()


def committed(folder: Path) -> None:
    """Makes the folder a git repository, as a clone is one."""
    who = ["-c", "user.name=Ada", "-c", "user.email=ada@example.org"]
    for words in (["init", "-q"], [*who, "commit", "-q", "--allow-empty", "-m", "PROJ-12: keep orders"]):
        subprocess.run(["git", *words], cwd=folder, check=True)


@pytest.mark.parametrize("page", ALL, ids=name_of)
def test_no_command_hides_from_the_tests(page: Path) -> None:
    """Commands that are indented, or in blocks of another kind, would be run by nobody."""
    text = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    words = "mosaic|celery|curl|make|docker|helm|kubectl|pip|python|export|redis-cli|honcho"
    assert re.findall(rf"^(?:    |\t)(?:\$ )?(?:{words}) .*$", text, re.MULTILINE) == []
    kinds = {kind for kind in kinds_of(page) if re.match("sh|bash|shell|console|py", kind)}
    run_by_guides = {"sh", "sh background", "sh elsewhere", "python"}
    assert kinds - run_by_guides == RUN_BY_OTHERS.get(name_of(page), set())


def kinds_of(page: Path) -> set[str]:
    return {kind for kind in re.findall(r"^```(.*)$", page.read_text("utf-8"), re.MULTILINE) if kind}


def test_what_no_test_runs_is_known_with_its_reason() -> None:
    elsewhere, examples = lines_with("elsewhere"), lines_with("examples")
    assert elsewhere <= COMMANDS.keys() <= elsewhere | examples


def lines_with(mark: str) -> set[str]:
    found = (block for page in ALL for block in blocks_of(page) if block.mark == mark)
    return {line for block in found for line in lines_of(block.text)}


def test_each_excerpt_of_python_stands_where_it_is_run() -> None:
    """Named ones are files, which their page runs; `test_docs.py` runs all of docs/*.md."""
    excerpts = {
        page for page in ALL for block in blocks_of(page) if block.language == "python" and not block.file
    }
    assert {page.parent for page in excerpts} == {ROOT / "docs"}


@pytest.mark.parametrize("page", ALL, ids=name_of)
def test_its_shell_blocks_can_be_read_and_their_options_exist(page: Path) -> None:
    for block in blocks_of(page):
        if block.language == "sh":
            subprocess.run(["bash", "-n"], input=block.text, text=True, check=True)
            for words in mosaic_lines(block.text):
                assert unknown_options(words) == [], words


@pytest.mark.parametrize("page", ALL, ids=name_of)
def test_its_data_blocks_can_be_read(page: Path) -> None:
    for block in blocks_of(page):
        read(block)


@pytest.mark.parametrize("page", ALL, ids=name_of)
def test_its_links_lead_to_headings_that_are_there(page: Path) -> None:
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)#([^)\s]+)\)", page.read_text("utf-8")):
        path = page.parent / target if target else page
        assert anchor in anchors_of(path), f"{target}#{anchor}"


def anchors_of(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    text = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_the_index_names_every_page() -> None:
    index = ROOT / "docs" / "README.md"
    targets = re.findall(r"\]\((?!https?:)([^)#\s]+)", index.read_text("utf-8"))
    named = {(index.parent / target).resolve() for target in targets}
    assert {*PAGES, *REFERENCE} - named == {index}


def read(block: Block) -> None:
    match block.language:
        case "yaml":
            list(yaml.safe_load_all(block.text))
        case "json":
            json.loads(block.text)
        case "toml":
            tomllib.loads(block.text)


def unknown_options(words: list[str]) -> list[str]:
    command: Any = typer.main.get_command(application)
    rest = list(words)
    while rest and hasattr(command, "commands") and not rest[0].startswith("-"):
        found = command.commands.get(rest[0])
        if found is None:
            return [rest[0]]
        command, rest = found, rest[1:]
    known = {
        option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)
    }
    return [word for word in given(rest) if word not in known | {"--help", "-h"}]


def given(words: list[str]) -> Iterator[str]:
    for word in words:
        if word == "--":
            return
        if re.match(r"--?[a-zA-Z]", word):
            yield word.partition("=")[0]
