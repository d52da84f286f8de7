"""What recorded models cost: how fast they are on a simulated GPU, and what their tokens are sold for.

Speeds are those that `mosaic_routing.speeds` estimates of a model's size on one GPU of the class `GPU`; prices are
those of `routing/models.yaml`. A model that is only sold, of a size that nobody knows, is taken to be as fast as
`UNSIZED`. A model that nobody sells costs what the sold one of the nearest size costs.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cache

from mosaic_routing.classes import CLASSES
from mosaic_routing.pool import Model, ModelPool, Price, Size, Speed, pool
from mosaic_routing.speeds import estimated_speed

GPU = "b200"
"""Its memory holds a model of 70 billion parameters."""
UNSIZED = "llama-3.1-70b"
_BILLIONS = re.compile(r"(\d+(?:\.\d+)?)b(?![a-z])")


@dataclass(frozen=True)
class Rates:
    """Of one model.

    Attributes:
        like: the model of the pool whose speed it has.
        priced_like: the one whose price it has.
    """

    like: str
    priced_like: str
    speed: Speed
    price: Price

    def usd(self, *, input_tokens: float, output_tokens: float) -> float:
        """What a call costs."""
        return (self.price.input * input_tokens + self.price.output * output_tokens) / 1e6


@cache
def rates(recorded: str) -> Rates:
    """Of a model, by the name that it has in a recording: `gemma-2-9b-it`, `gpt-4o-mini-2024-07-18`."""
    there = pool()
    sizes = _sized(there)
    named = pool_name(recorded, there) or _nearest(_billions(recorded, _in_billions(sizes[UNSIZED])), sizes)
    sized = named if named in sizes else UNSIZED
    sold = {name: size for name, size in sizes.items() if _price(there.models[name])}
    priced = named if _price(there.models[named]) else _nearest(_in_billions(sizes[sized]), sold)
    return Rates(
        like=sized,
        priced_like=priced,
        speed=estimated_speed(sizes[sized], CLASSES[GPU]),
        price=_price(there.models[priced]) or Price(),
    )


def pool_name(recorded: str, there: ModelPool) -> str | None:
    """What the pool calls a recorded model; None: it has no such model. The longest name that fits is meant."""
    return max((name for name in there.models if name in recorded.lower()), key=len, default=None)


def _sized(there: ModelPool) -> dict[str, Size]:
    sizes = {name: model.hosting.size for name, model in there.models.items() if model.hosting}
    return {name: size for name, size in sizes.items() if size is not None}


def _in_billions(size: Size) -> float:
    return size.parameters / 1e9


def _price(model: Model) -> Price | None:
    """The first that is more than nothing: what the pool says of a model that people host themselves."""
    prices = [model.price, *(offer.price for offer in model.providers if offer.price)]
    return next((price for price in prices if price.output > 0), None)


def _billions(recorded: str, otherwise: float) -> float:
    """As the name says."""
    found = _BILLIONS.search(recorded.lower())
    return float(found[1]) if found else otherwise


def _nearest(billions: float, sizes: dict[str, Size]) -> str:
    return min(sizes, key=lambda name: abs(math.log(_in_billions(sizes[name]) / billions)))
