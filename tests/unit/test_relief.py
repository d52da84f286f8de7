"""What is given up under load, as the pool declares it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from redis.exceptions import RedisError

from mosaic_queues.errors import ConfigurationError
from mosaic_queues.settings import settings
from mosaic_routing import degrading
from mosaic_routing.pool import pool
from mosaic_routing.requirements import Requirement
from mosaic_tasks.execution.placing.dispatching import Dispatcher
from mosaic_tasks.execution.placing.relief import Relief

POOL = """
models:
  large: {context_tokens: 100, providers: [{provider: p, model: l}]}
  small: {context_tokens: 100, providers: [{provider: p, model: s}]}
degrading:
  - {kind: cheaper_model, load: 1.0, model: small}
  - {kind: fewer_experts, load: 1.5, share: 0.5}
  - {kind: shorter_output, load: 2.0, share: 0.5}
"""


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = tmp_path / "models.yaml"
    path.write_text(POOL)
    monkeypatch.setenv("MOSAIC_MODELS", str(path))
    monkeypatch.setattr(degrading, "HOLD_S", 0.0)
    settings.cache_clear()
    yield path
    settings.cache_clear()


def test_steps_are_taken_in_their_order_and_told(models: Path) -> None:
    relief, wanted = Relief(), Requirement(model="large")
    assert relief.relieved(wanted, 100, 0.5).requirement == wanted
    relief.relieved(wanted, 100, 3.0)
    first = relief.relieved(wanted, 100, 3.0)
    assert first.requirement.model == "small"
    for _ in range(5):
        second = relief.relieved(wanted, 100, 3.0)
    assert second.max_tokens == 50
    assert [sentence.partition(": ")[2] for sentence in second.sentences] == [
        "asked small instead of large",
        "limited the answer to 50 instead of 100 tokens",
    ]


def test_an_answer_without_a_limit_is_not_cut(models: Path) -> None:
    relief = Relief()
    for _ in range(7):
        found = relief.relieved(Requirement(model="large"), None, 3.0)
    assert found.max_tokens is None


def test_a_mixture_asks_fewer_experts_and_nothing_else_less(models: Path) -> None:
    relief = Relief()
    assert relief.fewer_experts(6, 2, 3.0).experts == 6
    for _ in range(6):
        found = relief.fewer_experts(6, 2, 3.0)
    assert found.experts == 3
    assert found.sentences == (
        "under load (3.00 of what the targets can take): asked 3 instead of 6 experts",
    )


def test_what_mixtures_and_calls_see_of_the_load_is_one_state(models: Path) -> None:
    relief = Relief()
    for _ in range(6):
        relief.fewer_experts(6, 2, 3.0)
    assert relief.relieved(Requirement(model="large"), 100, 3.0).requirement.model == "small"


def test_without_steps_all_experts_are_asked(models: Path) -> None:
    models.write_text(POOL.partition("degrading:")[0])
    assert Relief().fewer_experts(6, 2, 9.0).experts == 6


def test_a_step_that_is_none_is_told_by_file_and_line(models: Path) -> None:
    models.write_text(POOL.replace("2.0, share: 0.5", "2.0, share: 7"))
    with pytest.raises(ConfigurationError, match=r"models\.yaml:8: field 'degrading\[2\]'.*7\.0 is no share"):
        pool()


def test_a_server_that_is_away_leaves_a_mixture_all_its_experts(models: Path) -> None:
    def away() -> None:
        raise RedisError("it is away")

    dispatcher = Dispatcher(SimpleNamespace(settings=settings()))  # type: ignore[arg-type]
    dispatcher.__dict__["_fleets"] = SimpleNamespace(now=away)
    assert dispatcher.fewer_experts(5, least=2).experts == 5
    assert not dispatcher.fewer_experts(5, least=2).sentences
