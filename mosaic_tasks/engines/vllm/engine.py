"""The engine `vllm:<alias>`: vLLM's AsyncLLM in this process, its EngineCore in another.

A request goes straight into vLLM's continuous batch. Its tokens come by a queue of its own, into which the death of
EngineCore and the end of its time are put too: so a stream waits for one thing only, and hears of all at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import structlog
from pydantic import ValidationError

from mosaic_queues.errors import (
    CallError,
    CallTimeout,
    ConfigurationError,
    EngineError,
    EngineGone,
    EngineOverloaded,
    EngineRefused,
)
from mosaic_tasks.engines.protocol import (
    EngineLoad,
    EngineRequest,
    Events,
    Finished,
    FinishReason,
    Message,
    TextDelta,
    Usage,
)
from mosaic_tasks.engines.vllm.arguments import (
    GIB,
    checked_arguments,
    core_variables,
    prepare_environment,
    tracker_variables,
)
from mosaic_tasks.engines.vllm.asking import Asked, Asker
from mosaic_tasks.engines.vllm.fitting import check_fit
from mosaic_tasks.engines.vllm.folder import check_adapter, check_model
from mosaic_tasks.engines.vllm.journal import Journal, quiet_deaths, quiet_import, shortened
from mosaic_tasks.engines.vllm.meter import Meter, stat_logger, tell_outputs
from mosaic_tasks.engines.vllm.orphans import Guard, environment, kill_marked, marked, marking
from mosaic_tasks.engines.vllm.spec import ModelSpec
from mosaic_tasks.engines.vllm.waking import Waking

log = structlog.get_logger(__name__)

START_S = 1800.0
_FIRST_TOKEN_S = 120.0
_LOOK_S = 0.25
_GUARD_S = 1.0
_END_S = 5.0
_CODE_S = 0.01
_CAUSE_S = 5.0
_FIRST, _LAST = -1, 1 << 62
"""Priorities before and after all of the users'."""
_FINISHED: dict[str, FinishReason] = {"length": "length", "abort": "cancelled"}

_one_at_a_time = threading.Lock()
"""Held while EngineCore starts: its mark is in the environment of the whole process."""
_names = itertools.count()


