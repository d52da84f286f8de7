"""`make demo MODEL=...` for a model that there is not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration
ROOT = Path(__file__).resolve().parents[2]


def test_an_unknown_model_is_told_before_anything_starts(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "DEMO_MODEL": "gpt-9",
        "MOSAIC_HOME": str(tmp_path / "home"),
        "NO_COLOR": "1",
    }
    demo = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "demo.py")],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert demo.returncode == 2, demo.stderr
    assert demo.stdout.splitlines() == [
        "the demo failed: MODEL is 'gpt-9'; the one that there is for the demo is 'smollm2'"
    ]
    assert not (tmp_path / "home").exists()
