"""The README, followed as it stands, and its demo."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from redis import Redis

from tests.integration.guides import ROOT, Guide, blocks_of

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
README = ROOT / "README.md"


@pytest.mark.leaves("keys", reason="a schedule has no expiry")
@pytest.mark.parametrize("worker", ["mosaic", "celery"])
def test_its_commands_work_in_order(redis_url: str, redis_client: Redis, tmp_path: Path, worker: str) -> None:
    """As it stands; and with the one worker alone that Celery starts."""
    page = tmp_path / "README.md"
    ours, celerys = (block.text for block in blocks_of(README) if " worker " in block.text)
    text = README.read_text("utf-8")
    page.write_text(text if worker == "mosaic" else text.replace(ours, celerys), "utf-8")
    environment = {"MOSAIC_REDIS_URL": redis_url, "MOSAIC_HOME": str(tmp_path / ".mosaic")}
    printed = Guide(page, environment=environment, directory=tmp_path, client=redis_client).follow()
    (ran,) = (said for block, said in printed.items() if "python report.py" in block)
    assert ran.count("Oslo bought for 120 euros.") >= 2  # by the file, and by Python
    assert "3. Bern bought for 95 euros.\n" in ran
    assert (tmp_path / "timeline.svg").read_text("utf-8").startswith("<svg")


def test_make_demo_leaves_a_report_and_no_process(tmp_path: Path) -> None:
    environment = {**os.environ, "MOSAIC_HOME": str(tmp_path / "home"), "NO_COLOR": "1"}
    for name in ("MOSAIC_REDIS_URL", "PYTHONPATH"):
        environment.pop(name, None)
    done = subprocess.run(["make", "demo"], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Weekly report" in done.stdout
    for name in ("weekly-report.md", "weekly-report.html"):
        assert (ROOT / "out" / name).stat().st_size > 500
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert str(tmp_path / "home") not in listed


def test_every_make_target_of_the_readme_exists() -> None:
    named = set(re.findall(r"make ([a-z]+)", README.read_text("utf-8")))
    known = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    assert named <= known
