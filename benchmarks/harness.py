"""The form that all benchmarks share: the machine, the sizes, the figures, how they are printed and where they go.

A benchmark is a script beside this file, run by `make bench NAME=name [QUICK=1]`. It fills a `Report` and leaves
`benchmarks/out/name.json`: machine, versions, quick, figures (a flat map of numbers), details.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import math
import os
import platform
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

OUT = Path(__file__).resolve().parent / "out"
DIGITS = 4
OFF = frozenset({"", "0", "no", "false"})


def wants_quick(description: str, arguments: Sequence[str] | None = None) -> bool:
    """Whether the small sizes are asked for, by `--quick` or by `QUICK=1` in the environment.

    Args:
        description: what the benchmark measures, for `--help`.
        arguments: of the command line; default: this process's.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="small sizes; the same as QUICK=1")
    asked: bool = parser.parse_args(arguments).quick
    return asked or os.environ.get("QUICK", "").lower() not in OFF


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    usable = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()
    return {
        "system": f"{platform.system()} {platform.release()}",
        "architecture": platform.machine(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "cores_usable": usable,
        "load_before": round(os.getloadavg()[0], 2),
    }


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor()


def versions(packages: Iterable[str], **others: str) -> dict[str, str]:
    """The versions of Python, of these distributions, and of what else is named."""
    found = {package: importlib.metadata.version(package) for package in packages}
    return {"python": platform.python_version(), **found, **others}


@dataclass(frozen=True)
class Spread:
    """Repeated measurements of one thing in seconds, in the order they were taken."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """The one that figures are made of."""
        return statistics.median(self.values)

    @property
    def best(self) -> float:
        """The least disturbed one."""
        return min(self.values)

    def per(self, count: int) -> dict[str, Any]:
        """Median, best and all values, in milliseconds for each of `count`."""
        return {
            "median_ms": rounded(1e3 * self.median / count),
            "best_ms": rounded(1e3 * self.best / count),
            "all_ms": [rounded(1e3 * value / count) for value in self.values],
        }


@dataclass(frozen=True)
class Target:
    """What a figure is to reach: `most` at most, `least` at least."""

    figure: str
    most: float = math.inf
    least: float = -math.inf

    @property
    def told(self) -> str:
        """The bounds, for a table."""
        low = f"at least {shown(self.least)}" if math.isfinite(self.least) else ""
        high = f"at most {shown(self.most)}" if math.isfinite(self.most) else ""
        return ", ".join(filter(None, (low, high)))

    def verdict(self, figures: Mapping[str, float | None]) -> str:
        """`met`, `missed`, or `not measured`."""
        value = figures.get(self.figure)
        if value is None:
            return "not measured"
        return "met" if self.least <= value <= self.most else "missed"


@dataclass
class Report:
    """What a benchmark found."""

    name: str
    quick: bool
    versions: Mapping[str, str]
    machine: Mapping[str, Any] = field(default_factory=machine)
    figures: dict[str, float | None] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)

    def save(self, directory: Path = OUT) -> Path:
        """Writes `NAME.json` and returns where."""
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / f"{self.name}.json"
        data = {
            "name": self.name,
            "machine": self.machine,
            "versions": self.versions,
            "quick": self.quick,
            "figures": {key: rounded(value) for key, value in self.figures.items()},
            "details": self.details,
        }
        path.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
        return path

    def show(self, targets: Sequence[Target]) -> None:
        """Prints every figure, with its target and the verdict where it has one; small sizes have none."""
        wanted = {} if self.quick else {target.figure: target for target in targets}
        rows = [
            (
                name,
                shown(value),
                wanted[name].told if name in wanted else "",
                wanted[name].verdict(self.figures) if name in wanted else "",
            )
            for name, value in self.figures.items()
        ]
        title = f"{self.name}{' (quick: small sizes, for which there are no targets)' if self.quick else ''}"
        show_table(title, ("figure", "value", "target", ""), rows)


def ratio(ours: float | None, theirs: float | None) -> float | None:
    """`ours / theirs`; None when one of them was not measured."""
    if ours is None or theirs is None or theirs == 0:
        return None
    return ours / theirs


def percentile(values: Sequence[float], percent: int) -> float:
    """The least value that so many percent do not exceed."""
    return sorted(values)[-(-len(values) * percent // 100) - 1]


def worst(values: Iterable[float | None]) -> float | None:
    """The greatest of those measured; None when none was."""
    return max((value for value in values if value is not None), default=None)


def rounded(value: float | None) -> float | None:
    """To a few significant digits; whole numbers stay whole."""
    if value is None or value == 0 or isinstance(value, int):
        return value
    return round(value, DIGITS - 1 - math.floor(math.log10(abs(value))))


def shown(value: float | None) -> str:
    """A number for a table; a dash when it was not measured."""
    return "-" if value is None else f"{rounded(value):,g}"


def show_table(title: str, headers: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Prints a table: the first column to the left, the others to the right."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for position, header in enumerate(headers):
        table.add_column(header, justify="right" if position else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    Console(width=None if sys.stdout.isatty() else 120).print(table)
