"""What a piece of work costs its server: commands and bytes, from the server's own counters and from MONITOR.

The counters know every command that the server executes, also those that scripts call. What clients send is told
apart by MONITOR, on a run of its own that no figure of time is taken from.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from redis import Redis


@dataclass(frozen=True)
class Counters:
    """The server's counters at one moment, or what they rose by.

    Attributes:
        at_s: a monotonic time, or a duration.
        commands: executed, by name, those inside scripts included.
        bytes_in: what clients sent, with the protocol around it.
        bytes_out: what they were answered.
    """

    at_s: float
    commands: Mapping[str, float]
    bytes_in: float
    bytes_out: float

    @property
    def executed(self) -> float:
        """All commands."""
        return sum(self.commands.values())

    def since(self, earlier: Counters) -> Counters:
        """What was added since `earlier`."""
        return self.less(earlier, 1.0)

    def less_idle(self, idle: Counters) -> Counters:
        """This without what an idle time of the same length costs."""
        return self.less(idle, self.at_s / idle.at_s)

    def less(self, other: Counters, factor: float) -> Counters:
        """This minus `factor` times the other."""
        names = self.commands.keys() | other.commands.keys()
        commands = {
            name: self.commands.get(name, 0.0) - factor * other.commands.get(name, 0.0) for name in names
        }
        return Counters(
            self.at_s - factor * other.at_s if factor == 1.0 else self.at_s,
            commands,
            self.bytes_in - factor * other.bytes_in,
            self.bytes_out - factor * other.bytes_out,
        )

    def per_node(self, nodes: float) -> dict[str, Any]:
        """Commands and bytes for each of so many nodes; the commands by name, the most frequent first."""
        frequent = sorted(self.commands.items(), key=lambda pair: -pair[1])
        return {
            "commands": round(self.executed / nodes, 3),
            "bytes_in": round(self.bytes_in / nodes, 1),
            "bytes_out": round(self.bytes_out / nodes, 1),
            "by_name": {name: round(count / nodes, 3) for name, count in frequent if count / nodes >= 0.01},
        }


def counters(client: Redis) -> Counters:
    """The server's counters now."""
    stats: Any = client.info("commandstats", "stats")
    commands = {
        name.removeprefix("cmdstat_"): float(value["calls"])
        for name, value in stats.items()
        if name.startswith("cmdstat_")
    }
    return Counters(
        time.monotonic(),
        {name: calls for name, calls in commands.items() if name != "info"},
        float(stats["total_net_input_bytes"]),
        float(stats["total_net_output_bytes"]),
    )


def measured(client: Redis, work: Callable[[], object]) -> Counters:
    """What the counters rise by while `work` runs."""
    before = counters(client)
    work()
    return counters(client).since(before)


def monitored(client: Redis, database: int, work: Callable[[], object]) -> dict[str, int]:
    """How many commands `work` makes one database execute: sent by `clients`, called in `scripts`."""
    marker = secrets.token_hex(8)
    counts: Counter[str] = Counter()
    listening = threading.Event()

    def listen() -> None:
        with client.monitor() as monitor:  # type: ignore[no-untyped-call]
            listening.set()
            for command in monitor.listen():
                if marker in command["command"]:
                    return
                if int(command["db"]) == database:
                    counts["scripts" if command["client_type"] == "lua" else "clients"] += 1

    listener = threading.Thread(target=listen, name="monitor", daemon=True)
    listener.start()
    listening.wait()
    work()
    client.echo(marker)
    listener.join()
    return {"clients": counts["clients"], "scripts": counts["scripts"]}
