"""Loads the Lua transitions and runs them, by hash."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from importlib import resources
from typing import Any

import msgspec
from redis import Redis
from redis.exceptions import NoScriptError, ResponseError

Order = tuple[Sequence[str], dict[str, Any], Sequence[bytes]]
"""What a script is run with: the keys of a run, the map, and the envelopes that follow it."""

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
        return _decoded(answer)

    def together(self, client: Redis, orders: Iterable[Order]) -> list[Any]:
        """Runs it for each order, all in one trip; an error of the server stands where its answer would.

        Raises:
            redis.RedisError: the server does not answer.
        """
        asked = [(keys, _encode(argument), envelopes) for keys, argument, envelopes in orders]
        with client.pipeline(transaction=False) as pipe:
            for keys, packed, envelopes in asked:
                pipe.evalsha(self.sha, len(keys), *keys, packed, *envelopes)
            answers = pipe.execute(raise_on_error=False)
        for place, order in enumerate(asked):
            if isinstance(answers[place], NoScriptError):
                answers[place] = self._brought(client, *order)
        return [answer if isinstance(answer, Exception) else _decoded(answer) for answer in answers]

    def at_the_end_of(self, pipe: Any, client: Redis, order: Order) -> Any:
        """Runs it behind the commands of a pipeline, in one trip with them. What the server says of these is not
        looked at: the script looks whether they were done.

        Raises:
            redis.RedisError: the server does not answer, or refuses the script.
        """
        keys, argument, envelopes = order
        packed = _encode(argument)
        pipe.evalsha(self.sha, len(keys), *keys, packed, *envelopes)
        answer = pipe.execute(raise_on_error=False)[-1]
        if isinstance(answer, NoScriptError):
            answer = self._brought(client, keys, packed, envelopes)
        if isinstance(answer, Exception):
            raise answer
        return _decoded(answer)

    def _brought(self, client: Redis, keys: Sequence[str], packed: bytes, envelopes: Sequence[bytes]) -> Any:
        """The answer of a server that did not know the script."""
        try:
            return client.eval(self.text, len(keys), *keys, packed, *envelopes)
        except ResponseError as error:
            return error


def _decoded(answer: Any) -> Any:
    if isinstance(answer, list):
        return [_decode(answer[0]), *answer[1:]]
    return _decode(answer) if isinstance(answer, bytes) else answer
