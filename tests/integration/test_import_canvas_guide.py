"""The guide docs/adopting.md, step by step: what it shows is run as it stands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.services import Worker, Workers

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]
GUIDE = (Path(__file__).resolve().parents[2] / "docs" / "adopting.md").read_text("utf-8")
REPORT = "13 rows"


def block(kind: str) -> str:
    """The first block of a kind, such as `python name=install`."""
    found = re.search(rf"^```{re.escape(kind)}\n(.*?)^```$", GUIDE, re.M | re.S)
    assert found is not None, kind
    return found[1]


@pytest.fixture
def environment(tmp_path: Path, redis_url: str, broker_url: str) -> dict[str, str]:
    """Where the app of the guide is, and the server."""
    (tmp_path / "proj.py").write_text(block("python"), "utf-8")
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    return {
        **os.environ,
        "PYTHONPATH": path,
        "BROKER": broker_url,
        "BACKEND": broker_url,
        "MOSAIC_REDIS_URL": redis_url,
        "MOSAIC_HOME": str(tmp_path / "home"),
    }


def add(tmp_path: Path, code: str) -> None:
    with (tmp_path / "proj.py").open("a", encoding="utf-8") as file:
        file.write(f"\n\n{code}")


def run(tmp_path: Path, environment: Mapping[str, str], *words: str) -> str:
    done = subprocess.run(
        [sys.executable, *words],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def work(workers: Workers, environment: Mapping[str, str]) -> Worker:
    env = {name: environment[name] for name in ("PYTHONPATH", "BROKER", "BACKEND")}
    return workers.start("proj", ["proj"], pool="threads", concurrency=4, env=env).wait_ready()


def python(code: str) -> tuple[str, str]:
    return "-c", f"from proj import app, report\n{code}"


CANVAS = "print(report.apply_async().get(timeout=30))"


def test_the_join_backend_alone(
    workers: Workers, environment: dict[str, str], tmp_path: Path, broker_url: str
) -> None:
    add(tmp_path, block("python name=backend").replace("redis://localhost", broker_url))
    worker = work(workers, environment)
    assert run(tmp_path, environment, *python(CANVAS)).strip() == REPORT
    assert "mosaic.call" not in worker.log  # nothing but the backend


def test_joined_imported_and_submitted_from_elsewhere(
    workers: Workers, environment: dict[str, str], tmp_path: Path
) -> None:
    plain = (tmp_path / "proj.py").read_text("utf-8")
    add(tmp_path, block("python name=install"))
    work(workers, environment)
    assert run(tmp_path, environment, *python(CANVAS)).strip() == REPORT  # beside it, as ever
    cli = ("-m", "mosaic_tasks.cli")
    (tmp_path / "rows.yaml").write_text(block("yaml"), "utf-8")
    assert run(tmp_path, environment, *cli, "run", "rows.yaml").strip() == "2"
    for line in block("sh").splitlines():
        program, *words = line.split()
        assert program == "mosaic"
        run(tmp_path, environment, *cli, *words)
    assert run(tmp_path, environment, *python(block("python name=submit"))).strip() == REPORT
    send = block("python name=send").replace("60", "30")
    stranger = f"{plain}\n\n{send}\nimport sys\nassert 'mosaic_tasks' not in sys.modules\n"
    run_id = run(tmp_path, environment, "-c", stranger).strip()
    told = run(tmp_path, environment, "-c", f"from proj import app\nfrom mosaic_tasks import get_run\n"
               f"print(get_run({run_id!r}, app=app).result(timeout_s=30))")  # fmt: skip
    assert told.strip() == REPORT
    assert run(tmp_path, environment, "-c", stranger).strip() == run_id  # the same key, the same run
