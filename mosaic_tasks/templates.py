"""Prompts and conditions: Jinja that can neither reach into Python nor run for long.

The sandbox of Jinja keeps a template away from private attributes, but not from work without end: nested
loops, text that doubles, numbers that explode. So a template here

- is made of a list of allowed constructs (no macros, imports, inheritance, recursive loops);
- reaches only keys of data, and a list of methods and filters whose cost is bounded by their input;
- has a budget for one rendering: loop iterations, elements and characters made, and time, which is looked at
  in each iteration, filter, call and output. To that end loops, literals and concatenations are rewritten,
  before compilation, into filters of our own, whose names no template can write.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from functools import lru_cache, partial, wraps
from typing import Any, NamedTuple, TypeVar

from jinja2 import (
    StrictUndefined,
    Template,
    TemplateError,
    TemplateSyntaxError,
    Undefined,
    meta,
    nodes,
    pass_context,
)
from jinja2.filters import FILTERS
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from mosaic_queues.errors import BindingError
from mosaic_tasks.references import did_you_mean

MAX_ITERATIONS = 100_000
"""Loop iterations of one rendering, in all of its loops together."""
MAX_OUTPUT_CHARS = 4 * 1024 * 1024
"""Characters of a rendered text."""
MAX_SOURCE_CHARS = 256 * 1024
"""Characters of a template."""
MAX_S = 10.0
"""Seconds that one rendering may take."""
_MAX_WORK = 16 * 1024 * 1024
_ELEMENT = 4
"""An element of a container costs as much of the budget as so many characters."""
_MAX_BITS = 4096

_STATEMENTS = (
    nodes.Template, nodes.Output, nodes.TemplateData, nodes.For, nodes.If, nodes.Assign, nodes.AssignBlock,
    nodes.FilterBlock, nodes.With,
)  # fmt: skip
_EXPRESSIONS = (nodes.Expr, nodes.Pair, nodes.Keyword, nodes.Operand)
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
_T = TypeVar("_T")
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
    return _limited(_text(left), _text(right))


def _limited(*parts: str) -> str:
    size = sum(len(part) for part in parts)
    if size > MAX_OUTPUT_CHARS:
        raise BindingError(f"the template makes a text of more than {MAX_OUTPUT_CHARS:,} characters")
    _spent.get().step(size)
    return "".join(parts)


def _join(values: Iterable[Any], separator: str = "", attribute: str | None = None) -> str:
    parts: list[str] = []
    for value in values:
        part = value if attribute is None else _environment.getitem(value, attribute)
        parts += [separator, _text(part)] if parts else [_text(part)]
        _spent.get().step()
    return _limited(*parts)


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
    return _limited("\n".join(shifted))


def _sum(values: Iterable[Any], attribute: str | int | None = None, start: float = 0) -> float:
    total = start
    for value in values:
        number = value if attribute is None else _environment.getitem(value, attribute)
        if not isinstance(number, (int, float)):
            raise BindingError(f"the template sums a {type(number).__name__}; only numbers can be summed")
        total += number
    return total


def _round(value: float, precision: int = 0) -> float:
    return round(float(value), max(-300, min(precision, 300)))


def _to_json(value: Any, indent: int | None = None) -> str:
    _spent.get().step(_weigh(value))
    width = None if indent is None else min(int(indent), 16)
    return _limited(json.dumps(value, ensure_ascii=False, indent=width, default=str))


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


_environment = _new_environment()

GLOBAL_NAMES = frozenset(_environment.globals) | {"loop"}
"""Names that a template has without being given them."""
RESERVED_NAMES = GLOBAL_NAMES | frozenset(
    [
        "and",
        "else",
        "false",
        "False",
        "if",
        "in",
        "is",
        "none",
        "None",
        "not",
        "or",
        "recursive",
        "self",
        "true",
        "True",
    ]
)
"""Names that no node and no input can have, because a template could not write them."""


class TemplateProblem(ValueError):
    """A template that cannot be used; `str()` says why, with the line inside the template."""


def _parsed(source: str, *, expression: bool) -> nodes.Template:
    """The checked tree of a template, or of an expression as the assignment `result = ...`.

    Raises:
        TemplateProblem: syntax, a construct that is not allowed, an underscore attribute.
    """
    if len(source) > MAX_SOURCE_CHARS:
        raise TemplateProblem(f"the template has {len(source):,} characters; at most {MAX_SOURCE_CHARS:,}")
    try:
        tree = _parsed_expression(source) if expression else _environment.parse(source)
    except TemplateSyntaxError as error:
        raise TemplateProblem(f"{error.message} (line {error.lineno} of the template)") from None
    except RecursionError:
        raise TemplateProblem("the template is nested too deeply") from None
    for node in _descendants(tree):
        _check_node(node)
    return tree


def _parsed_expression(source: str) -> nodes.Template:
    parser = Parser(_environment, source, state="variable")
    expression = parser.parse_expression()
    if not parser.stream.eos:
        raise TemplateSyntaxError("something stands behind the expression", parser.stream.current.lineno)
    body: list[nodes.Node] = [nodes.Assign(nodes.Name("result", "store"), expression, lineno=1)]
    return nodes.Template(body, lineno=1).set_environment(_environment)  # type: ignore[return-value]


def _descendants(tree: nodes.Node) -> Iterator[nodes.Node]:
    """All nodes, without recursion."""
    waiting: list[nodes.Node] = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        waiting.extend(node.iter_child_nodes())


def _check_node(node: nodes.Node) -> None:
    if not isinstance(node, (*_STATEMENTS, *_EXPRESSIONS)):
        raise _refusal(node, f"{type(node).__name__.lower()} is not allowed here")
    if isinstance(node, nodes.For) and node.recursive:
        raise _refusal(node, "recursive loops are not allowed")
    name = _attribute(node)
    if name is not None and name.startswith("_"):
        raise _refusal(
            node, f"the attribute {name!r} begins with an underscore, which templates may not reach for"
        )
    if isinstance(node, nodes.Filter) and node.name not in _environment.filters:
        raise _refusal(node, f"no filter {node.name!r}{did_you_mean(node.name, _PUBLIC_FILTERS)}")
    if isinstance(node, nodes.Test) and node.name not in _environment.tests:
        raise _refusal(node, f"no test {node.name!r}{did_you_mean(node.name, _environment.tests)}")


_PUBLIC_FILTERS = sorted(name for name in _environment.filters if name[0] != "<")


def _refusal(node: nodes.Node, reason: str) -> TemplateProblem:
    return TemplateProblem(f"{reason} (line {node.lineno} of the template)")


def _attribute(node: nodes.Node) -> str | None:
    if isinstance(node, nodes.Getattr):
        return node.attr
    if (
        isinstance(node, nodes.Getitem)
        and isinstance(node.arg, nodes.Const)
        and isinstance(node.arg.value, str)
    ):
        return node.arg.value
    return None


class Reads(NamedTuple):
    """What a template reads from outside: names, and the keys it follows from them (`people.total`)."""

    names: frozenset[str]
    paths: frozenset[tuple[str, ...]]


@lru_cache(maxsize=4096)
def reads_of(source: str, *, expression: bool = False) -> Reads:
    """What a template, or an expression, reads.

    Raises:
        TemplateProblem: it cannot be used.
    """
    tree = _parsed(source, expression=expression)
    found = _Found(tree)
    names = (meta.find_undeclared_variables(tree) if found.assigns else found.read) - GLOBAL_NAMES
    return Reads(frozenset(names), frozenset(path for path in found.paths() if path[0] in names - found.made))


class _Found:
    """Names and chains of keys in a tree, in one walk.

    Attributes:
        read: names that are read where no loop makes them.
        made: names that loops and assignments make.
        assigns: whether names are made otherwise than by loops, so that `read` is too much.
    """

    def __init__(self, tree: nodes.Template) -> None:
        self.read: set[str] = set()
        self.made: set[str] = set()
        self.assigns = False
        self._chains: list[nodes.Getattr | nodes.Getitem] = []
        self._methods: set[int] = set()
        waiting: list[tuple[nodes.Node, frozenset[str]]] = [(tree, frozenset())]
        while waiting:
            node, bound = waiting.pop()
            if isinstance(node, nodes.For):
                waiting += self._parts_of_loop(node, bound)
                continue
            self._note(node, bound)
            waiting += [(part, bound) for part in node.iter_child_nodes()]

    def _parts_of_loop(
        self, node: nodes.For, bound: frozenset[str]
    ) -> Iterator[tuple[nodes.Node, frozenset[str]]]:
        targets = [part.name for part in _descendants(node.target) if isinstance(part, nodes.Name)]
        self.made.update(targets)
        inside = bound | set(targets)
        yield from ((part, inside) for part in node.body)
        yield from ((part, bound) for part in (node.iter, *node.else_))
        if node.test is not None:
            yield node.test, inside

    def _note(self, node: nodes.Node, bound: frozenset[str]) -> None:
        if isinstance(node, nodes.Name):
            if node.ctx != "load":
                self.made.add(node.name)
                self.assigns = True
            elif node.name not in bound:
                self.read.add(node.name)
        elif isinstance(node, (nodes.Getattr, nodes.Getitem)):
            self._chains.append(node)
        elif isinstance(node, nodes.Call):
            self._methods.add(id(node.node))

    def paths(self) -> Iterator[tuple[str, ...]]:
        """Chains of keys that begin with a name; methods that are called are no keys."""
        for node in self._chains:
            steps: list[str] = []
            inner: nodes.Node = node
            while isinstance(inner, (nodes.Getattr, nodes.Getitem)) and id(inner) not in self._methods:
                step = _attribute(inner)
                if step is None:
                    break
                steps.append(step)
                inner = inner.node
            if isinstance(inner, nodes.Name) and steps:
                yield (inner.name, *reversed(steps))


def names_in(source: str) -> frozenset[str]:
    """The names that a template reads and does not make itself.

    Raises:
        TemplateProblem: the template cannot be used.
    """
    return reads_of(source).names


def names_in_expression(source: str) -> frozenset[str]:
    """The names that an expression reads.

    Raises:
        TemplateProblem: the expression cannot be used.
    """
    return reads_of(source, expression=True).names


@lru_cache(maxsize=1024)
def _compiled(source: str, expression: bool) -> Template:
    return _environment.from_string(_parsed(source, expression=expression))


def render(source: str, names: Mapping[str, Any]) -> str:
    """The text of a template.

    Raises:
        BindingError: it cannot be used, a name or key is missing, or it does more than its budget allows.
    """
    return _within_budget(_rendered, source, names)


def evaluate(expression: str, names: Mapping[str, Any]) -> Any:
    """The value of an expression, such as a node's condition.

    Raises:
        BindingError: it cannot be used, a name or key is missing, or it does more than its budget allows.
    """
    return _within_budget(_evaluated, expression, names)


_FAILURES = (
    TemplateError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError,
)  # fmt: skip


def _within_budget(work: Callable[[str, Mapping[str, Any]], _T], source: str, names: Mapping[str, Any]) -> _T:
    token = _spent.set(_Spent())
    try:
        return work(source, names)
    except _FAILURES as error:
        raise BindingError(f"the template {_excerpt(source)!r} fails: {error}") from error
    finally:
        _spent.reset(token)


def _excerpt(source: str) -> str:
    line = " ".join(source.split())
    return line if len(line) <= 60 else f"{line[:57]}..."


def _rendered(source: str, names: Mapping[str, Any]) -> str:
    template = _compiled(source, False)
    return _limited(*template.root_render_func(template.new_context(dict(names))))


def _evaluated(source: str, names: Mapping[str, Any]) -> Any:
    template = _compiled(source, True)
    context = template.new_context(dict(names))
    for _ in template.root_render_func(context):
        pass
    result = context.vars["result"]
    if isinstance(result, Undefined):
        bool(result)
    return result


__all__ = [
    "GLOBAL_NAMES",
    "MAX_ITERATIONS",
    "MAX_OUTPUT_CHARS",
    "MAX_S",
    "MAX_SOURCE_CHARS",
    "RESERVED_NAMES",
    "Reads",
    "TemplateProblem",
    "evaluate",
    "names_in",
    "names_in_expression",
    "reads_of",
    "render",
]
