"""Jinja that can neither reach into Python nor run for long.

The sandbox of Jinja keeps a template away from private attributes, but not from work without end: nested
loops, text that doubles, numbers that explode. So a template here

- is made of a list of allowed constructs, see `templates` (no macros, imports, recursive loops);
- reaches only keys of data, and a list of methods and filters whose cost is bounded by their input;
- has a budget for one rendering: loop iterations, elements and characters made, and time, which is looked at
  in each iteration, filter, call and output. To that end loops, literals and concatenations are rewritten,
  before compilation, into filters of our own, whose names no template can write.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial, wraps
from typing import Any

from jinja2 import StrictUndefined, Undefined, nodes, pass_context
from jinja2.filters import FILTERS
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from mosaic_queues.errors import BindingError
from mosaic_tasks.definition.references import did_you_mean

MAX_ITERATIONS = 100_000
"""Loop iterations of one rendering, in all of its loops together."""
MAX_OUTPUT_CHARS = 4 * 1024 * 1024
"""Characters of a rendered text."""
MAX_S = 10.0
"""Seconds that one rendering may take."""
_MAX_WORK = 16 * 1024 * 1024
_ELEMENT = 4
"""An element of a container costs as much of the budget as so many characters."""
_MAX_BITS = 4096

_STR_METHODS = frozenset(
    [
        "capitalize",
        "casefold",
        "count",
        "endswith",
        "find",
        "isalnum",
        "isalpha",
        "isdigit",
        "islower",
        "isnumeric",
        "isspace",
        "istitle",
        "isupper",
        "lower",
        "lstrip",
        "partition",
        "removeprefix",
        "removesuffix",
        "rfind",
        "rpartition",
        "rsplit",
        "rstrip",
        "split",
        "splitlines",
        "startswith",
        "strip",
        "swapcase",
        "title",
        "upper",
    ]
)
_DICT_METHODS = frozenset(("get", "items", "keys", "values"))
_LIST_METHODS = frozenset(("count", "index"))
_LOOP_NAMES = frozenset(
    [
        "changed",
        "cycle",
        "depth",
        "depth0",
        "first",
        "index",
        "index0",
        "last",
        "length",
        "nextitem",
        "previtem",
        "revindex",
        "revindex0",
    ]
)
_FILTERS = [
    "abs",
    "capitalize",
    "count",
    "d",
    "default",
    "dictsort",
    "first",
    "float",
    "groupby",
    "int",
    "items",
    "last",
    "length",
    "list",
    "lower",
    "map",
    "max",
    "min",
    "reject",
    "rejectattr",
    "reverse",
    "select",
    "selectattr",
    "sort",
    "title",
    "trim",
    "truncate",
    "unique",
    "upper",
    "urlencode",
    "wordcount",
    "wordwrap",
]
_COUNT, _BOUND, _CONCAT = "<count>", "<bound>", "<concat>"


class _Spent:
    """What one rendering has used of its budget."""

    __slots__ = ("deadline", "iterations", "work")

    def __init__(self) -> None:
        self.iterations = 0
        self.work = 0
        self.deadline = time.monotonic() + MAX_S

    def step(self, work: int = 1) -> None:
        """Accounts for elements or characters made."""
        self.work += work
        if self.work > _MAX_WORK:
            raise BindingError(f"the template makes more than {_MAX_WORK:,} characters and elements")
        if time.monotonic() > self.deadline:
            raise BindingError(f"the template takes longer than {MAX_S:g} s")

    def iterate(self) -> None:
        """Accounts for one round of a loop."""
        self.iterations += 1
        if self.iterations > MAX_ITERATIONS:
            raise BindingError(f"the template loops more than {MAX_ITERATIONS:,} times")
        self.step()


_spent: ContextVar[_Spent] = ContextVar("mosaic_template_budget")


def _weigh(value: Any) -> int:
    """Elements and characters of a value, shared parts counted as often as they appear.

    Raises:
        BindingError: it is no plain data, or larger than the budget.
    """
    weight, waiting = 0, [value]
    while waiting:
        part = waiting.pop()
        weight += len(part) + 1 if isinstance(part, str) else _ELEMENT
        if weight + len(waiting) * _ELEMENT > _MAX_WORK:
            raise BindingError(f"the template makes more than {_MAX_WORK:,} characters and elements")
        if isinstance(part, Mapping):
            waiting += [*part.keys(), *part.values()]
        elif isinstance(part, (list, tuple)):
            waiting += part
        elif isinstance(part, Undefined):
            str(part)
        elif part is not None and not isinstance(part, (str, int, float)):
            raise BindingError(
                f"the template uses a {type(part).__name__} as data; use |list on what is lazy"
            )
    return weight


def _text(value: Any) -> str:
    """The value as a template writes it: strings as they are, containers as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, (Mapping, list, tuple)):
        _spent.get().step(_weigh(value))
        return json.dumps(value, ensure_ascii=False, default=str)
    _weigh(value)
    return str(value)


