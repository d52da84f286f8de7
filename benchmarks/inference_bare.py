"""The bare side of the inference benchmark: AsyncLLM in this process, a coroutine a request, nothing else."""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import Any

from inference_load import Answer, Slice, keep_asking

from mosaic_tasks.engines.vllm.arguments import engine_arguments, prepare_environment
from mosaic_tasks.engines.vllm.spec import ModelSpec

_runner = asyncio.Runner()
_numbers = itertools.count()
_llm: Any = None


def start(spec: str) -> float:
    """Starts the engine with the arguments that a worker gives it. Returns the seconds that took."""
    global _llm
    begun = time.perf_counter()
    _llm = _runner.run(_started(ModelSpec.read(spec)))
    return time.perf_counter() - begun


async def _started(spec: ModelSpec) -> Any:
    prepare_environment(spec, cpu=True)
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    return AsyncLLM.from_engine_args(AsyncEngineArgs(**engine_arguments(spec, cpu=True)))


def answer_all(*wanted: int) -> dict[str, Any]:
    """Answers a slice."""
    return _runner.run(keep_asking(Slice(*wanted), _ask))


async def _ask(prompt: str, tokens: int) -> Answer:
    from vllm.sampling_params import RequestOutputKind, SamplingParams

    begun = time.perf_counter()
    first_s, written = 0.0, 0
    text = _llm.get_tokenizer().apply_chat_template(
        [{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True
    )
    ids = _llm.get_tokenizer().encode(text, add_special_tokens=False)
    sampling = SamplingParams(temperature=0.0, max_tokens=tokens, output_kind=RequestOutputKind.DELTA)
    async for out in _llm.generate({"prompt_token_ids": ids}, sampling, f"bare-{next(_numbers)}"):
        (answer,) = out.outputs
        written += len(answer.token_ids)
        if answer.text:
            first_s = first_s or time.perf_counter() - begun
    return Answer(first_s, time.perf_counter() - begun, written)


def stop() -> None:
    """Ends the engine."""
    _llm.shutdown()
    _runner.close()
