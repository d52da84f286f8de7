"""A gateway in a thread of this process, for tests of its OpenAI endpoint, and workflows that are its models."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator, Mapping
from typing import Any, get_args

import uvicorn
from openai import OpenAI

from mosaic_queues.errors import Unauthenticated
from mosaic_tasks import Workflow
from mosaic_tasks.access.principal import Gate, Principal, Scope
from mosaic_tasks.app import app
from mosaic_tasks.gateway.application import application
from mosaic_tasks.gateway.callers import Gateway
from mosaic_tasks.gateway.catalog import Catalog

TOOLS = "tests.integration.completions_tools"
STREAMS = "tests.integration.stream_tools"
SCOPES: frozenset[Scope] = frozenset(get_args(Scope))
ASKED = [{"role": "user", "content": "How many?"}]


class Keys(Gate):
    """Knows some credentials; None is who shows none."""

    def __init__(self, principals: Mapping[str | None, Principal]) -> None:
        self._principals = principals

    def admit(self, credential: str | None) -> Principal:
        if credential not in self._principals:
            raise Unauthenticated("this key stands for nobody")
        return self._principals[credential]


OPEN = Keys({key: Principal(subject="anyone", scopes=SCOPES) for key in (None, "none")})
"""For whoever shows no key; OpenAI's client always shows one."""


@contextlib.contextmanager
def served(*workflows: Workflow, gate: Gate = OPEN) -> Iterator[str]:
    """Serves workflows as models; gives the address for OpenAI's client."""
    web = application(Gateway(app, Catalog(workflows), gate))
    server = uvicorn.Server(uvicorn.Config(web, log_config=None, lifespan="off", ws="none"))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, name="gateway")
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
        finally:
            server.should_exit = True
            thread.join()


@contextlib.contextmanager
def client(url: str, *, key: str = "none", max_retries: int = 0) -> Iterator[OpenAI]:
    """OpenAI's own client."""
    with OpenAI(base_url=url, api_key=key, max_retries=max_retries, timeout=30) as found:
        yield found


def workflow(name: str, nodes: Mapping[str, Any], *, output: str = "answer", **inputs: Any) -> Workflow:
    """A workflow whose inputs are, unless told otherwise, a question."""
    asked = inputs or {"question": "string"}
    return Workflow.from_data({"name": name, "inputs": asked, "nodes": dict(nodes), "output": output})


def tool(function: str, **arguments: Any) -> dict[str, Any]:
    """A node of one of `completions_tools`."""
    return {"tool": f"{TOOLS}:{function}", "with": arguments}


def spelled(producer: str, *, retry: int = 1, **arguments: Any) -> dict[str, Any]:
    """Nodes that write a text number by number, `0,1,(2)`."""
    made = {"tool": f"{STREAMS}:{producer}", "with": arguments, "retry": {"attempts": retry, "delay": 0.01}}
    fold = {"tool": f"{STREAMS}:spelled", "with": {"values": "${made}"}, "edges": {"made": "stream"}}
    return {"made": made, "answer": fold}


def agent(model: str, prompt: str = "{{ inputs.question }}", **fields: Any) -> dict[str, Any]:
    """A node that asks a model."""
    return {"agent": {"prompt": prompt, "model": model, **fields}}
