"""The alternative in the inference benchmark: in each of Celery's threads a blocking call of vLLM's HTTP server."""

# mypy: disallow-untyped-decorators=False
from __future__ import annotations

import itertools
import json
import os
import time
from functools import cache
from typing import Any

from celery import Celery
from inference_load import ALIAS, Answer, Slice, told
from openai import OpenAI
from redis import Redis

TIMEOUT_S = 300
QUEUE, NOTES = "asked", "bench:answers"

app = Celery("inference_http", broker=os.environ["BENCH_URL"], set_as_current=True)
app.conf.update(
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    task_ignore_result=True,
    task_default_queue=QUEUE,
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
)


@cache
def _server() -> OpenAI:
    return OpenAI(base_url=os.environ["BENCH_SERVER"], api_key="none", max_retries=0)


@cache
def _notes() -> Redis:
    return Redis(unix_socket_path=os.environ["BENCH_SOCKET"], db=int(os.environ["BENCH_DATABASE"]))


@app.task(name="ask")
def ask(prompt: str, tokens: int, sent_s: float) -> None:
    """Asks the server, and notes the answer. `sent_s`: when that was asked for, on the clock of the machine."""
    first_s, written = 0.0, 0
    stream = _server().chat.completions.create(
        model=ALIAS,
        messages=[{"role": "user", "content": prompt}],
        temperature=0.0,
        max_tokens=tokens,
        stream=True,
        stream_options={"include_usage": True},
    )
    for chunk in stream:
        if chunk.choices and chunk.choices[0].delta.content:
            first_s = first_s or time.monotonic() - sent_s
        if chunk.usage is not None:
            written = chunk.usage.completion_tokens
    _notes().rpush(NOTES, json.dumps((first_s, time.monotonic() - sent_s, written)))


def workers_answering(count: int) -> int:
    """How many of `count` workers answer now."""
    return len(app.control.ping(timeout=1.0, limit=count))


def answer_all(*wanted: int) -> dict[str, Any]:
    """Has a slice answered: who has an answer sends the next task."""
    asked = Slice(*wanted)
    prompts, answers = iter(asked.prompts), list[Answer]()
    begun = time.perf_counter()
    for prompt in itertools.islice(prompts, asked.in_flight):
        _send(prompt, asked.tokens)
    while len(answers) < asked.count:
        answers.append(_popped())
        if prompt := next(prompts, ""):
            _send(prompt, asked.tokens)
    return told(time.perf_counter() - begun, answers)


def _send(prompt: str, tokens: int) -> None:
    ask.apply_async((prompt, tokens, time.monotonic()))


def _popped() -> Answer:
    found: Any = _notes().blpop([NOTES], timeout=TIMEOUT_S)
    if found is None:
        raise TimeoutError("a task did not answer")
    return Answer(*json.loads(found[1]))
