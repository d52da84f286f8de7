"""Tools and agents in Python: decorators, `module:function` names, and what a function takes and gives."""

from __future__ import annotations

import collections.abc
import importlib
import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from functools import cached_property, lru_cache
from types import ModuleType
from typing import Any, Literal, TypedDict, TypeVar, Unpack, overload

from pydantic import BaseModel, TypeAdapter, ValidationError

from mosaic_queues.errors import BindingError, DefinitionError
from mosaic_tasks.definition.folding import FoldOptions, fold_options
from mosaic_tasks.definition.grammar import RetryRule
from mosaic_tasks.definition.mixtures import MixtureSpec, part_at
from mosaic_tasks.definition.parts import AgentSpec
from mosaic_tasks.definition.references import did_you_mean
from mosaic_tasks.definition.schemas import ANY, Schema, schema_of

Mode = Literal["sync", "coroutine", "generator", "async_generator"]
F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS = "__mosaic_tool__"
_ITERATORS = (
    collections.abc.Iterator, collections.abc.Iterable, collections.abc.Generator,
    collections.abc.AsyncIterator, collections.abc.AsyncIterable, collections.abc.AsyncGenerator,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ToolOptions:
    """What `@tool` says about a function; a node's own words come first, a workflow's defaults last."""

    queue: str | None = None
    retry: RetryRule | None = None
    timeout_s: float | None = None
    output: Schema | None = None


@dataclass(frozen=True, slots=True)
class Parameter:
    """An argument that a tool takes."""

    name: str
    required: bool
    annotation: Any


class ToolSpec:
    """A function that is a tool. Schemas are made when first asked for.

    Attributes:
        target: `module:function`.
        function: what is called, with keyword arguments.
        mode: how it gives its result; what a generator yields becomes a list.
        options: from its decorator.
        fold: what `@fold` says; such a function takes its state first, by position, and then its arguments.
    """

    def __init__(self, target: str, function: Callable[..., Any]) -> None:
        self.target, self.function = target, function
        self.mode: Mode = _mode(function)
        self.options: ToolOptions = getattr(function, _OPTIONS, ToolOptions())
        self.fold: FoldOptions | None = fold_options(function)

    @cached_property
    def _adapters(self) -> dict[str, TypeAdapter[Any]]:
        """For each argument that is annotated with a model or a dataclass, what makes one."""
        return {
            name: TypeAdapter(parameter.annotation)
            for name, parameter in self.parameters.items()
            if _names_model(parameter.annotation)
        }

    def typed(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """The arguments, models and dataclasses made from the maps that travelled.

        Raises:
            BindingError: a value does not fit its model.
        """
        if not self._adapters:
            return arguments
        made = dict(arguments)
        for name in self._adapters.keys() & made.keys():
            try:
                made[name] = self._adapters[name].validate_python(made[name])
            except ValidationError as error:
                raise BindingError(f"argument {name!r} of {self.target!r} does not fit: {error}") from error
        return made

    @property
    def is_async(self) -> bool:
        """Whether it runs on an event loop, beside other calls."""
        return self.mode in ("coroutine", "async_generator")

    @cached_property
    def _signature(self) -> inspect.Signature:
        try:
            return inspect.signature(self.function)
        except (TypeError, ValueError):
            return inspect.signature(_anything)

    @cached_property
    def _hints(self) -> dict[str, Any]:
        function = inspect.unwrap(self.function)
        try:
            return typing.get_type_hints(function, include_extras=True)
        except (NameError, TypeError, AttributeError):
            return {}

    @cached_property
    def parameters(self) -> dict[str, Parameter]:
        """Its named arguments; without the state of a fold."""
        named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        return {
            name: Parameter(name, parameter.default is inspect.Parameter.empty, self._hints.get(name, Any))
            for name, parameter in list(self._signature.parameters.items())[self.fold is not None :]
            if parameter.kind in named
        }

    @cached_property
    def accepts_any(self) -> bool:
        """Whether it takes arguments of any name."""
        return any(part.kind is inspect.Parameter.VAR_KEYWORD for part in self._signature.parameters.values())

    @cached_property
    def positional_only(self) -> tuple[str, ...]:
        """Arguments that cannot be given by name, so that a node cannot give them."""
        return tuple(
            name
            for name, part in self._signature.parameters.items()
            if self.fold is None
            and part.kind is inspect.Parameter.POSITIONAL_ONLY
            and part.default is inspect.Parameter.empty
        )

    @cached_property
    def parameter_schemas(self) -> dict[str, Schema]:
        """JSON Schema of each named argument."""
        return {name: schema_of(parameter.annotation) for name, parameter in self.parameters.items()}

    @cached_property
    def output_schema(self) -> Schema:
        """JSON Schema of what it gives; `ANY` when its annotation does not tell."""
        if self.options.output is not None:
            return self.options.output
        result = self._hints.get("return", Any)
        if self.fold is not None:
            return _FOLD_OUTPUTS[self.fold.output]
        if self.mode in ("generator", "async_generator"):
            return {"type": "array", "items": schema_of(_yielded(result), output=True)}
        return schema_of(result, output=True) if result is not Any else ANY


_FOLD_OUTPUTS: dict[str, Schema] = {"items": {"type": "array"}, "text": {"type": "string"}, "state": ANY}


def _names_model(annotation: Any) -> bool:
    """Whether a pydantic model or a dataclass stands anywhere in an annotation."""
    if isinstance(annotation, type) and (issubclass(annotation, BaseModel) or is_dataclass(annotation)):
        return True
    return any(_names_model(part) for part in typing.get_args(annotation))


def _anything(**_arguments: Any) -> Any:
    """Stands for a function that does not tell its signature."""


def _mode(function: Callable[..., Any]) -> Mode:
    plain = inspect.unwrap(function)
    if not inspect.isroutine(plain) and not inspect.isclass(plain):
        plain = getattr(plain, "func", None) or type(plain).__call__
    if inspect.isasyncgenfunction(plain):
        return "async_generator"
    if inspect.iscoroutinefunction(plain):
        return "coroutine"
    return "generator" if inspect.isgeneratorfunction(plain) else "sync"


def _yielded(annotation: Any) -> Any:
    if typing.get_origin(annotation) in _ITERATORS:
        return (typing.get_args(annotation) or (Any,))[0]
    return Any


@lru_cache(maxsize=4096)
def resolve_tool(target: str) -> ToolSpec:
    """The tool behind `module:function`, imported once a process.

    Raises:
        DefinitionError: the name has another form, the module cannot be imported, or holds no such function.
    """
    module_name, colon, path = target.partition(":")
    if not (colon and path and module_name):
        raise DefinitionError([f"{target!r} is no tool; write module:function"])
    found: Any = _imported(module_name, target)
    for name in path.split("."):
        found = _member(found, name, target)
    if not callable(found):
        raise DefinitionError([f"{target!r} is a {type(found).__name__}, which cannot be called"])
    return ToolSpec(target, found)


def _imported(module_name: str, target: str) -> ModuleType:
    try:
        return importlib.import_module(module_name)
    except Exception as error:
        raise DefinitionError(
            [
                f"cannot import {module_name!r} for {target!r}: {type(error).__name__}: {error}; "
                "workers and the submitting process need it on their Python path"
            ]
        ) from error


def _member(owner: Any, name: str, target: str) -> Any:
    try:
        return getattr(owner, name)
    except AttributeError:
        names = [key for key in vars(owner) if not key.startswith("_")] if hasattr(owner, "__dict__") else []
        holder = getattr(owner, "__name__", str(owner))
        raise DefinitionError(
            [f"{holder!r} has no {name!r} (for {target!r}){did_you_mean(name, names)}"]
        ) from None


def target_of(function: Any) -> str:
    """The `module:name` under which workers import a function or a class.

    Raises:
        DefinitionError: workers cannot import it: a lambda, a local, or of the script that is running.
    """
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not module or not name:
        raise DefinitionError([f"{function!r} has no name to import; give a function of a module"])
    if "<lambda>" in name or "<locals>" in name:
        what = "a lambda" if "<lambda>" in name else "a local of a function"
        raise DefinitionError(
            [f"{name!r} in {module!r} is {what}, which workers cannot import; move it to a module"]
        )
    if module == "__main__":
        raise DefinitionError(
            [f"{name!r} is in the script that is running, which workers cannot import; move it to a module"]
        )
    return f"{module}:{name}"


@overload
def tool(function: F, /) -> F: ...


@overload
def tool(
    *, queue: str | None = None, retry: Any = None, timeout_s: float | None = None, output: Any = None
) -> Callable[[F], F]: ...


def tool(
    function: Any = None,
    /,
    *,
    queue: str | None = None,
    retry: Any = None,
    timeout_s: float | None = None,
    output: Any = None,
) -> Any:
    """Marks a function as a tool, and says how its calls run. The function stays what it is.

    Args:
        function: the function, when the decorator stands without parentheses.
        queue: Celery queue of its calls.
        retry: number of attempts, or the fields of `retry` in a workflow file.
        timeout_s: seconds that a call may take.
        output: type or JSON Schema of its output, where the annotation does not tell.
    """
    rule = (
        None
        if retry is None
        else RetryRule.model_validate({"attempts": retry} if isinstance(retry, int) else retry)
    )
    schema = output if output is None or isinstance(output, dict) else schema_of(output, output=True)
    options = ToolOptions(queue=queue, retry=rule, timeout_s=timeout_s, output=schema)

    def mark(marked: F) -> F:
        setattr(marked, _OPTIONS, options)
        return marked

    return mark if function is None else mark(function)


class AgentOptions(TypedDict, total=False):
    """What may be said of an agent beside its prompt.

    Attributes:
        system: Jinja template of the system message.
        output: type (such as a pydantic model), `module:Model`, or JSON Schema of the answer; None: text.
        model: PROVIDER:NAME.
        temperature: of sampling.
        top_p: of sampling.
        max_tokens: of the answer.
        seed: of sampling.
        stop: texts that end the answer.
        adapter: a LoRA adapter that the model's workers host.
        requires: what a model and its GPU must have; the router picks who answers.
    """

    system: str
    output: Any
    model: str | None
    temperature: float | None
    top_p: float | None
    max_tokens: int | None
    seed: int | None
    stop: Sequence[str]
    adapter: str
    requires: Mapping[str, Any] | None


@overload
def agent(prompt: str | Callable[..., Any], **options: Unpack[AgentOptions]) -> AgentSpec: ...


@overload
def agent(
    prompt: None = None, **options: Unpack[AgentOptions]
) -> Callable[[Callable[..., Any]], AgentSpec]: ...


def agent(prompt: str | Callable[..., Any] | None = None, **options: Unpack[AgentOptions]) -> Any:
    """An agent, from its prompt or as a decorator.

    As a decorator of a function the docstring is the prompt and the return annotation is the output:

        @agent(model="openai:gpt-5")
        def section(person: Person) -> Section:
            '''Write about {{ person.name }}.'''

    Args:
        prompt: Jinja template.
        options: see `AgentOptions`.

    Returns:
        The agent's `AgentSpec`, or a decorator that makes one.
    """

    unknown = sorted(options.keys() - AgentOptions.__annotations__.keys())
    if unknown:
        raise TypeError(
            f"agent() has no option {unknown[0]!r}{did_you_mean(unknown[0], AgentOptions.__annotations__)}"
        )
    output = options.get("output")

    def made(text: str, result: Any) -> AgentSpec:
        return AgentSpec.model_validate({**options, "prompt": text, "output": _output_of(result)})

    def from_function(function: Callable[..., Any]) -> AgentSpec:
        text = inspect.getdoc(function)
        if not text:
            raise DefinitionError(
                [f"the agent {function.__qualname__!r} has no docstring, which is its prompt"]
            )
        result = output if output is not None else ToolSpec("", function)._hints.get("return")
        return made(text, result)

    if prompt is None:
        return from_function
    return made(prompt, output) if isinstance(prompt, str) else from_function(prompt)


def mixture(prompt: str | None = None, *, output: Any = None, **fields: Any) -> MixtureSpec:
    """A mixture of experts; `flow.mixture(mixture(...))` makes a node of it.

    Args:
        prompt: Jinja template, of all experts that have none of their own.
        output: JSON Schema or pydantic model of an answer.
        fields: as in a file: `experts`, `answer`, `gate`, `preset`, ...; experts as mappings.

    Raises:
        DefinitionError: a field is unknown, or does not fit the others.
    """
    try:
        return MixtureSpec.model_validate({"prompt": prompt, "output": _output_of(output), **fields})
    except ValidationError as error:
        problems = [_mixture_problem(dict(detail)) for detail in error.errors(include_url=False)]
        raise DefinitionError(problems) from None


def _mixture_problem(detail: dict[str, Any]) -> str:
    path, said = detail["loc"], f"{detail['input']!r}: {detail['msg']}"
    if detail["type"] == "value_error":
        said = str(detail["ctx"]["error"])
    if detail["type"] == "extra_forbidden":
        said = f"unknown key {path[-1]!r}{did_you_mean(str(path[-1]), part_at(path[:-1]).model_fields)}"
    return f"mixture(): {'.'.join(map(str, path)) or 'the whole'}: {said}"


def _output_of(result: Any) -> str | Schema | None:
    """The output of an agent as workflow files write it."""
    if result is None or result is str or result is type(None) or result is Any:
        return None
    if isinstance(result, (str, dict)):
        return result
    if (
        inspect.isclass(result)
        and result.__module__ not in ("builtins", "__main__")
        and "<" not in result.__qualname__
    ):
        return target_of(result)
    return schema_of(result)


@lru_cache(maxsize=1024)
def model_schema(target: str) -> Schema:
    """The JSON Schema of the class behind `module:Model`.

    Raises:
        DefinitionError: it cannot be imported or has no schema.
    """
    schema = schema_of(resolve_tool(target).function)
    if not schema:
        raise DefinitionError(
            [f"{target!r} has no JSON Schema; give a pydantic model, a dataclass or a TypedDict"]
        )
    return schema


__all__ = [
    "Mode",
    "Parameter",
    "ToolOptions",
    "ToolSpec",
    "agent",
    "mixture",
    "model_schema",
    "resolve_tool",
    "target_of",
    "tool",
]
