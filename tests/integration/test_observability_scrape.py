"""What Prometheus reads of a whole site at work: everything that alerts and the dashboard ask for is there."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from redis import Redis

from mosaic_queues.documents import dump
from mosaic_queues.keys import Keys
from mosaic_queues.settings import settings
from mosaic_tasks import Workflow, submit
from mosaic_tasks.access.gates import keys_of
from mosaic_tasks.app import app
from mosaic_tasks.observability.tallies import tallies_key
from tests.integration.gateway_tools import gateway
from tests.integration.mixture_runs import ask, number, says
from tests.integration.schedule_beats import Beats, add
from tests.integration.test_simulated_worker import FAST, SimulatedGpus
from tests.services import ServerForTests, key_events

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(120),
    pytest.mark.usefixtures("mosaic_process"),
    pytest.mark.leaves("keys", reason="a schedule and a key stay until somebody removes them"),
]

ROOT = Path(__file__).parents[2]
WORKFLOW = ROOT / "examples" / "weekly_report" / "workflow.yaml"
WAIT_S = 60.0
COUNTED_S = 20.0
"""Processes tell with their beat what they counted."""
KEYS = Keys("mosaic")
TOOLS, STREAMS = "tests.integration.run_tools", "tests.integration.stream_tools"
PRICED = "provider: replay, price: {input: 100, output: 1000}"


def asked_for() -> set[str]:
    """The series of all alerts and panels."""
    docker = ROOT / "docker"
    (group,) = yaml.safe_load((docker / "alerts.yml").read_text("utf-8"))["groups"]
    board = json.loads((docker / "grafana" / "mosaic.json").read_text("utf-8"))
    shown = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
    return set(re.findall(r"\bmosaic_\w+", " ".join([*shown, *(rule["expr"] for rule in group["rules"])])))


def series(text: str) -> dict[str, list[float]]:
    """The values of each series, by its name."""
    found: dict[str, list[float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample.value)
    return found


class Site(SimulatedGpus, Beats):
    """Starts workers of all kinds, and a beat."""


@pytest.fixture
def pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model on a simulated GPU, two priced ones, one whose provider is dead, and a budget."""
    (tmp_path / "answers.jsonl").write_text(json.dumps({"text": "It flows.", "match": [""]}) + "\n")
    priced = [says(tmp_path, name, number(18)).partition(":")[2] for name in ("one", "other")]
    hosting = dump({"hosting": {"spec": {"model": "simulated"}, "classes": {FAST: {}}}})
    (tmp_path / "models.yaml").write_text(
        "limits: {dollars_per_day: 500, breaker: {open_s: 600, open_max_s: 600}}\n"
        "models:\n"
        f"  teller:\n    context_tokens: 4096\n{textwrap.indent(hosting, '    ')}"
        "  dead:\n    context_tokens: 4096\n    providers: [{engine: openai, model: gone, provider: openai}]\n"
        + "".join(
            f"  {name}:\n    context_tokens: 4096\n    providers:\n"
            f"      - {{engine: replay, model: {json.dumps(file)}, {PRICED}}}\n"
            for name, file in zip(("one", "other"), priced, strict=True)
        )
    )
    monkeypatch.setenv("MOSAIC_MODELS", str(tmp_path / "models.yaml"))
    settings.cache_clear()


@contextmanager
def metrics(redis_url: str, folder: Path) -> Iterator[str]:
    """The address of `mosaic metrics`."""
    ours = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "MOSAIC_REDIS_URL": redis_url}
    command = [sys.executable, "-m", "mosaic_tasks.cli", "metrics", "--port", "0", "--json"]
    environment = {**os.environ, **ours, "MOSAIC_HOME": str(folder / "home")}
    with subprocess.Popen(command, env=environment, cwd=folder, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())["url"]
        finally:
            process.terminate()


def scraped(url: str) -> dict[str, list[float]]:
    with urlopen(url, timeout=WAIT_S) as answer:
        return series(answer.read().decode())


def run_all(tmp_path: Path) -> None:
    """What there is to be counted happens."""
    say = {"prompt": "Well?"}
    nodes = {
        "numbers": {"tool": f"{STREAMS}:breaks_once", "with": {"n": 4, "after": 2}, "retry": 2},
        "totals": {"tool": f"{STREAMS}:totals", "with": {"values": "${numbers}"}, "edges": {"numbers": "stream"}},
        "told": {"agent": {**say, "model": "pool:teller"}, "detached": True},
        "dead": {"agent": {**say, "model": "pool:dead"}, "detached": True, "on_failure": "skip"},
        "fatal": {"tool": f"{TOOLS}:die_once", "with": {"path": str(tmp_path / "died")}, "detached": True},
    }  # fmt: skip
    runs = [submit(Workflow.from_data({"name": "all", "nodes": nodes, "output": "totals"}))]
    bad = {"name": "bad", "nodes": {"bad": {"tool": f"{TOOLS}:boom"}}, "output": "bad"}
    runs.append(submit(Workflow.from_data(bad)))
    experts = [{"name": name, "model": f"pool:{name}"} for name in ("one", "other")]
    slow = number(18, prose="word " * 9999)
    experts += [
        {"name": "slow", "model": says(tmp_path, "slow", slow, tokens_per_s=1.0)},
        {"name": "last", "model": says(tmp_path, "last", number(18))},
    ]
    gate = {"kind": "margin", "margin": 2, "confidence": None}
    runs.append(ask(experts, gate=gate, waves=3, aggregator={"kind": "synthesis", "model": "pool:one"}))
    assert [run.wait(WAIT_S).status for run in runs] == ["done", "failed", "done"]


def test_everything_that_alerts_and_dashboard_ask_for_is_told(
    redis_server: ServerForTests, redis_client: Redis, redis_url: str, tmp_path: Path, pool: None
) -> None:
    with socket.socket() as nobody, Site(redis_server.urls, tmp_path) as site:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}/v1"
        env = {
            "OPENAI_BASE_URL": url,
            "OPENAI_API_KEY": "none",
            "MOSAIC_LIVENESS_S": "1",
            "MOSAIC_REPLAY_SPEED": "1",
        }
        queues = ["mosaic.api.openai", "mosaic.api.replay", "mosaic.cpu"]
        add(redis_client, "yearly", cron="0 0 1 1 *")
        started = [site.start("mosaic_tasks.app", queues, pool="prefork", concurrency=4, env=env)]
        started += [site.host(FAST, tmp_path), site.beat()]
        for worker in started[:2]:
            worker.wait_ready()
        with (
            gateway(WORKFLOW, redis_url=redis_url, home=tmp_path, args=["--require-key"]) as served,
            served.client() as stranger,
            served.client(keys_of(app).add("operator", scopes=["operate"])) as client,
        ):
            run_all(tmp_path)
            assert stranger.get("/v1/runs").status_code == 401
            own = series(client.get("/metrics").text)
        with metrics(redis_url, tmp_path) as url, key_events(redis_client, "h") as happened:
            deadline = time.monotonic() + COUNTED_S
            while missing := asked_for() - own.keys() - (found := scraped(url)).keys():
                assert time.monotonic() < deadline, f"these never came: {missing}"
                next(event for event in happened if event[1] == tallies_key(KEYS))
    assert 1.0 in found["mosaic_breaker_open"]
    assert found["mosaic_beat_leads"] == [1.0]
    assert found["mosaic_losses_total"] == [1.0]
    assert found["mosaic_engine_ready"] == [1.0]
    assert found["mosaic_budget_spent_usd"][0] > 0
