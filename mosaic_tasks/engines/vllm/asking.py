"""From a request to what vLLM takes: the tokens of its prompt, its sampling and its adapter."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec

from mosaic_queues.errors import ContextTooLong, EngineRefused
from mosaic_routing.ordering import Waiting, engine_priority
from mosaic_tasks.engines.protocol import EngineRequest, Message
from mosaic_tasks.engines.vllm.journal import shortened

_LONG_PROMPT = 20_000
"""Characters from which on a prompt is tokenised beside the loop: some 5 ms."""


class Asked(msgspec.Struct):
    """A request as vLLM takes it.

    Attributes:
        sampling: None where the prefix is the whole answer already.
        priority: when it is due (ms), so that nothing waits for ever behind what is more urgent.
    """

    prompt: list[int]
    sampling: Any
    adapter: Any
    priority: int


class Asker:
    """Reads requests for one model.

    Args:
        alias: of the model, for messages.
        llm: its AsyncLLM.

    Attributes:
        adapters: vLLM's requests for the adapters that it has loaded, by their names.
    """

    def __init__(self, alias: str, llm: Any) -> None:
        self._alias = alias
        self._llm = llm
        self._defaults: dict[str, Any] = llm.model_config.get_diff_sampling_param()
        self.adapters: dict[str, Any] = {}

    @property
    def longest(self) -> int:
        """Tokens that a request may have, answer included."""
        longest: int = self._llm.model_config.max_model_len
        return longest

    async def asked(self, request: EngineRequest) -> Asked:
        """The request as vLLM takes it.

        A prefix stands right behind the template's opening of the answer, where the model wrote it. The two are
        tokenised apart: as when it was written, no token lies across.

        Raises:
            ContextTooLong: the prompt leaves no room for an answer.
            EngineRefused: the template, the sampling or the adapter cannot be used.
        """
        if request.prefix and request.output_schema is not None:
            raise EngineRefused(
                f"engine {self._alias!r} cannot continue an answer that has to fit a schema, since the grammar "
                "begins at its first character; ask again without a prefix"
            )
        prefix = self.encode(request.prefix) if request.prefix else []
        ids = self._fitting(await self._tokens(request.messages, answered=True) + prefix)
        left = self.longest - len(ids)
        if request.max_tokens is not None:
            left = min(left, request.max_tokens - len(prefix))
        sampling = self._sampling(request, left) if left > 0 else None
        due = engine_priority(Waiting(level=request.priority, ready_s=time.time()))
        return Asked(ids, sampling, self._adapter(request), due)

    async def read(self, messages: tuple[Message, ...]) -> list[int]:
        """The tokens of a conversation that nobody answers yet.

        Raises:
            ContextTooLong: they leave no room for an answer.
            EngineRefused: the template cannot write them.
        """
        return self._fitting(await self._tokens(messages, answered=False))

    def encode(self, text: str) -> list[int]:
        """The tokens of `text` as it stands."""
        ids: list[int] = self._llm.get_tokenizer().encode(text, add_special_tokens=False)
        return ids

    async def _tokens(self, messages: tuple[Message, ...], *, answered: bool) -> list[int]:
        """The conversation as the model's chat template writes it, up to where its answer begins."""
        if sum(len(message.content) for message in messages) < _LONG_PROMPT:
            return self._rendered(messages, answered)
        return await asyncio.to_thread(self._rendered, messages, answered)

    def _rendered(self, messages: tuple[Message, ...], answered: bool) -> list[int]:
        tokenizer = self._llm.get_tokenizer()
        conversation = [{"role": message.role, "content": message.content} for message in messages]
        try:
            text = tokenizer.apply_chat_template(conversation, tokenize=False, add_generation_prompt=answered)
        except Exception as error:  # a template is a program, and raises what it likes
            raise EngineRefused(
                f"the chat template of model {self._alias!r} cannot write these messages: {shortened(str(error))}"
            ) from error
        return self.encode(text)

    def _fitting(self, ids: list[int]) -> list[int]:
        if len(ids) < self.longest:
            return ids
        raise ContextTooLong(
            f"the prompt has {len(ids):,} tokens, but model {self._alias!r} takes {self.longest:,} at most, "
            "answer included; shorten the prompt or raise max_length in the model's spec"
        )

    def _sampling(self, request: EngineRequest, max_tokens: int) -> Any:
        from vllm.exceptions import VLLMClientError
        from vllm.sampling_params import RequestOutputKind, SamplingParams, StructuredOutputsParams

        schema = request.output_schema
        wanted = {
            "temperature": request.temperature,
            "top_p": request.top_p,
            "seed": request.seed,
            "stop": list(request.stop) or None,
            "logprobs": 0 if request.logprobs else None,
            "structured_outputs": None if schema is None else StructuredOutputsParams(json=schema),
        }
        given = {name: value for name, value in wanted.items() if value is not None}
        own = {name: value for name, value in self._defaults.items() if name != "max_tokens"}
        kind = RequestOutputKind.DELTA
        try:
            # It is this request's alone, so vLLM need not make itself a copy of all that it holds.
            return SamplingParams(
                **{**own, **given}, max_tokens=max_tokens, output_kind=kind, skip_clone=True
            )
        except (VLLMClientError, ValueError) as error:
            raise EngineRefused(
                f"model {self._alias!r} refuses the sampling: {shortened(str(error))}"
            ) from None

    def _adapter(self, request: EngineRequest) -> Any:
        if not request.adapter:
            return None
        if request.adapter not in self.adapters:
            there = ", ".join(repr(name) for name in self.adapters) or "none"
            raise EngineRefused(
                f"model {self._alias!r} has no adapter {request.adapter!r}; there are: {there}. "
                "Add it to 'adapters' in the model's spec"
            )
        return self.adapters[request.adapter]
