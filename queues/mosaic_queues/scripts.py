"""Loads the Lua transitions and runs them, by hash."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from importlib import resources
from typing import Any

import msgspec
from redis import Redis
from redis.exceptions import NoScriptError

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


def _source(name: str) -> str:
    return resources.files("mosaic_queues").joinpath("lua", f"{name}.lua").read_text("utf-8")


class Script:
    """One transition: `common.lua`, perhaps `streams.lua`, and its own file. Takes one msgpack map, answers msgpack
    (alone, or first in a list) or an integer."""

    def __init__(self, name: str, *, streams: bool = False) -> None:
        parts = ("common", "streams", name) if streams else ("common", name)
        self.text = "\n".join(map(_source, parts))
        self.sha = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()

    def __call__(
        self, client: Redis, keys: Sequence[str], argument: dict[str, Any], envelopes: Sequence[bytes] = ()
    ) -> Any:
        """Runs the script on the keys of a run; decodes what is msgpack in its answer.

        Args:
            envelopes: follow the map as arguments of their own, since the server's msgpack knows no binary type.
        """
        packed = _encode(argument)
        try:
            answer: Any = client.evalsha(self.sha, len(keys), *keys, packed, *envelopes)
        except NoScriptError:
            answer = client.eval(self.text, len(keys), *keys, packed, *envelopes)
        if isinstance(answer, list):
            return [_decode(answer[0]), *answer[1:]]
        return _decode(answer) if isinstance(answer, bytes) else answer
