"""Steps of more than one key, as Lua: `lua/common.lua`, and what follows it."""

from __future__ import annotations

import hashlib
from importlib import resources

from mosaic_queues.scripts import Script


class AccessScript(Script):
    """One step, of these files. Takes the keys that they name, and one msgpack map; answers a number."""

    def __init__(self, *names: str) -> None:
        self.text = "\n".join(map(_source, ("common", *names)))
        self.sha = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()


def _source(name: str) -> str:
    return resources.files("mosaic_tasks.access").joinpath("lua", f"{name}.lua").read_text("utf-8")
