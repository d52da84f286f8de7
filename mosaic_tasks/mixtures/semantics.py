"""Similarity in meaning, by sentence embeddings; needs the extra `semantic`."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from mosaic_queues.errors import ConfigurationError
from mosaic_tasks.mixtures.agreement import Similarity

VECTORS_KEPT = 256


def embedded(model: str) -> Similarity:
    """Similarity by the cosine between the embeddings that `model`, a name or a folder, makes of texts.

    Raises:
        ConfigurationError: when it is used, and the extra is not installed.
    """

    def similarity(texts: Sequence[str], least: float) -> list[list[float]]:
        del least  # all are computed at once
        rows = [_vector(model, text) for text in texts]
        return [[sum(a * b for a, b in zip(one, other, strict=True)) for other in rows] for one in rows]

    return similarity


@lru_cache(maxsize=VECTORS_KEPT)
def _vector(model: str, text: str) -> tuple[float, ...]:
    """Kept, since a mixture looks at the same answers after each one that comes."""
    (vector,) = _encoder(model).encode([text], normalize_embeddings=True)
    return tuple(float(number) for number in vector)


@lru_cache(maxsize=2)
def _encoder(model: str) -> Any:
    try:
        library = importlib.import_module("sentence_transformers")
    except ImportError as missing:
        raise ConfigurationError(
            f"similarity by the model {model!r} needs sentence-transformers: "
            "python -m pip install 'mosaic-tasks[semantic]'"
        ) from missing
    return library.SentenceTransformer(model)


__all__ = ["embedded"]