@pass_context
def _finalize(_context: Context, value: Any) -> str:
    text = _text(value)
    _spent.get().step(len(text))
    return text


@pass_context
def _counted(_context: Context, values: Iterable[Any]) -> Iterator[Any]:
    spent = _spent.get()
    for value in values:
        spent.iterate()
        yield value


@pass_context
def _bounded(_context: Context, value: Any) -> Any:
    _spent.get().step(_weigh(value))
    return value


@pass_context
def _concatenated(_context: Context, left: Any, right: Any) -> str:
    return limited(_text(left), _text(right))


def limited(*parts: str) -> str:
    """The parts as one text, within the limit of a text."""
    size = sum(len(part) for part in parts)
    if size > MAX_OUTPUT_CHARS:
        raise BindingError(f"the template makes a text of more than {MAX_OUTPUT_CHARS:,} characters")
    _spent.get().step(size)
    return "".join(parts)


def _join(values: Iterable[Any], separator: str = "", attribute: str | None = None) -> str:
    parts: list[str] = []
    for value in values:
        part = value if attribute is None else environment.getitem(value, attribute)
        parts += [separator, _text(part)] if parts else [_text(part)]
        _spent.get().step()
    return limited(*parts)


def _replace(text: str, old: str, new: str, count: int = -1) -> str:
    text = _text(text)
    found = text.count(old)
    times = min(found, count) if count >= 0 else found
    if len(text) + times * len(new) > MAX_OUTPUT_CHARS:
        raise BindingError(f"the template makes a text of more than {MAX_OUTPUT_CHARS:,} characters")
    return text.replace(old, new, count)


def _indent(text: str, width: int = 4, first: bool = False) -> str:
    lines = _text(text).split("\n")
    pad = " " * min(width, 80)
    shifted = [pad + line if line and (number or first) else line for number, line in enumerate(lines)]
    return limited("\n".join(shifted))


def _sum(values: Iterable[Any], attribute: str | int | None = None, start: float = 0) -> float:
    total = start
    for value in values:
        number = value if attribute is None else environment.getitem(value, attribute)
        if not isinstance(number, (int, float)):
            raise BindingError(f"the template sums a {type(number).__name__}; only numbers can be summed")
        total += number
    return total


def _round(value: float, precision: int = 0) -> float:
    return round(float(value), max(-300, min(precision, 300)))


def _to_json(value: Any, indent: int | None = None) -> str:
    _spent.get().step(_weigh(value))
    width = None if indent is None else min(int(indent), 16)
    return limited(json.dumps(value, ensure_ascii=False, indent=width, default=str))


def _range(*bounds: int) -> range:
    numbers = range(*bounds)
    if len(numbers) > MAX_ITERATIONS:
        raise BindingError(f"the template asks for a range of {len(numbers):,}; at most {MAX_ITERATIONS:,}")
    return numbers


def _guarded(function: Callable[..., Any]) -> Callable[..., Any]:
    """The filter, with what it takes and makes charged to the budget."""

    @wraps(function)
    def guarded(*args: Any, **options: Any) -> Any:
        if any(isinstance(part, Namespace) for part in args):
            raise BindingError("the template filters a namespace; filter one of its values")
        spent = _spent.get()
        spent.step()
        result = function(*args, **options)
        if isinstance(result, (str, list, tuple, dict)):
            spent.step(_weigh(result) if not _is_grouped(result) else len(result))
        return result

    return guarded


def _is_grouped(result: Any) -> bool:
    """Whether it is the result of `groupby`, whose tuples answer to names."""
    return isinstance(result, list) and bool(result) and hasattr(result[0], "grouper")


