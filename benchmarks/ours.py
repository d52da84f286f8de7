"""Our side: the same work as workflows. Workers import the tools from here."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from typing import Any

from mosaic_tasks import Flow, Workflow, submit
from mosaic_tasks.app import app

TIMEOUT_S = 300.0
SEED = 20_250
"""Of the random graphs."""
DEGREE = 2
"""How many earlier nodes a node of a random graph reads, where there are so many."""


def step(value: int) -> int:
    """One step of a chain."""
    return value + 1


def item(number: int) -> int:
    """One call of a fan-out."""
    return number


def total(results: list[int]) -> int:
    """What reads a fan-out's results."""
    return len(results)


def combine(values: list[int]) -> int:
    """One node that reads several: all nodes of the layer before, or two random ones."""
    return max(values) + 1


def highest(values: list[int]) -> int:
    """What reads the last layer."""
    return max(values)


def chain(size: int) -> Workflow:
    """Steps one after another."""
    flow = Flow("chain")
    last: Any = 0
    for number in range(size):
        last = flow.tool("ours:step", id=f"step_{number}", value=last)
    flow.output(last)
    return flow.build()


def chord(_size: int) -> Workflow:
    """A fan-out over the input, and what reads it."""
    flow = Flow("chord")
    numbers = flow.input("numbers", list[int])
    items = flow.tool("ours:item", id="items", for_each=numbers, number="${item}")
    flow.output(flow.tool("ours:total", id="total", results=items))
    return flow.build()


def layers(size: int) -> Workflow:
    """As many layers as they are wide, each node reading all of the layer before."""
    flow = Flow("layers")
    above: list[Any] = [0]
    for row in range(size):
        above = [flow.tool("ours:combine", id=f"node_{row}_{column}", values=above) for column in range(size)]
    flow.output(flow.tool("ours:highest", id="highest", values=above))
    return flow.build()


def sources(size: int) -> list[list[int]]:
    """A random graph: which earlier nodes each node reads. The same law at every size."""
    choose = random.Random(SEED)
    return [sorted(choose.sample(range(number), min(number, DEGREE))) for number in range(size)]


def dag(size: int) -> Workflow:
    """A random graph; what no later node reads runs all the same."""
    chosen = sources(size)
    read = {source for of in chosen for source in of}
    flow = Flow("dag")
    nodes: list[Any] = []
    for number, of in enumerate(chosen):
        values = [nodes[source] for source in of] or [0]
        alone = number not in read and number != size - 1
        nodes.append(flow.tool("ours:combine", id=f"node_{number}", values=values, detached=alone))
    flow.output(nodes[-1])
    return flow.build()


SHAPES: dict[str, Callable[[int], Workflow]] = {"chain": chain, "chord": chord, "layers": layers, "dag": dag}


@cache
def workflow(shape: str, size: int) -> Workflow:
    """The workflow of a shape, made once, as a program that submits it again and again would."""
    return SHAPES[shape](size)


def prepare(shape: str, size: int) -> Callable[[], Any]:
    """Defines the work; what it returns runs it once and gives its result."""
    definition = workflow(shape, size)
    inputs = {"numbers": list(range(size))} if shape == "chord" else {}

    def run() -> Any:
        return submit(definition, inputs).result(TIMEOUT_S)

    return run


def workers_answering(count: int) -> int:
    """How many of `count` workers answer now."""
    return len(app.control.ping(timeout=1.0, limit=count))
