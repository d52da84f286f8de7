"""What an answer cost.

Two sources, in this order:

1. the file that `MOSAIC_PRICES` names, a JSON object, in US dollars a million tokens:
   `{"my-model": {"input_per_million": 0.15, "output_per_million": 0.6}}`;
2. the package `genai-prices`, where it is installed: it knows the list prices of the public providers.

A model that neither knows has no price: None, never zero.
"""

from __future__ import annotations

import os
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from types import ModuleType

import msgspec

from mosaic_queues.errors import ConfigurationError

_MILLION = 1_000_000


class Price(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """US dollars a million tokens."""

    input_per_million: float
    output_per_million: float


class PriceTable(msgspec.Struct, frozen=True):
    """The prices of one provider's models.

    Attributes:
        own: prices by name of the model, from `MOSAIC_PRICES`.
        api_url: tells `genai-prices` whose list prices hold.
    """

    own: dict[str, Price] = {}
    api_url: str = ""

    def cost_usd(self, model: str, *, input_tokens: int, output_tokens: int) -> float | None:
        """The price of an answer in US dollars, or None where the model's price is not known."""
        if (price := self.own.get(model)) is not None:
            spent = price.input_per_million * input_tokens + price.output_per_million * output_tokens
            return spent / _MILLION
        return _listed(model, self.api_url, input_tokens, output_tokens)


def load_prices(api_url: str) -> PriceTable:
    """The prices that hold for a server at `api_url`.

    Raises:
        ConfigurationError: the file that `MOSAIC_PRICES` names cannot be read.
    """
    file = os.environ.get("MOSAIC_PRICES")
    if not file:
        return PriceTable(api_url=api_url)
    try:
        return PriceTable(msgspec.json.decode(Path(file).read_bytes(), type=dict[str, Price]), api_url)
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigurationError(
            f"MOSAIC_PRICES names {file!r}, which is not a table of prices: {error}; it must hold "
            '{"MODEL": {"input_per_million": 0.15, "output_per_million": 0.6}}'
        ) from error


def _listed(model: str, api_url: str, input_tokens: int, output_tokens: int) -> float | None:
    prices = _genai_prices()
    if prices is None:
        return None
    usage = prices.Usage(input_tokens=input_tokens, output_tokens=output_tokens)
    try:
        return float(prices.calc_price(usage, model, provider_api_url=api_url).total_price)
    except LookupError:
        return None


@lru_cache(maxsize=1)
def _genai_prices() -> ModuleType | None:
    try:
        return import_module("genai_prices")
    except ModuleNotFoundError:
        return None
