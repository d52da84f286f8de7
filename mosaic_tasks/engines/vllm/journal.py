"""What vLLM's processes log, read while they start: how far they are, and why they failed.

EngineCore is a process of its own: to its parent, a failed start is "see root cause above". So its log goes to a file
too, as long as that is needed. Whoever configures vLLM's logging himself is left alone, and gets no such lines.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

from mosaic_tasks.logs import form

_PHASES = (
    (re.compile(r"Initializing a V1 LLM engine"), "starting the engine's process"),
    (re.compile(r"Starting to load model|Loading (model )?weights|Loading safetensors"), "loading weights"),
    (re.compile(r"weights took|Model loading took"), "weights loaded; profiling memory"),
    (re.compile(r"KV cache size|KV cache on node"), "memory profiled; warming up"),
    (re.compile(r"init engine .*took"), "warmed up"),
)
_CAUSE = re.compile(
    r"^(?:[A-Z]+ .*?)?((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt)): (.+)$", re.MULTILINE
)
_EMPTY_CAUSES = (
    "Engine core initialization failed",
    "Worker failed with error",
    "WorkerProc initialization failed",
)
_SHOWN = 300


class Journal:
    """The log of one start of an engine.

    Attributes:
        folder: where it is written, until the start is over.
    """

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="mosaic-vllm-"))
        self._log = self.folder / "log"
        self._log.touch()
        self._file = self._log.open(encoding="utf-8", errors="replace")
        (self.folder / "logging.json").write_text(json.dumps(_logging(self._log)), encoding="utf-8")
        self._told: set[str] = set()
        self._text = ""
        self._over = False

    @property
    def configuration(self) -> str | None:
        """Path of the logging configuration for vLLM; None where the user has one."""
        own = "VLLM_LOGGING_CONFIG_PATH" in os.environ or os.environ.get("VLLM_CONFIGURE_LOGGING") == "0"
        return None if own else str(self.folder / "logging.json")

    def phases(self) -> list[str]:
        """What came since the last time, in words; each phase once."""
        self._text += (new := self._file.read())
        reached = [phase for line in new.splitlines() for pattern, phase in _PHASES if pattern.search(line)]
        fresh = [phase for phase in dict.fromkeys(reached) if phase not in self._told]
        self._told |= set(fresh)
        return fresh

    def cause(self) -> str:
        """Why it fails, on one line: the first error that a process logged during the start, the last one after it.

        Empty if there is none. A start fails by its first error; an engine that runs has outlived all but the last.
        """
        self._text += self._file.read()
        found = [f"{kind.rpartition('.')[2]}: {said}" for kind, said in _CAUSE.findall(self._text)]
        telling = [line for line in found if not any(empty in line for empty in _EMPTY_CAUSES)]
        return shortened((telling or found or [""])[-1 if self._over else 0])

    def started(self) -> None:
        """The start is over: the names go, what is open stays readable until `close`."""
        self._over = True
        self._text = ""
        self._file.seek(0, os.SEEK_END)
        self._leave()

    def close(self) -> None:
        """Gives the file back."""
        self._leave()
        self._file.close()

    def _leave(self) -> None:
        logger = logging.getLogger("vllm")
        for handler in [handler for handler in logger.handlers if _writes(handler, self._log)]:
            logger.removeHandler(handler)
            handler.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def shortened(text: str) -> str:
    """`text` on one line of readable length."""
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}..."


def quiet_import() -> None:
    """While vLLM is imported it has not set up its logging yet, and all that it says goes to ours."""
    logging.getLogger("vllm").setLevel(logging.ERROR)


def quiet_deaths() -> None:
    """vLLM logs the death of EngineCore with a traceback and no cause; who watches the engine logs it with one."""
    logging.getLogger("vllm.v1.engine.async_llm").addFilter(_is_no_death)


def _is_no_death(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    return type(error).__name__ != "EngineDeadError"


def _writes(handler: logging.Handler, path: Path) -> bool:
    return isinstance(handler, logging.FileHandler) and handler.baseFilename == str(path)


def _logging(path: Path) -> dict[str, Any]:
    """In the form of the worker's log, with a second handler that hears what the console does not."""
    level = os.environ.get("VLLM_LOGGING_LEVEL", "ERROR").upper()
    stream = os.environ.get("VLLM_LOGGING_STREAM", "ext://sys.__stderr__")
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {
            "console": {"()": "mosaic_tasks.logs.formatter", "form": form()},
            "journal": {"format": "%(levelname)s %(message)s"},
        },
        "handlers": {
            "console": {
                "class": "logging.StreamHandler",
                "stream": stream,
                "level": level,
                "formatter": "console",
            },
            "journal": {
                "class": "logging.FileHandler",
                "filename": str(path),
                "level": "INFO",
                "formatter": "journal",
            },
        },
        "loggers": {"vllm": {"handlers": ["console", "journal"], "level": "INFO", "propagate": False}},
    }
