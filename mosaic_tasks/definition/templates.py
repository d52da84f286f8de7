"""Prompts and conditions: checked before a run, rendered within the sandbox."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

from jinja2 import Template, TemplateError, TemplateSyntaxError, Undefined, meta, nodes
from jinja2.parser import Parser

from mosaic_queues.errors import BindingError
from mosaic_tasks.definition.references import did_you_mean
from mosaic_tasks.definition.sandbox import PUBLIC_FILTERS, budget, environment, limited

MAX_SOURCE_CHARS = 256 * 1024
"""Characters of a template."""

_STATEMENTS = (
    nodes.Template, nodes.Output, nodes.TemplateData, nodes.For, nodes.If, nodes.Assign, nodes.AssignBlock,
    nodes.FilterBlock, nodes.With,
)  # fmt: skip
_EXPRESSIONS = (nodes.Expr, nodes.Pair, nodes.Keyword, nodes.Operand)
_T = TypeVar("_T")

GLOBAL_NAMES = frozenset(environment.globals) | {"loop"}
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
        tree = _parsed_expression(source) if expression else environment.parse(source)
    except TemplateSyntaxError as error:
        raise TemplateProblem(f"{error.message} (line {error.lineno} of the template)") from None
    except RecursionError:
        raise TemplateProblem("the template is nested too deeply") from None
    for node in _descendants(tree):
        _check_node(node)
    return tree


def _parsed_expression(source: str) -> nodes.Template:
    parser = Parser(environment, source, state="variable")
    expression = parser.parse_expression()
    if not parser.stream.eos:
        raise TemplateSyntaxError("something stands behind the expression", parser.stream.current.lineno)
    body: list[nodes.Node] = [nodes.Assign(nodes.Name("result", "store"), expression, lineno=1)]
    return nodes.Template(body, lineno=1).set_environment(environment)  # type: ignore[return-value]


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
    if isinstance(node, nodes.Filter) and node.name not in environment.filters:
        raise _refusal(node, f"no filter {node.name!r}{did_you_mean(node.name, PUBLIC_FILTERS)}")
    if isinstance(node, nodes.Test) and node.name not in environment.tests:
        raise _refusal(node, f"no test {node.name!r}{did_you_mean(node.name, environment.tests)}")


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
    """What a template reads from outside: names, and the keys it follows from them (`people.total`).

    Attributes:
        whole: names that it also reads without a key.
    """

    names: frozenset[str]
    paths: frozenset[tuple[str, ...]]
    whole: frozenset[str] = frozenset()


@lru_cache(maxsize=4096)
def reads_of(source: str, *, expression: bool = False) -> Reads:
    """What a template, or an expression, reads.

    Raises:
        TemplateProblem: it cannot be used.
    """
    tree = _parsed(source, expression=expression)
    found = _Found(tree)
    names = (meta.find_undeclared_variables(tree) if found.assigns else found.read) - GLOBAL_NAMES
    paths = frozenset(path for path in found.paths() if path[0] in names - found.made)
    return Reads(frozenset(names), paths, frozenset(_without_key(tree) & names))


def _without_key(tree: nodes.Template) -> set[str]:
    chained = {id(chain.node) for chain in tree.find_all(nodes.Getattr)}
    chained |= {id(chain.node) for chain in tree.find_all(nodes.Getitem)}
    return {name.name for name in tree.find_all(nodes.Name) if name.ctx == "load" and id(name) not in chained}


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
        """Chains of keys that begin with a name, each at its full length; methods that are called are no keys."""
        parts: set[int] = set()
        for node in self._chains:  # a chain comes before those inside it
            links: list[nodes.Getattr | nodes.Getitem] = []
            inner: nodes.Node = node
            while isinstance(inner, (nodes.Getattr, nodes.Getitem)) and id(inner) not in self._methods:
                if _attribute(inner) is None:
                    break
                links.append(inner)
                inner = inner.node
            if isinstance(inner, nodes.Name) and links and id(node) not in parts:
                parts.update(map(id, links))
                yield (inner.name, *(str(_attribute(link)) for link in reversed(links)))


@lru_cache(maxsize=1024)
def lead(source: str) -> str:
    """The text with which every rendering begins: what stands before the first expression."""
    body = _parsed(source, expression=False).body
    first = body[0].nodes[0] if body and isinstance(body[0], nodes.Output) else None
    return first.data if isinstance(first, nodes.TemplateData) else ""


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
    return environment.from_string(_parsed(source, expression=expression))


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
    try:
        with budget():
            return work(source, names)
    except _FAILURES as error:
        raise BindingError(f"the template {_excerpt(source)!r} fails: {error}") from error


def _excerpt(source: str) -> str:
    line = " ".join(source.split())
    return line if len(line) <= 60 else f"{line[:57]}..."


def _rendered(source: str, names: Mapping[str, Any]) -> str:
    template = _compiled(source, False)
    return limited(*template.root_render_func(template.new_context(dict(names))))


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
