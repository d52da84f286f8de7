"""An answer that was stopped, since what was wanted of it was there: what it used, and its price."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from mosaic_tasks.engines.openai import OpenAIEngine
from mosaic_tasks.engines.protocol import (
    Completion,
    Engine,
    EngineRequest,
    Events,
    Finished,
    Message,
    TextDelta,
    Usage,
    complete,
)
from mosaic_tasks.engines.replay import ReplayEngine

REQUEST = EngineRequest((Message("user", "How many?"),), model="m-1")


class Writing:
    """An engine that writes on, without prices."""

    name = "writing"

    async def aclose(self) -> None:
        """Holds nothing."""

    async def stream(self, request: EngineRequest) -> Events:
        for piece in ("It is ", "18", ", for ", "a long reason."):
            yield TextDelta(piece)
        yield Finished(Usage(9, 9), "stop")


class Priced(Writing):
    def cost_usd(self, model: str, usage: Usage) -> float:
        assert model == "m-1"
        return 0.5 * usage.output_tokens


def stopped(engine: Engine) -> Completion:
    """The answer, stopped with its number."""
    heard: list[str] = []
    asked = complete(engine, REQUEST, on_delta=heard.append, is_enough=lambda: "18" in heard)
    return asyncio.run(asked)


def test_it_has_a_price_where_its_engine_knows_one() -> None:
    answer = stopped(Priced())
    assert (answer.text, answer.is_cut) == ("It is 18", True)
    assert answer.usage.output_tokens > 0
    assert answer.usage.cost_usd == 0.5 * answer.usage.output_tokens


def test_it_has_none_where_its_engine_knows_none() -> None:
    assert stopped(Writing()).usage.cost_usd is None


def test_recorded_answers_cost_nothing() -> None:
    assert ReplayEngine(speed=1.0).cost_usd("m-1", Usage(1000, 1000)) == 0.0


@pytest.mark.parametrize(("model", "usd"), [("m-1", 0.003), ("m-2", None)])
def test_a_server_s_price_is_that_of_its_table(
    model: str, usd: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prices = tmp_path / "prices.json"
    prices.write_text('{"m-1": {"input_per_million": 2, "output_per_million": 10}}', encoding="utf-8")
    monkeypatch.setenv("MOSAIC_PRICES", str(prices))
    monkeypatch.delenv("MOSAIC_ENDPOINTS", raising=False)

    async def priced() -> float | None:
        engine = OpenAIEngine(base_url="http://127.0.0.1:1/v1", api_key="none")
        try:
            return engine.cost_usd(model, Usage(1000, 100))
        finally:
            await engine.aclose()

    assert asyncio.run(priced()) == (usd if usd is None else pytest.approx(usd))
