"""A fleet of simulated GPUs, one worker process each, for the benchmark of routing: specs, model pool, recordings.

Everything in it is simulated. A character of a prompt stands for `CHAR_TOKENS` tokens, so that texts stay small; the
prompt's end says how long the answer is to be, and a recording of that length answers.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from processes import Processes, Server, Started
from routing_traces import BLOCK_TOKENS, Call

from mosaic_queues.documents import dump

CHAR_TOKENS = 16
BLOCK_CHARS = BLOCK_TOKENS // CHAR_TOKENS
SLOTS = 8
TOKENS_S = 100.0
"""That a machine of speed 1 writes for one request."""
PREFILL = 250.0
"""Prompt tokens are read so many times as fast; some eight billion parameters on an H100 come to that."""
CACHE_BLOCKS = 20_000
CONTEXT_TOKENS = 1 << 20
ASKS = "#{:04d}"
"""The end of a prompt: so many tokens are to be answered."""


@dataclass(frozen=True)
class Machine:
    """A simulated GPU.

    Attributes:
        speed: in multiples of the slowest one's.
        model: of the pool, that it hosts.
    """

    name: str
    speed: float
    model: str

    @property
    def gpu_class(self) -> str:
        """Of its own for each speed."""
        return f"simulated-{self.speed:g}x"

    @property
    def decode_tokens_s(self) -> float:
        """For one request."""
        return self.speed * TOKENS_S

    @property
    def capacity_tokens_s(self) -> float:
        """All slots together."""
        return SLOTS * self.decode_tokens_s

    def calls_s(self, calls: Sequence[Call]) -> float:
        """How many calls like these it answers in a second at most, with nothing in its cache.

        Its slots bound that, or reading, which it does for one prompt at a time.
        """
        read_s = statistics.mean(call.input_tokens for call in calls) / (PREFILL * self.decode_tokens_s)
        write_s = statistics.mean(call.output_tokens for call in calls) / self.decode_tokens_s
        return min(SLOTS / (read_s + write_s), 1.0 / read_s)


@dataclass(frozen=True)
class Model:
    """A model of the pool.

    Attributes:
        dollars: for a million tokens that are read; those that are written cost four times as much.
    """

    name: str
    quality: float
    dollars: float

    def told(self, classes: Iterable[str]) -> dict[str, Any]:
        """As the pool has it."""
        return {
            "capabilities": {"answers": self.quality},
            "context_tokens": CONTEXT_TOKENS,
            "price": {"input": self.dollars, "output": 4 * self.dollars},
            "hosting": {"spec": {"model": "simulated"}, "classes": {name: {} for name in classes}},
        }


def machines(speeds: Sequence[float], models: Sequence[str]) -> list[Machine]:
    """One for each speed."""
    return [
        Machine(f"machine-{number}", speed, model)
        for number, (speed, model) in enumerate(zip(speeds, models, strict=True))
    ]


def stretch(fleet: Sequence[Machine], calls: Sequence[Call], *, load: float) -> float:
    """By what factor the time between arrivals is changed, so that they ask for so much of what the fleet can do."""
    can_s = sum(machine.calls_s(calls) for machine in fleet)
    return len(calls) / (calls[-1].at_s or 1.0) / (load * can_s)


def prompt(number: int, call: Call, *, salt: str) -> str:
    """A text as long as the call's prompt, which shares with others the blocks that the call's prompt shares.

    Args:
        salt: prompts of another salt share nothing with it.
    """
    asks = ASKS.format(call.output_tokens)
    chars = max(1, call.input_tokens // CHAR_TOKENS - len(asks))
    blocks = call.prefix or (number,)
    text = "".join(f"{salt}.{block}.".ljust(BLOCK_CHARS, "x") for block in blocks)
    return text.ljust(chars, "y")[:chars] + asks


@dataclass
class Fleet:
    """Workers that host simulated GPUs.

    Attributes:
        name: of the scenario.
        policy: by which the workers place what is placed anew, and whether they take what waits elsewhere.
    """

    processes: Processes
    server: Server
    name: str
    database: int
    machines: Sequence[Machine]
    models: Sequence[Model]
    policy: str = "adaptive"
    workers: list[Started] = field(default_factory=list)

    def environment(self, policy: str) -> dict[str, str]:
        """Of workers and of whoever submits."""
        return {
            "MOSAIC_REDIS_URL": self.server.url(self.database),
            "MOSAIC_MODELS": str(self._folder / "models.yaml"),
            "MOSAIC_PREFIX_CHARS": str(BLOCK_CHARS),
            "MOSAIC_ROUTING_POLICY": policy,
        }

    def start(self, answers: Path) -> None:
        """Writes the files and starts the workers."""
        self._folder.mkdir()
        classes: dict[str, dict[str, None]] = {model.name: {} for model in self.models}
        for machine in self.machines:
            classes[machine.model][machine.gpu_class] = None
        pool = {"models": {model.name: model.told(classes[model.name]) for model in self.models}}
        (self._folder / "models.yaml").write_text(dump(pool))
        self.workers = [self._start(machine, answers) for machine in self.machines]

    def stop(self) -> None:
        """Ends the workers."""
        self.processes.stop(self.workers)

    def cpu_s(self) -> list[float]:
        """Processor time of each worker so far."""
        times = [psutil.Process(worker.process.pid).cpu_times() for worker in self.workers]
        return [of.user + of.system for of in times]

    @property
    def _folder(self) -> Path:
        return self.processes.directory / self.name

    def _start(self, machine: Machine, answers: Path) -> Started:
        spec = self._folder / f"{machine.name}.yaml"
        spec.write_text(dump(spec_of(machine, answers)))
        command = [sys.executable, "-m", "mosaic_tasks.cli", "worker", "--class", machine.gpu_class]
        command += ["--model", str(spec), "--name", machine.name, "--log-level", "warning"]
        return self.processes.start(
            f"{self.name}-{machine.name}", command, environment=self.environment(self.policy)
        )


def spec_of(machine: Machine, answers: Path) -> Mapping[str, Any]:
    """The fields of its model spec."""
    return {
        "simulated": True,
        "alias": machine.model,
        "recordings": str(answers),
        "slots": SLOTS,
        "prefill_tokens_s": PREFILL * machine.decode_tokens_s,
        "decode_tokens_s": machine.decode_tokens_s,
        "cache_blocks": CACHE_BLOCKS,
        "block_tokens": BLOCK_TOKENS,
        "chars_per_token": 1 / CHAR_TOKENS,
    }


def write_answers(path: Path, calls: Iterable[Call]) -> None:
    """A recording for each length that is asked for."""
    lengths = sorted({call.output_tokens for call in calls})
    path.write_text("".join(f"{json.dumps(_recording(tokens))}\n" for tokens in lengths))


def _recording(tokens: int) -> Mapping[str, Any]:
    return {
        "match": [ASKS.format(tokens)],
        "text": "w" * -(-tokens // CHAR_TOKENS),
        "usage": {"input_tokens": 0, "output_tokens": tokens},
    }