class VLLMEngine:
    """A model in vLLM.

    Args:
        spec: which model, and how.

    Attributes:
        dead: set once EngineCore is gone, however that came.
        cause: why, in a few words.
        cut_off: how many streams it took with it.
        after_death: what happens next, for the message that its streams end with.
        meter: what vLLM tells of its steps.
    """

    name = "vllm"
    continues = True
    after_death = "try again later"

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec
        self.dead = asyncio.Event()
        self.cause = ""
        self.cut_off = 0
        self._guard = Guard()
        self.meter = Meter()
        self._journal: Journal | None = None
        self._llm: Any = None
        self._asker: Asker
        self._building: asyncio.Future[None] | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._open: set[Any] = set()
        self._taken = 0

    # -- start and end

    async def start(
        self, progress: Callable[[str], None] = lambda _: None, *, timeout_s: float = START_S
    ) -> None:
        """Starts EngineCore, and waits until a first token came out of it.

        Args:
            progress: hears how far the start is, a few words at a time.
            timeout_s: for all of it; loading large weights from a slow disk takes minutes.

        Raises:
            ConfigurationError: the spec, the folder or an adapter is of no use.
            EngineRefused: vLLM refuses it.
            EngineError: the start failed, or took longer than `timeout_s`.
        """
        begun = time.monotonic()
        self._journal = Journal()
        self._guard.folder = self._journal.folder
        reached = "checking the model"

        def reach(phase: str) -> None:
            nonlocal reached
            reached = phase
            progress(phase)

        try:
            async with asyncio.timeout(timeout_s) as scope:
                await self._start(reach)
        except BaseException as error:
            cause = self._journal.cause()
            await self.aclose()
            if isinstance(error, TimeoutError) and scope.expired():
                raise EngineError(
                    f"engine {self.spec.alias!r} did not start within {timeout_s:g} s; it was at: {reached}"
                ) from None
            if isinstance(error, EngineError | ConfigurationError) or not isinstance(error, Exception):
                raise
            raise EngineError(
                f"engine {self.spec.alias!r} could not start: {_reason(error, cause)}"
            ) from error
        self._journal.started()
        reach(f"ready after {time.monotonic() - begun:.1f} s")

    async def aclose(self) -> None:
        """Ends EngineCore and all that it started; open streams end with an error."""
        self._tell("it was closed")
        if self._keeping is not None:
            self._keeping.cancel()
            self._keeping = None
        await self._end_building()
        if self._llm is not None:
            await asyncio.to_thread(self._llm.shutdown, _END_S)
            self._llm = None
            with contextlib.suppress(AttributeError):  # it did not come so far
                del self._asker
            gc.unfreeze()  # what was loaded with it is not needed any more
            gc.collect()  # it is full of cycles, and would shut itself down once more when the interpreter ends
        await asyncio.to_thread(self._guard.close)
        until = time.monotonic() + _END_S
        # Memory is free when its owner is gone.
        while await asyncio.to_thread(self.pids) and time.monotonic() < until:
            await asyncio.sleep(_CODE_S)
        if self._journal is not None:
            self._journal.close()

    def kill(self, cause: str) -> None:
        """Kills EngineCore, which does not answer any more."""
        self._end(cause)

    def pids(self) -> list[int]:
        """The processes that this engine started."""
        return marked(self._guard.mark)

    # -- answers

    async def stream(self, request: EngineRequest) -> Events:
        """See `Engine.stream`."""
        begun = asyncio.get_running_loop().time()
        self._taken += 1
        try:
            self._check_alive()
            asked = await self._asker.asked(request)
            if asked.sampling is None:
                yield Finished("length", Usage(len(asked.prompt), 0))
                return
            logprobs: list[float] = []
            written, finished = 0, False
            async with self._request(asked, timeout_s=request.timeout_s, begun=begun) as queue:
                while not finished:
                    await queue.ready.wait()
                    out = queue.get_nowait()  # all that came meanwhile, in one
                    finished, answer = out.finished, out.outputs[0]
                    written += len(answer.token_ids)
                    if request.logprobs:
                        logprobs += _logprobs(answer)
                    if answer.text:
                        yield TextDelta(answer.text)
        finally:
            self._taken -= 1
        if answer.finish_reason == "error":
            raise EngineError(f"engine {self.spec.alias!r} broke off the answer; try again")
        self.meter.finished(len(asked.prompt) + written)
        usage = Usage(len(asked.prompt), written, cached_tokens=out.num_cached_tokens or 0)
        yield Finished(_FINISHED.get(answer.finish_reason, "stop"), usage, tuple(logprobs))

    async def warm(self, messages: Sequence[Message]) -> None:
        """Reads `messages` into the prefix cache, when there is nothing more urgent to do.

        A later request whose prompt begins so need not read them again.

        Raises:
            EngineError: see `stream`.
        """
        self._check_alive()
        ids = await self._asker.read(tuple(messages))
        await self._one_token(ids, priority=_LAST, timeout_s=None)

    async def probe(self, timeout_s: float) -> None:
        """Asks for one token, before everybody else's.

        Raises:
            CallTimeout: none came within `timeout_s`.
            EngineError: see `stream`.
        """
        await self._one_token(self._asker.encode("a")[:1], priority=_FIRST, timeout_s=timeout_s)

    # -- state

    @property
    def quiet_s(self) -> float:
        """How long it got on with none of its requests; 0 if there are none."""
        return time.monotonic() - self.meter.worked_at if self._open else 0.0

    def load(self) -> EngineLoad:
        """What the engine does at the moment."""
        if self._llm is None or self.dead.is_set():
            return EngineLoad()
        config = self._llm.vllm_config
        return self.meter.load(
            taken=self._taken,
            # Block 0 is vLLM's own.
            blocks=max(1, (config.cache_config.num_gpu_blocks or 1) - 1),
            block_tokens=config.cache_config.block_size,
            most=config.scheduler_config.max_num_seqs,
            longest=self._asker.longest,
        )

    # -- inside: start

    async def _start(self, reach: Callable[[str], None]) -> None:
        assert self._journal is not None
        reach("checking the model")
        rank = await asyncio.to_thread(_check_files, self.spec)
        reach("importing vLLM")
        self._guard.keep()
        self._keeping = asyncio.create_task(self._keep_guard())
        self._building = asyncio.ensure_future(asyncio.to_thread(self._build, self._journal, rank))
        grammars = asyncio.ensure_future(asyncio.to_thread(_import_grammars))
        while not self._building.done():
            await asyncio.wait([self._building], timeout=_LOOK_S)
            for phase in self._journal.phases():
                reach(phase)
        await asyncio.wait([grammars])
        self._building.result()
        self._building = None
        self._watch()
        self._asker = Asker(self.spec.alias, self._llm)
        for number, (name, path) in enumerate(self.spec.adapters.items(), start=1):
            reach(f"loading the adapter {name!r}")
            await self._load_adapter(name, str(path.expanduser()), number)
        reach("asking for a first token")
        await self.probe(_FIRST_TOKEN_S)

    async def _load_adapter(self, name: str, path: str, number: int) -> None:
        from vllm.lora.request import LoRARequest

        request = LoRARequest(f"{self.spec.alias}/{name}", number, path)
        try:
            await self._llm.add_lora(request)
        except Exception as error:
            raise ConfigurationError(
                f"vLLM refuses the adapter {name!r} ({path!r}) on model {self.spec.alias!r}: {shortened(str(error))}"
            ) from error
        self._asker.adapters[name] = request

    async def _end_building(self) -> None:
        """A start cannot be cancelled; without its EngineCore it fails."""
        if self._building is None:
            return
        while not self._building.done():
            await asyncio.to_thread(kill_marked, self._guard.mark)
            await asyncio.wait([self._building], timeout=_LOOK_S)
        self._building.exception()  # is of no interest any more
        self._building = None

    def _build(self, journal: Journal, rank: int) -> None:
        """AsyncLLM with its EngineCore; blocks until the model is loaded."""
        prepare_environment(self.spec)
        if journal.configuration is not None:
            quiet_import()
        try:
            from vllm import envs
            from vllm.config.logging import LoggingConfig
            from vllm.engine.arg_utils import AsyncEngineArgs
            from vllm.platforms import current_platform
            from vllm.v1.engine.async_llm import AsyncLLM
        except ImportError as error:
            raise ConfigurationError(
                f"vLLM cannot be imported ({error}); install it with: {_installation(Path(__file__).parents[3])}"
            ) from error
        envs.disable_envs_cache()  # an earlier engine of this process had variables of its own
        cpu: bool = current_platform.is_cpu()
        prepare_environment(self.spec, cpu=cpu)
        gpu_gb = None if cpu else current_platform.get_device_total_memory() / GIB
        arguments = checked_arguments(self.spec, cpu=cpu, gpu_gb=gpu_gb, lora_rank=rank)
        if journal.configuration is not None:
            arguments.setdefault("logging_config", LoggingConfig(pylogging_config_file=journal.configuration))
        quiet_deaths()
        with _one_at_a_time, environment(tracker_variables()):
            resource_tracker.ensure_running()  # of this process, so it must not carry the mark
        with _one_at_a_time, marking(self._guard.mark), environment(core_variables(self.spec)):
            config = AsyncEngineArgs(**arguments).create_engine_config()
            check_fit(self.spec, config, cpu=cpu)
            loggers = [stat_logger(self.meter)]
            self._llm = AsyncLLM.from_vllm_config(config, stat_loggers=loggers, disable_log_stats=True)
        tell_outputs(self._llm, self.meter)
        envs.enable_envs_cache()  # vLLM reads one of them for each token, a seventh of the loop's time

    def _watch(self) -> None:
        """Hears of EngineCore's end by the pipe that closes with it."""
        loop = asyncio.get_running_loop()
        for process in self._cores():
            loop.add_reader(process.sentinel, self._core_ended, process)

    def _cores(self) -> list[Any]:
        manager = self._llm.engine_core.resources.engine_manager
        return [] if manager is None else list(manager.processes)

    def _core_ended(self, process: Any, looks: int = 100) -> None:
        """Its files are closed; how it ended is known a moment later, or once another thread has asked."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(process.sentinel)
        if process.exitcode is None and looks:
            loop.call_later(_CODE_S, self._core_ended, process, looks - 1)
            return
        assert self._journal is not None
        # A signal is the cause itself: what was logged before is of something else.
        told = "" if (process.exitcode or 0) < 0 else self._journal.cause()
        how = f"EngineCore (pid {process.pid}) {_ending(process.exitcode)}"
        self._end(f"{how}: {told}" if told else how)

    async def _keep_guard(self) -> None:
        while True:
            if self._guard.keep():
                log.warning(
                    "engine.guard_lost", what="started another guard of an engine", model=self.spec.alias
                )
            await asyncio.sleep(_GUARD_S)

    def _end(self, cause: str) -> None:
        """EngineCore is gone, or has to be: nothing of it stays."""
        self._tell(cause)
        kill_marked(self._guard.mark)

    def _tell(self, cause: str) -> None:
        """Whoever waits for EngineCore hears that it is gone."""
        if self.dead.is_set():
            return
        self.cause, self.cut_off = cause, len(self._open)
        self.dead.set()
        if self._llm is not None:
            for process in self._cores():
                asyncio.get_running_loop().remove_reader(process.sentinel)
            if self._llm.output_handler is not None:
                self._llm.output_handler.cancel()  # it would log the end of EngineCore, and no cause
        for queue in self._open:
            queue.put(self._death(began=True))

    def _death(self, *, began: bool = False) -> EngineGone:
        gone = EngineGone(f"engine {self.spec.alias!r} died: {self.cause}; {self.after_death}")
        gone.began = began
        return gone

    # -- inside: requests

    async def _enqueue(self, asked: Asked) -> Any:
        """The queue of the request's outputs, once vLLM has the request."""
        self._check_alive()
        if not self._open:
            self.meter.worked_at = time.monotonic()
        name = f"{self.spec.alias}-{next(_names)}"
        try:
            queue = await self._llm.add_request(
                name,
                {"type": "token", "prompt_token_ids": asked.prompt},
                asked.sampling,
                lora_request=asked.adapter,
                priority=asked.priority,
            )
        except BaseException as error:
            if not self.dead.is_set():
                await self._llm.abort(name)  # left half-way, it may be there already
            if not isinstance(error, Exception):
                raise
            raise await self._meaning(error, asked) from error
        self._check_alive()  # it may have died while the request was under way to it
        queue.ready = Waking(is_set=queue.output is not None)
        self._open.add(queue)
        return queue

    async def _one_token(self, ids: list[int], *, priority: int, timeout_s: float | None) -> None:
        from vllm.sampling_params import RequestOutputKind, SamplingParams

        kind = RequestOutputKind.DELTA
        asked = Asked(ids, SamplingParams(max_tokens=1, temperature=0.0, output_kind=kind), None, priority)
        finished = False
        begun = asyncio.get_running_loop().time()
        async with self._request(asked, timeout_s=timeout_s, begun=begun) as queue:
            while not finished:
                finished = (await queue.get()).finished

    @contextlib.asynccontextmanager
    async def _request(self, asked: Asked, *, timeout_s: float | None, begun: float) -> AsyncIterator[Any]:
        """A request in the engine and the queue of its outputs; dropped by the engine when it is left early.

        Args:
            asked: the request.
            timeout_s: after so long, the queue raises `CallTimeout`.
            begun: time of the loop from which that counts.
        """
        queue = await self._enqueue(asked)
        timer = None
        if timeout_s is not None:
            late = CallTimeout(f"engine {self.spec.alias!r} did not answer within {timeout_s:g} s")
            timer = asyncio.get_running_loop().call_at(begun + timeout_s, queue.put, late)
        try:
            yield queue
        except CallError:
            raise
        except Exception as error:
            raise await self._meaning(error) from error
        finally:
            if timer is not None:
                timer.cancel()
            self._open.discard(queue)
            await self._drop(queue.request_id)

    async def _drop(self, request: str) -> None:
        """Takes a request out of the engine, unless it has ended."""
        if not self.dead.is_set() and self._llm.output_processor.has_request(request):
            await self._llm.abort(request, internal=True)

    def _check_alive(self) -> None:
        if self.dead.is_set():
            raise self._death()
        if self._llm is None:
            raise EngineGone(f"engine {self.spec.alias!r} has not started yet; try again later")

    async def _meaning(self, error: Exception, asked: Asked | None = None) -> Exception:
        """The project's error for one of vLLM's."""
        from vllm.exceptions import GracefulHTTPError, VLLMClientError
        from vllm.v1.engine.exceptions import EngineDeadError

        said = shortened(str(error))
        match error:
            case EngineDeadError():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.dead.wait(), _CAUSE_S)  # vLLM notices it, and knows no cause
                self._end("EngineCore does not answer any more")
                return self._death(began=True)
            case GracefulHTTPError():
                return EngineOverloaded(f"engine {self.spec.alias!r} takes no more requests: {said}")
            case VLLMClientError() | ValueError():
                if asked is not None and asked.sampling.structured_outputs is not None:
                    return EngineRefused(f"the output schema cannot be made a grammar of: {said}")
                return EngineRefused(f"engine {self.spec.alias!r} refuses the request: {said}")
        return EngineError(f"engine {self.spec.alias!r} failed: {type(error).__name__}: {said}")


