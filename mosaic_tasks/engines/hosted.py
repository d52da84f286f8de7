"""The engines that a worker can host, and what it does with any of them: one is vLLM's, one is a simulated GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from mosaic_queues.documents import Document, read_model
from mosaic_queues.errors import ConfigurationError, DefinitionError
from mosaic_routing.inventory import EngineState
from mosaic_tasks.engines.protocol import Engine, EngineLoad
from mosaic_tasks.engines.simulated import SimulatedGpu, SimulatedSpec
from mosaic_tasks.engines.vllm.spec import YAML_ENDS, ModelSpec
from mosaic_tasks.engines.vllm.supervisor import Supervisor

HostedSpec = ModelSpec | SimulatedSpec
"""What a worker is to host."""


class HostedEngine(Engine, Protocol):
    """An engine of this worker; it keeps itself alive."""

    @property
    def phase(self) -> str:
        """What one that is not ready is at."""

    @property
    def ready(self) -> bool:
        """Whether it takes requests."""

    @property
    def state(self) -> EngineState:
        """As the inventory tells it."""

    async def start(self, progress: Callable[[str], None]) -> None:
        """Returns when it takes requests.

        Raises:
            MosaicError: it cannot start.
        """

    def load(self) -> EngineLoad:
        """How busy it is, and how fast; called on its event loop."""


def hosted_engine(spec: HostedSpec, *, on_give_up: Callable[[str], None]) -> HostedEngine:
    """The engine of a spec, not started yet.

    Args:
        on_give_up: is called once, with the reason, when the engine is not started again.
    """
    if isinstance(spec, SimulatedSpec):
        return SimulatedGpu(spec, on_give_up=on_give_up)
    return Supervisor(spec, on_give_up=on_give_up)


def read_spec(source: str, *, options: Mapping[str, Any]) -> HostedSpec:
    """What a worker is to host.

    Args:
        source: path of a YAML file, path of a model folder, or a model's name.
        options: engine arguments of vLLM on top of those of the file.

    Raises:
        ConfigurationError: the file, or what it says, is of no use.
    """
    if not _is_simulated(source):
        return ModelSpec.read(source, options=options)
    if options:
        raise ConfigurationError(
            f"{source!r} is a simulated GPU, which has no engine options ({', '.join(sorted(options))}); "
            "write its fields in the file"
        )
    return read_model(Path(source), SimulatedSpec, kind="spec of a simulated GPU")


def _is_simulated(source: str) -> bool:
    try:
        return source.endswith(YAML_ENDS) and "simulated" in Document.read(source).load()
    except (DefinitionError, TypeError):
        return False  # whoever reads it for good tells of that


__all__ = ["HostedEngine", "HostedSpec", "hosted_engine", "read_spec"]
