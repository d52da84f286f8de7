"""What a chord's body gets: the results of its header, in the header's shape and order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from celery.result import GroupResult
from celery.utils.functional import _regen

from mosaic_queues.chords.joins import HeaderPart


def shape_of(results: Any) -> bytes:
    """The nested task ids of a header that is not flat; nothing for a flat one or a generator."""
    if isinstance(results, _regen) or not any(isinstance(result, GroupResult) for result in results):
        return b""
    return msgspec.json.encode([_ids(result) for result in results])


def _ids(result: Any) -> Any:
    return [_ids(child) for child in result.results] if isinstance(result, GroupResult) else result.id


def in_shape(shape: bytes, by_id: Mapping[str, Any]) -> list[Any]:
    """The values in the header's shape; None where a header has none."""
    shaped: list[Any] = _shaped(msgspec.json.decode(shape), by_id)
    return shaped


def _shaped(ids: Any, by_id: Mapping[str, Any]) -> Any:
    return [_shaped(child, by_id) for child in ids] if isinstance(ids, list) else by_id.get(ids)


def in_place(parts: Sequence[HeaderPart], values: Sequence[Any], size: int) -> list[Any]:
    """The values at their index; those without a place of their own follow."""
    placed: list[Any] = [None] * size
    taken: set[int] = set()
    for part, value in zip(parts, values, strict=True):
        if part.position is not None and part.position < size and part.position not in taken:
            taken.add(int(part.position))
            placed[int(part.position)] = value
        else:
            placed.append(value)
    return placed
