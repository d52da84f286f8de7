"""A process that hosts an engine and waits to be killed: `worker_main.py MODEL`. Prints what it has got, by lines."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from mosaic_tasks.engines.vllm.supervisor import Supervisor
from tests.engine.hosting import small


async def main(model: str) -> None:
    supervisor = Supervisor(small(Path(model)))
    await supervisor.start(lambda line: print(line, flush=True))
    print("pids", *supervisor.pids(), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
