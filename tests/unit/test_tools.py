"""Functions are found by name, and tell what they take and give."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import made_tools
import pytest

from mosaic_queues.errors import DefinitionError
from mosaic_tasks.definition.grammar import RetryRule
from mosaic_tasks.definition.parts import AgentSpec
from mosaic_tasks.definition.tools import (
    AgentOptions,
    ToolSpec,
    agent,
    model_schema,
    resolve_tool,
    target_of,
    tool,
)


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("read_commits", "sync"),
        ("report", "coroutine"),
        ("numbers", "generator"),
        ("words", "async_generator"),
        ("called", "coroutine"),
        ("Callable_", "sync"),
    ],
)
def test_a_tool_is_found_with_its_mode(name: str, mode: str) -> None:
    spec = resolve_tool(f"made_tools:{name}")
    assert spec.mode == mode
    assert spec.function is getattr(made_tools, name)
    assert resolve_tool(f"made_tools:{name}") is spec


def test_a_partial_has_the_mode_of_its_function() -> None:
    assert ToolSpec("x", partial(made_tools.report, total=1)).mode == "coroutine"


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("made_tools", "'made_tools' is no tool; write module:function"),
        ("made_tools:", "write module:function"),
        ("absent.module:x", "cannot import 'absent.module' for 'absent.module:x': ModuleNotFoundError"),
        (
            "made_tools:read_comits",
            "'made_tools' has no 'read_comits' (for 'made_tools:read_comits'); did you mean 'read",
        ),
        ("made_tools:constant", "'made_tools:constant' is a int, which cannot be called"),
    ],
)
def test_a_tool_that_is_not_there_is_told(target: str, message: str) -> None:
    with pytest.raises(DefinitionError) as caught:
        resolve_tool(target)
    assert message in str(caught.value)


def test_a_module_that_raises_when_imported_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "made_broken.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        DefinitionError, match="ZeroDivisionError: division by zero; workers and the submitting"
    ):
        resolve_tool("made_broken:x")
    sys.modules.pop("made_broken", None)


def test_a_tool_tells_its_arguments_and_its_output() -> None:
    spec = resolve_tool("made_tools:read_commits")
    assert {name: part.required for name, part in spec.parameters.items()} == {"repo": True, "since": False}
    assert spec.parameter_schemas["repo"] == {"type": "string"}
    assert set(spec.output_schema["properties"]) == {"items", "total"}
    assert resolve_tool("made_tools:numbers").output_schema == {"type": "array", "items": {"type": "integer"}}
    assert resolve_tool("made_tools:words").output_schema == {"type": "array", "items": {"type": "string"}}
    assert resolve_tool("made_tools:anything").accepts_any
    assert resolve_tool("made_tools:by_position").positional_only == ("value",)


def test_a_decorator_leaves_the_function_as_it_is() -> None:
    spec = resolve_tool("made_tools:by_person")
    assert spec.options.retry == RetryRule(attempts=2)
    assert spec.options.timeout_s == 30
    assert made_tools.by_person([]).total == 0

    @tool
    def plain() -> int:
        return 1

    @tool(output=int, queue="q")
    def told() -> Any:
        return 1

    assert plain() == 1
    assert ToolSpec("x", told).output_schema == {"type": "integer"}
    assert ToolSpec("x", told).options.queue == "q"


def test_an_agent_is_made_from_a_prompt_or_a_function() -> None:
    assert made_tools.section.prompt == "Write about {{ person.name }}."
    assert made_tools.section.output == "made_tools:Section"
    assert made_tools.section.system == "You write short."
    assert agent(prompt="x", output=made_tools.Section).output == "made_tools:Section"
    assert agent("x").output is None
    assert agent("x", output=list[int]).output == {"type": "array", "items": {"type": "integer"}}

    def silent() -> str:
        return ""

    with pytest.raises(DefinitionError, match="has no docstring, which is its prompt"):
        agent(silent)


def test_the_options_of_an_agent_are_those_of_files() -> None:
    given = agent("x", model="openai:m", temperature=0.5, max_tokens=9, seed=1, stop=["."], system="s")
    assert given == AgentSpec(
        prompt="x", model="openai:m", temperature=0.5, max_tokens=9, seed=1, stop=(".",), system="s"
    )
    assert set(AgentOptions.__annotations__) == set(AgentSpec.model_fields) - {"prompt"}
    with pytest.raises(TypeError, match="no option 'modle'; did you mean 'model'"):
        agent("x", modle="openai:m")  # type: ignore[call-overload]


def test_a_model_has_a_schema() -> None:
    assert set(model_schema("made_tools:Section")["properties"]) == {"title", "body"}
    with pytest.raises(DefinitionError, match="has no JSON Schema"):
        model_schema("made_tools:Callable_")


def test_what_workers_cannot_import_is_refused() -> None:
    def local() -> None: ...

    main: Any = lambda: None  # noqa: E731
    main.__qualname__, main.__module__ = "main", "__main__"
    assert target_of(made_tools.report) == "made_tools:report"
    for function, message in (
        (lambda: None, "is a lambda, which workers cannot import; move it to a module"),
        (local, "is a local of a function"),
        (partial(local), "has no name to import"),
        (main, "is in the script that is running"),
    ):
        with pytest.raises(DefinitionError, match=message):
            target_of(function)
