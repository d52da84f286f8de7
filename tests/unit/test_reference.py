"""docs/reference says what the code says, of all that people rely on."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("mosaic_tasks", "queues/mosaic_queues", "routing/mosaic_routing")
INTERNAL = {"MOSAIC_ENGINE_MARK"}
"""What processes of this project tell each other."""


@pytest.fixture
def reference(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script that writes it."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    return importlib.import_module("reference")


def text_of(name: str) -> str:
    return (ROOT / "docs" / "reference" / name).read_text("utf-8")


def test_no_page_is_stale(reference: Any) -> None:
    assert reference.stale() == [], "write it anew: make reference"


def test_a_page_that_differs_and_one_that_nobody_writes_are_told(
    reference: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(reference, "PAGES", tmp_path)
    monkeypatch.setattr(reference, "CONTENTS", {"one.md": lambda: "one\n", "two.md": lambda: "two\n"})
    assert reference.main([]) == 0
    assert reference.main(["--check"]) == 0
    (tmp_path / "one.md").write_text("another\n", "utf-8")
    (tmp_path / "old.md").write_text("", "utf-8")
    assert reference.main(["--check"]) == 1
    told = capsys.readouterr().out
    assert "one.md" in told
    assert "old.md" in told
    assert "two.md" not in told


def test_every_variable_of_the_sources_is_a_setting_of_the_page() -> None:
    sources = [path.read_text("utf-8") for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    named = {name for source in sources for name in re.findall(r"\bMOSAIC_[A-Z_]*[A-Z]\b(?!_)", source)}
    told = set(re.findall(r"^\| `(\w+)` \|", text_of("settings.md"), re.MULTILINE))
    assert named - told == INTERNAL


def test_every_setting_and_key_has_its_meaning() -> None:
    for name in ("settings.md", "workflow.md", "http.md", "metrics.md"):
        rows = re.findall(r"^\| (`.*) \|$", text_of(name), re.MULTILINE)
        assert rows
        assert [row for row in rows if not row.split(" | ")[2 if name == "settings.md" else -1].strip()] == []


def test_every_error_that_can_be_met_says_what_to_do() -> None:
    groups = {"MosaicError", "LedgerError", "PayloadError", "AccessError", "CallError"}
    rows = re.findall(r"^\| `(\w+)` \| (.*) \| (.*) \| \d+ \| \d* \|$", text_of("errors.md"), re.MULTILINE)
    assert {name for name, _, remedy in rows if not remedy} == groups
    assert [name for name, meaning, _ in rows if not meaning] == []