class _Environment(ImmutableSandboxedEnvironment):
    """Attributes are keys of data first; only listed methods exist; operators cannot explode."""

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def getattr(self, obj: Any, attribute: str) -> Any:
        if isinstance(obj, Mapping):
            return self._key(obj, attribute)
        if isinstance(obj, LoopContext):
            allowed = attribute in _LOOP_NAMES
        elif isinstance(obj, str):
            if attribute == "replace":
                return partial(_replace, obj)
            allowed = attribute in _STR_METHODS
        elif isinstance(obj, (list, tuple)):
            allowed = attribute in _LIST_METHODS or attribute in getattr(obj, "_fields", ())
        else:
            return self._of_namespace(obj, attribute)
        return getattr(obj, attribute) if allowed else self._absent(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        if isinstance(argument, str):
            return self.getattr(obj, argument)
        try:
            return obj[argument]
        except (LookupError, TypeError):
            return self._absent(obj, argument)

    def _key(self, obj: Mapping[Any, Any], attribute: str) -> Any:
        if attribute in obj:
            return obj[attribute]
        return getattr(obj, attribute) if attribute in _DICT_METHODS else self._absent(obj, attribute)

    def _of_namespace(self, obj: Any, attribute: str) -> Any:
        if isinstance(obj, Undefined):
            return getattr(obj, attribute)
        if not isinstance(obj, Namespace) or attribute.startswith("_"):
            return self._absent(obj, attribute)
        return getattr(obj, attribute, self._absent(obj, attribute))

    def _absent(self, obj: Any, name: Any) -> Undefined:
        if isinstance(obj, Mapping):
            keys = [str(key) for key in obj]
            known = ", ".join(keys[:12]) or "nothing"
            hint = f"no {name!r} here; it has: {known}{did_you_mean(str(name), keys)}"
        else:
            hint = f"a {type(obj).__name__} has no {name!r} that a template may use"
        return self.undefined(hint)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        _check_operands(operator, left, right)
        result = super().call_binop(context, operator, left, right)
        if isinstance(result, (str, list, tuple)):
            _spent.get().step(_weigh(result))
        return result

    def call(self, context: Context, function: Any, *args: Any, **options: Any) -> Any:
        _spent.get().step()
        if isinstance(function, LoopContext):
            raise BindingError("the template calls its loop; recursive loops are not allowed")
        result = super().call(context, function, *args, **options)
        if isinstance(result, (str, list, tuple)):
            _spent.get().step(_weigh(result))
        return result

    def _generate(self, source: nodes.Template, *args: Any, **options: Any) -> str:
        return super()._generate(_rewritten(source), *args, **options)


def _check_operands(operator: str, left: Any, right: Any) -> None:
    """Refuses operations whose result can be far larger than their operands."""
    numbers = isinstance(left, (int, float)) and isinstance(right, (int, float))
    if operator in ("**", "%") and not numbers:
        raise BindingError(f"the template uses {operator} on something else than numbers; join texts with ~")
    if isinstance(left, int) and isinstance(right, int):
        bits = (
            left.bit_length() * max(1, right) if operator == "**" else left.bit_length() + right.bit_length()
        )
        if bits > _MAX_BITS:
            raise BindingError("the template computes a number that is too large")
    if operator == "*" and not numbers:
        _check_repetition(left, right)


def _check_repetition(left: Any, right: Any) -> None:
    text, times = (left, right) if isinstance(left, str) else (right, left)
    if not isinstance(text, str) or not isinstance(times, int):
        raise BindingError("the template multiplies something else than numbers or a text")
    if len(text) * times > MAX_OUTPUT_CHARS:
        raise BindingError(f"the template makes a text of more than {MAX_OUTPUT_CHARS:,} characters")


def _filter(node: nodes.Node, name: str, *args: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(node, name, list(args), [], None, None, lineno=node.lineno)


def _rewritten(node: Any) -> Any:
    """The tree with loops, literals, concatenations and plain text routed through the budget."""
    for field, value in node.iter_fields():
        if isinstance(value, list):
            setattr(
                node, field, [_rewritten(part) if isinstance(part, nodes.Node) else part for part in value]
            )
        elif isinstance(value, nodes.Node):
            setattr(node, field, _rewritten(value))
    if isinstance(node, nodes.For):
        node.iter = _filter(node.iter, _COUNT)
    elif isinstance(node, nodes.TemplateData):
        return nodes.Const(node.data, lineno=node.lineno)
    elif isinstance(node, nodes.Concat):
        return _pairwise(node)
    elif isinstance(node, (nodes.List, nodes.Dict)) or (isinstance(node, nodes.Tuple) and node.ctx == "load"):
        return _filter(node, _BOUND)
    return node


def _pairwise(node: nodes.Concat) -> nodes.Expr:
    joined, *rest = node.nodes
    for part in rest:
        joined = _filter(joined, _CONCAT, part)
    return joined


def _new_environment() -> _Environment:
    environment = _Environment(
        undefined=StrictUndefined, autoescape=False, finalize=_finalize, keep_trailing_newline=False,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    own: dict[str, Callable[..., Any]] = {
        "join": _join, "replace": _replace, "indent": _indent, "round": _round, "sum": _sum,
        "tojson": _to_json, "string": _text,
    }  # fmt: skip
    wrapped = {name: _guarded(FILTERS[name]) for name in _FILTERS} | {
        name: _guarded(function) for name, function in own.items()
    }
    environment.filters = {**wrapped, _COUNT: _counted, _BOUND: _bounded, _CONCAT: _concatenated}
    environment.globals = {"range": _range, "namespace": Namespace}
    return environment


environment = _new_environment()
PUBLIC_FILTERS = sorted(name for name in environment.filters if name[0] != "<")
"""Filters that a template can name."""


@contextmanager
def budget() -> Iterator[None]:
    """Gives the renderings inside a fresh budget; without one nothing renders."""
    token = _spent.set(_Spent())
    try:
        yield
    finally:
        _spent.reset(token)


__all__ = [
    "MAX_ITERATIONS",
    "MAX_OUTPUT_CHARS",
    "MAX_S",
    "PUBLIC_FILTERS",
    "budget",
    "environment",
    "limited",
]