def _check_files(spec: ModelSpec) -> int:
    """The largest rank of the adapters, once all files were looked at."""
    if spec.folder is not None:
        check_model(spec.folder)
    ranks = [check_adapter(name, path.expanduser(), spec.folder) for name, path in spec.adapters.items()]
    return max(ranks, default=0)


def _installation(root: Path) -> str:
    """The command that brings vLLM; a clone of the repository has one for machines without a GPU.

    Args:
        root: where this package lies.
    """
    in_clone = (root / "requirements" / "engine.txt").exists() and (root / "Makefile").exists()
    return "make engine" if in_clone else "pip install 'mosaic-tasks[vllm]'"


def _import_grammars() -> None:
    """Imports what the first answer with a schema would otherwise hold up the loop for, some seconds."""
    with contextlib.suppress(ImportError):
        from vllm.v1.structured_output import (  # noqa: F401
            backend_guidance,
            backend_lm_format_enforcer,
            backend_outlines,
            backend_xgrammar,
        )


def _reason(error: Exception, logged: str) -> str:
    """Why a start failed: what EngineCore logged where it failed there, else the error of this process."""
    if logged and isinstance(error, RuntimeError):
        return logged
    if isinstance(error, ValidationError):
        return shortened(error.errors()[0]["msg"].removeprefix("Value error, "))
    return shortened(f"{type(error).__name__}: {error}")


def _ending(exit_code: int | None) -> str:
    if exit_code is None:
        return "ended"
    if exit_code < 0:
        return f"was killed by {signal.Signals(-exit_code).name}"
    return f"ended with code {exit_code}"


def _logprobs(answer: Any) -> list[float]:
    """Of each token that was chosen."""
    return [of[token].logprob for token, of in zip(answer.token_ids, answer.logprobs or (), strict=False)]
