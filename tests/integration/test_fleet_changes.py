"""Providers whom nobody asks any more, and pools that change, while routed calls wait."""

from __future__ import annotations

from pathlib import Path

import pytest

from mosaic_tasks import Workflow, submit
from mosaic_tasks.app import app
from mosaic_tasks.execution.bootsteps import Recovering
from mosaic_tasks.execution.dispatching import Dispatcher
from mosaic_tasks.execution.driver import drive
from mosaic_tasks.execution.process import Process, process_for
from tests.integration.test_routing import models, workflow

__all__ = ["models"]
pytestmark = [
    pytest.mark.integration,
    pytest.mark.usefixtures("mosaic_process"),
    pytest.mark.leaves("threads", reason="one watches the drives of a process, one publishes for them"),
]


@pytest.fixture
def process(models: Path) -> Process:
    """This process, as a worker that asks the provider."""
    process = process_for(app)
    process.start_liveness(queues=["mosaic.api.replay"], slots=4)
    return process


def test_a_call_at_a_provider_whom_nobody_asks_any_more_is_stranded(process: Process) -> None:
    run = submit(workflow(), {})
    (call,) = process.ledger.live_calls(run.id)
    recovering = Recovering(process)
    assert not recovering.is_stranded(run.id, call)
    assert recovering.is_stranded(run.id, call._replace(queue="mosaic.api.gone"))
    assert recovering.is_stranded(run.id, call._replace(queue="mosaic.direct.gone@here"))


def test_a_call_whose_agent_names_its_engine_waits_for_a_worker(process: Process) -> None:
    named = Workflow.from_yaml(
        "name: named\nnodes:\n  answer: {agent: {prompt: A question., model: 'openai:any'}}\noutput: answer\n"
    )
    run = submit(named, {})
    (call,) = process.ledger.live_calls(run.id)
    assert call.queue == "mosaic.api.openai"
    assert not Recovering(process).is_stranded(run.id, call)


def test_a_call_whose_model_left_the_pool_waits_and_says_so(process: Process, models: Path) -> None:
    asks = Workflow.from_yaml(
        "name: asks\nnodes:\n  answer: {agent: {prompt: A question., model: 'pool:sage'}}\noutput: answer\n"
    )
    before = models.read_text()
    models.write_text(before.replace("sage:", "wise:"))
    run = submit(asks, {})
    (told,) = run.explain()
    assert "the router has no place for it: the model pool has no model 'sage'" in str(told)
    models.write_text(before)
    process.places = Dispatcher(process)  # which reads the fleet at once
    (waits,) = run.live_calls()
    process.ledger.wake(run.id, ["0"], now_ms=waits.at_ms)
    process.publish(run.id, process.plan_of(run.id), [("mosaic.routed", ["0"])])
    drive(process, run.id, ["0"])
    assert run.result(5) == "Forty-two."
