"""What is wrong with a workflow, all of it at once; and, where nothing is, what its references mean.

One pass over the nodes finds both: names become numbers and dependencies, and every name, argument and type
that cannot be right becomes a `Problem`. The work per node does not grow with the workflow.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from mosaic_queues.errors import (
    BindingError,
    ConfigurationError,
    DefinitionError,
    InputError,
    NotSerializable,
)
from mosaic_queues.settings import settings
from mosaic_queues.values import encode as stored
from mosaic_routing.queues import POOL
from mosaic_tasks.definition.edges import SO_FAR, EdgeReader, Publishes, publishes
from mosaic_tasks.definition.grammar import Definition, Node
from mosaic_tasks.definition.loading import Problem, too_large
from mosaic_tasks.definition.mixing import experts_of, prompts_of
from mosaic_tasks.definition.mixtures import MixtureSpec
from mosaic_tasks.definition.parts import AgentSpec
from mosaic_tasks.definition.plan import INPUTS, ITEM, Edge, Ref, decode_ref
from mosaic_tasks.definition.references import (
    Path,
    Reference,
    ReferenceSyntaxError,
    did_you_mean,
    encode,
    parse,
    refs_in,
)
from mosaic_tasks.definition.schedules import SOME_TICK, inputs_at
from mosaic_tasks.definition.schemas import (
    ANY,
    NoSuchPath,
    Schema,
    complete_inputs,
    inputs_schema,
    misfit,
    mismatch,
    schema_at,
    schema_problem,
)
from mosaic_tasks.definition.templates import RESERVED_NAMES, TemplateProblem, reads_of
from mosaic_tasks.definition.tools import ToolSpec, model_schema, resolve_tool
from mosaic_tasks.mixtures.mixture import ASKED_NAMES

_ID = re.compile(r"[a-z][a-z0-9_]*")
_MODEL = re.compile(r"extractive(:.*)?|[a-z][a-z0-9_-]*:.+")
_RESERVED = RESERVED_NAMES | {"inputs", "item"}
_SHOWN_CYCLES = 10
_SHOWN_STEPS = 60
_UNKNOWN = -3
"""Stands for the number of a node that does not exist; the workflow is refused."""


@dataclass(slots=True)
class Facts:
    """What the pass found out about one node; the words are those of `NodePlan`."""

    bindings: dict[str, Any] = field(default_factory=dict)
    for_each: Ref | None = None
    names: dict[str, Ref] = field(default_factory=dict)
    deps: tuple[int, ...] = ()
    spec: ToolSpec | None = None
    agent_schema: Schema | None = None
    reads: list[tuple[Path, tuple[str, ...]]] = field(default_factory=list)
    edges: dict[int, Edge] = field(default_factory=dict)
    publishes: Publishes = ""


@dataclass(slots=True)
class Analysis:
    """Facts by node number, the problems, and the schema of the result; `ANY` where that cannot be told."""

    facts: list[Facts]
    problems: list[Problem]
    output: Schema = field(default_factory=dict)


def analyse(
    definition: Definition, *, import_tools: bool = True, broken: Collection[str] = (), whole: bool = True
) -> Analysis:
    """Looks at a workflow as a whole.

    Args:
        definition: the workflow.
        import_tools: import tools and output models, and check arguments and types against them.
        broken: ids of nodes that are not in the definition because their form is wrong already.
        whole: check its shape as well: cycles, the output, nodes that nothing needs.
    """
    limit = settings().max_nodes
    if len(definition.nodes) > limit:
        return Analysis([], [Problem(("nodes",), too_large(f"{len(definition.nodes):,}", limit))])
    checker = _Checker(definition, import_tools=import_tools, broken=frozenset(broken))
    return checker.checked(whole=whole)


class _Checker:
    """The state of one pass."""

    def __init__(self, definition: Definition, *, import_tools: bool, broken: frozenset[str]) -> None:
        self.definition, self.import_tools, self.broken = definition, import_tools, broken
        self.ids = list(definition.nodes)
        self.numbers = {name: number for number, name in enumerate(self.ids)}
        self.inputs = inputs_schema(definition.inputs)
        self.facts: list[Facts] = []
        self.problems: list[Problem] = []
        self._node: Node
        self._at: Path = ()
        self._needs: set[int] = set()
        self._specs: dict[str, ToolSpec | str] = {}
        self._outputs: dict[int, Schema] = {}
        self._kinds: dict[Any, Schema] = {}
        self._parts: dict[tuple[int, Path], Schema | str] = {}
        self._fits: dict[tuple[int, int], str | None] = {}

    def checked(self, *, whole: bool) -> Analysis:
        """Runs the pass."""
        self._check_inputs()
        self._check_model(self.definition.defaults.model, ("defaults", "model"))
        self._at = ()
        for name, value in self.definition.defaults:
            self._check_storable(value, "defaults", name)
        for name, node in self.definition.nodes.items():
            self.facts.append(self._checked_node(name, node))
        if self.import_tools:
            for name, node, facts in zip(self.ids, self.definition.nodes.values(), self.facts, strict=True):
                self._at, self._node = ("nodes", name), node
                self._check_types(node, facts)
        self._read_edges()
        self._at = ()
        self._check_schedules()
        if whole:
            self._check_shape()
        output = self._source_schema(self.numbers.get(self.definition.output, _UNKNOWN), Facts())
        return Analysis(self.facts, self.problems, output)

    def _read_edges(self) -> None:
        reader = EdgeReader(self.definition.nodes, self.facts)
        for number, (name, node) in enumerate(self.definition.nodes.items()):
            self._at, self._node = ("nodes", name), node
            self.facts[number].publishes = publishes(node, self.facts[number])
            self.facts[number].edges = reader.edges(number, self._report)

    def _report(self, message: str, *where: str | int) -> None:
        self.problems.append(Problem((*self._at, *where), message))

    def _check_inputs(self) -> None:
        for name, schema in self.definition.inputs.items():
            self._at = ("inputs", name)
            if not _ID.fullmatch(name) or name in RESERVED_NAMES:
                self._report(f"{name!r} is no name for an input; use lower case, digits and underscores")
            if not self._check_storable(schema):
                continue
            reason = schema_problem(schema)
            if not reason and "default" in schema:
                reason = misfit(schema["default"], schema)
                reason = reason and f"the default does not fit: {reason}"
            if reason:
                self._report(reason)

    def _check_schedules(self) -> None:
        if any(problem.path[:1] == ("inputs",) for problem in self.problems):
            return  # what does not fit them may fit them as they are meant
        for name, schedule in self.definition.schedules.items():
            try:
                complete_inputs(self.inputs, inputs_at(schedule.inputs, SOME_TICK))
            except (BindingError, InputError) as error:
                self._report(str(error), "schedules", name, "inputs")

    def _check_model(self, model: str | None, path: Path) -> None:
        if model is None or _MODEL.fullmatch(model):
            return
        told = f"{model!r} is no model; write PROVIDER:NAME such as 'openai:gpt-5', or 'extractive'"
        if model == f"{POOL}:":
            told = f"{model!r} lacks a name; write {POOL}:NAME with a model of the pool, such as 'pool:llama-3.1-8b'"
        self.problems.append(Problem(path, told))

    def _checked_node(self, name: str, node: Node) -> Facts:
        """The facts of one node; problems in names and syntax are reported."""
        self._at, self._node, self._needs = ("nodes", name), node, set()
        facts = Facts()
        self._check_id(name, node)
        self._check_literals(node)
        if node.for_each is not None:
            facts.for_each = self._for_each(node.for_each)
        facts.bindings = {key: self._encoded(key, value) for key, value in node.arguments.items()}
        if node.when is not None:
            self._read_template(facts, node.when, ("when",))
        if node.agent is not None:
            self._check_agent(facts, node.agent)
        if node.mixture is not None:
            self._check_mixture(facts, node, node.mixture)
        self._check_after(node.after)
        if self.import_tools and node.tool is not None:
            facts.spec = self._spec(node.tool)
        facts.deps = tuple(sorted(self._needs))
        return facts

    def _check_id(self, name: str, node: Node) -> None:
        if not _ID.fullmatch(name):
            self._report(f"{name!r} is no id; use lower case, digits and underscores, a letter first")
        elif name in _RESERVED:
            self._report(f"{name!r} has a meaning of its own in references and templates; choose another id")
        if node.for_each is None and "item_name" in node.model_fields_set and node.item_name != "item":
            self._report("`as` names the item of a for_each, which this node does not have", "as")
        if node.item_name != "item" and (
            node.item_name in self.numbers or node.item_name in RESERVED_NAMES | {"inputs"}
        ):
            self._report(f"{node.item_name!r} is the name of something else already; choose another", "as")

    def _check_literals(self, node: Node) -> None:
        """Whether what the node says itself can be stored with the plan."""
        for name, value in node.arguments.items():
            self._check_storable(value, "with", name)
        for option in ("tool", "task", "when", "queue", "tags"):
            self._check_storable(getattr(node, option), option)
        if node.on_failure is not None:
            self._check_storable(node.on_failure.default, "on_failure", "default")
        for part, rule in (("agent", node.agent), ("mixture", node.mixture), ("batch", node.batch)):
            for name, value in rule or ():
                self._check_storable(value, part, name)

    def _check_storable(self, value: Any, *where: str) -> bool:
        """Whether a value can be stored; why not is reported."""
        try:
            stored(value)
        except NotSerializable as error:
            self._report(f"the value{error.reason}", *where)
            return False
        return True

    def _for_each(self, text: str) -> Ref | None:
        try:
            reference = parse(text)
        except ReferenceSyntaxError as error:
            self._report(str(error), "for_each")
            return None
        if reference.name == self._node.item_name and reference.name not in self.numbers:
            self._report("for_each makes the items, so it cannot read one", "for_each")
            return None
        return Ref(self._number(reference, ("for_each",)), reference.path)

    def _encoded(self, name: str, value: Any) -> Any:
        if type(value) is str and "${" not in value:
            return value
        try:
            return encode(value, lambda reference: self._number(reference, ("with", name)))
        except ReferenceSyntaxError as error:
            self._report(str(error), "with", name)
            return None

    def _number(self, reference: Reference, where: Path) -> int:
        """The source of a reference; unknown names are reported."""
        number = self.numbers.get(reference.name)
        if number is not None:
            self._needs.add(number)
            return number
        if reference.name == "inputs":
            self._check_input(reference, where)
            return INPUTS
        if self._node.for_each is not None and reference.name == self._node.item_name:
            return ITEM
        self._report_unknown(reference.name, where)
        return _UNKNOWN

    def _check_input(self, reference: Reference, where: Path) -> None:
        inputs = self.definition.inputs
        if reference.path and reference.path[0] not in inputs:
            name = str(reference.path[0])
            self._report(f"no input {name!r}{did_you_mean(name, inputs)}", *where)

    def _report_unknown(self, name: str, where: Path, more: Iterable[str] = ()) -> None:
        if name in self.broken:
            return
        if name == "item":
            named = (
                f"; it is called {self._node.item_name!r} here" if self._node.for_each else "; add for_each"
            )
            self._report(f"no `item` here{named}", *where)
            return
        if name in self.definition.inputs:
            self._report(f"no node {name!r}; the input is written {_input_form(name, where)}", *where)
            return
        known = [*self.numbers, *self.broken, "inputs", *more]
        if self._node.for_each is not None:
            known.append(self._node.item_name)
        self._report(f"no node {name!r}{did_you_mean(name, known)}", *where)

    def _read_template(self, facts: Facts, source: str, where: Path) -> None:
        """Adds the names of a template to the facts."""
        condition = where == ("when",)
        try:
            reads = reads_of(source, expression=condition)
        except TemplateProblem as error:
            self._report(str(error), *where)
            return
        given: Collection[str] = () if condition else self._node.arguments
        facts.reads += [(where, path) for path in sorted([*reads.paths, *((name,) for name in reads.whole)])]
        for name in sorted(reads.names):
            if name in given:
                continue
            if condition and self._node.for_each is not None and name == self._node.item_name:
                self._report(
                    f"{name!r} is the item, which `when` cannot see: it decides on the whole node", *where
                )
            elif not condition and self._is_given_later(name):
                continue
            elif name in self.numbers or name == "inputs" or self._is_item(name):
                facts.names[name] = Ref(self._number(Reference(name), where))
            else:
                self._report_unknown(name, where, given)

    def _is_given_later(self, name: str) -> bool:
        """Whether a template sees that name once its call is made: what it said so far, or what a mixture asks."""
        if self._node.mixture is not None:
            return name in ASKED_NAMES
        return name == SO_FAR and any(rule.kind == "stream" for rule in self._node.edges.values())

    def _is_item(self, name: str) -> bool:
        return self._node.for_each is not None and name == self._node.item_name

    def _check_agent(self, facts: Facts, agent: AgentSpec) -> None:
        self._read_template(facts, agent.prompt, ("agent", "prompt"))
        if agent.system:
            self._read_template(facts, agent.system, ("agent", "system"))
        self._check_model(agent.model, (*self._at, "agent", "model"))
        for name in agent.requires.near if agent.requires is not None else ():
            if name not in self.numbers and name not in self.broken:
                self._report(
                    f"no node {name!r}{did_you_mean(name, self.numbers)}", "agent", "requires", "near"
                )
        if agent.requires is not None and agent.model and not agent.model.startswith(f"{POOL}:"):
            self._report(
                f"{agent.model!r} says who answers, and `requires` leaves that to the router; remove one of them, or "
                "name a model of the pool (pool:NAME)",
                "agent",
                "model",
            )
        self._read_output(facts, agent.output, "agent")

    def _read_output(self, facts: Facts, output: str | dict[str, Any] | None, part: str) -> None:
        if isinstance(output, dict):
            facts.agent_schema = output
            reason = schema_problem(output)
            if reason:
                self._report(reason, part, "output")
        elif output is not None:
            self._read_model(facts, output, part)

    def _read_model(self, facts: Facts, target: str, part: str) -> None:
        try:
            facts.agent_schema = model_schema(target)
        except DefinitionError as error:
            self._report(str(error), part, "output")

    def _check_mixture(self, facts: Facts, node: Node, mixture: MixtureSpec) -> None:
        for text, place in prompts_of(mixture):
            self._read_template(facts, text, ("mixture", *place))
        for model, place in _models_of(mixture):
            self._check_model(model, (*self._at, "mixture", *place))
        self._read_output(facts, mixture.output, "mixture")
        if node.for_each is not None:
            self._report(
                "a mixture answers one question; run the workflow for each item: `mosaic batch`", "for_each"
            )
        if any(rule.kind == "stream" for rule in node.edges.values()):
            self._report("a mixture reads whole outputs or fields, no streams", "edges")
        if mixture.answer.field and isinstance(mixture.output, dict):
            self._check_answer_field(mixture.answer.field, mixture.output)
        try:
            samples = sum(expert.samples or mixture.samples for expert in experts_of(mixture))
        except ConfigurationError as error:
            self._report(str(error), "mixture", "select")
            return
        planned = min(samples, mixture.most_asked or samples)
        if mixture.min_experts > planned:
            self._report(
                f"no gate passes before {mixture.min_experts} answers, and {planned} can come; name more experts or "
                "samples, let `most` allow more, or lower it",
                "mixture",
                "min_experts",
            )
        gate = mixture.gate
        if gate.kind == "quorum" and gate.quorum > planned:
            self._report(
                f"{gate.quorum:g} votes for one answer cannot be had of {planned} that can come; lower it, or give a "
                "share below 1",
                "mixture",
                "gate",
                "quorum",
            )

    def _check_answer_field(self, field: str, schema: Schema) -> None:
        try:
            schema_at(schema, tuple(field.split(".")))
        except NoSuchPath as error:
            self._report(f"an answer {error}", "mixture", "answer", "field")

    def _check_after(self, after: Iterable[str]) -> None:
        for position, name in enumerate(after):
            if name in self.numbers:
                self._needs.add(self.numbers[name])
            elif name not in self.broken:
                self._report(f"no node {name!r}{did_you_mean(name, self.numbers)}", "after", position)

    def _spec(self, target: str) -> ToolSpec | None:
        """The imported tool; each one that cannot be is tried once and reported at each node."""
        if target not in self._specs:
            try:
                self._specs[target] = resolve_tool(target)
            except DefinitionError as error:
                self._specs[target] = str(error)
        spec = self._specs[target]
        if isinstance(spec, str):
            self._report(spec, "tool")
            return None
        return spec

    def _check_types(self, node: Node, facts: Facts) -> None:
        """Compares what the node gives to its tool with what that takes."""
        if facts.for_each is not None:
            self._check_list(facts.for_each, facts)
        for where, path in facts.reads:
            self._check_read(where, path, facts)
        spec = facts.spec
        if spec is None:
            for name, value in facts.bindings.items():
                self._check_parts(value, facts, name)
            return
        self._check_arguments(spec, node)
        schemas = spec.parameter_schemas
        for name, value in facts.bindings.items():
            self._check_argument(name, value, schemas.get(name, ANY), facts)

    def _check_read(self, where: Path, path: tuple[str, ...], facts: Facts) -> None:
        """Follows the keys that a template reads."""
        name, *steps = path
        given = where != ("when",) and name in facts.bindings
        ref = decode_ref(facts.bindings[name]) if given else facts.names.get(name)
        if ref is not None:
            self._part_of(Ref(ref.source, (*ref.path, *steps)), facts, where)

    def _check_list(self, ref: Ref, facts: Facts) -> None:
        schema = self._part_of(ref, facts, ("for_each",))
        reason = mismatch(schema, {"type": "array"})
        if reason:
            self._report(f"it cannot be fanned out: {reason}", "for_each")

    def _check_arguments(self, spec: ToolSpec, node: Node) -> None:
        parameters = spec.parameters
        for name in spec.positional_only:
            self._report(f"{spec.target!r} takes {name!r} by position only; tools are called by name", "tool")
        for name, parameter in parameters.items():
            if parameter.required and name not in node.arguments:
                self._report(f"{spec.target!r} needs the argument {name!r}", "with")
        if spec.accepts_any:
            return
        for name in node.arguments:
            if name not in parameters:
                known = f"; it takes: {', '.join(parameters) or 'nothing'}"
                hint = did_you_mean(name, parameters) or known
                self._report(f"{spec.target!r} takes no argument {name!r}{hint}", "with", name)

    def _check_argument(self, name: str, value: Any, wanted: Schema, facts: Facts) -> None:
        ref = decode_ref(value)
        if ref is not None:
            given = _SENTENCES if self._by_sentence(ref) else self._part_of(ref, facts, ("with", name))
            reason = self._fit(given, wanted) if given and wanted else None
        else:
            literal = not self._check_parts(value, facts, name)
            reason = misfit(value, wanted) if literal and wanted else None
        if reason:
            self._report(reason, "with", name)

    def _by_sentence(self, ref: Ref) -> bool:
        rule = self._node.edges.get(self.ids[ref.source]) if ref.source >= 0 else None
        return rule is not None and rule.by == "sentence"

    def _check_parts(self, value: Any, facts: Facts, name: str) -> bool:
        """Checks the references inside an argument; tells whether there are any."""
        refs = list(refs_in(value))
        for ref in refs:
            self._part_of(ref, facts, ("with", name))
        return bool(refs)

    def _fit(self, given: Schema, wanted: Schema) -> str | None:
        key = (id(given), id(wanted))
        if key not in self._fits:
            self._fits[key] = mismatch(given, wanted)
        return self._fits[key]

    def _part_of(self, ref: Ref, facts: Facts, where: Path) -> Schema:
        """The schema of what a reference names; paths that lead nowhere are reported."""
        schema = self._source_schema(ref.source, facts)
        if not schema or not ref.path:
            return schema
        key = (id(schema), ref.path)
        if key not in self._parts:
            try:
                self._parts[key] = schema_at(schema, ref.path)
            except NoSuchPath as error:
                self._parts[key] = str(error)
        part = self._parts[key]
        if isinstance(part, str):
            if ref.source != INPUTS or len(ref.path) > 1 or where[0] != "with":
                self._report(f"{self._label(ref.source)} {part}", *where)
            return ANY
        return part

    def _label(self, source: int) -> str:
        if source == INPUTS:
            return "the workflow"
        return "the item" if source == ITEM else f"the output of {self.ids[source]!r}"

    def _source_schema(self, source: int, facts: Facts) -> Schema:
        if source == INPUTS:
            return self.inputs
        if source == ITEM:
            return self._item_schema(facts)
        if source == _UNKNOWN:
            return ANY
        if source not in self._outputs:
            self._outputs[source] = self._output_schema(source)
        return self._outputs[source]

    def _item_schema(self, facts: Facts) -> Schema:
        ref = facts.for_each
        schema = self._source_schema(ref.source, facts) if ref is not None and ref.source != ITEM else ANY
        if ref is None or not schema:
            return ANY
        key = ("item", id(schema), ref.path)
        if key not in self._kinds:
            try:
                self._kinds[key] = schema_at(schema, (*ref.path, 0))
            except NoSuchPath:
                self._kinds[key] = ANY
        return self._kinds[key]

    def _output_schema(self, number: int) -> Schema:
        """What a node gives; `ANY` as soon as a failure may put something else in its place."""
        node, facts = self.definition.nodes[self.ids[number]], self.facts[number]
        rule = node.on_failure or self.definition.defaults.on_failure
        if rule is not None and rule.action != "fail":
            return ANY
        schema = self._call_schema(node, facts)
        if node.for_each is None:
            return schema
        key = ("list", id(schema))
        if key not in self._kinds:
            self._kinds[key] = {"type": "array", "items": schema, "$defs": schema.get("$defs", {})}
        return self._kinds[key]

    def _call_schema(self, node: Node, facts: Facts) -> Schema:
        if node.mixture is not None:
            return self._mixture_schema(node.mixture, facts)
        if node.agent is not None:
            return (facts.agent_schema or ANY) if node.agent.output is not None else _TEXT
        return facts.spec.output_schema if facts.spec is not None else ANY

    def _mixture_schema(self, mixture: MixtureSpec, facts: Facts) -> Schema:
        """What a mixture gives: an answer, or the part that is compared."""
        if mixture.details:
            return ANY
        if mixture.is_whole:
            return (facts.agent_schema or ANY) if mixture.output is not None else _TEXT
        form = mixture.answer.form
        return ANY if form == "json" else {"type": "number"} if form == "number" else _TEXT

    def _check_shape(self) -> None:
        """Cycles, the output, nodes that nothing needs."""
        self._at = ()
        output = self.numbers.get(self.definition.output)
        if output is None and self.definition.output not in self.broken:
            name = self.definition.output
            self._report(f"no node {name!r}{did_you_mean(name, self.numbers)}", "output")
        cycles = list(_cycles([facts.deps for facts in self.facts]))
        for cycle in cycles:
            self._report_cycle(cycle)
        if output is not None and not cycles and not self.broken and not self.problems:
            self._check_needed(output)

    def _report_cycle(self, cycle: list[int]) -> None:
        names = [self.ids[number] for number in [*cycle, cycle[0]]]
        if len(names) > _SHOWN_STEPS:
            middle = f"({len(names) - _SHOWN_STEPS:,} more)"
            names = [*names[: _SHOWN_STEPS // 2], middle, *names[-_SHOWN_STEPS // 2 :]]
        self._report(
            f"the nodes wait for each other in a circle: {' -> '.join(names)}", "nodes", self.ids[cycle[0]]
        )

    def _check_needed(self, output: int) -> None:
        nodes = self.definition.nodes.values()
        wanted = [output, *(number for number, node in enumerate(nodes) if node.detached)]
        needed = set(wanted)
        while wanted:
            fresh = set(self.facts[wanted.pop()].deps) - needed
            needed |= fresh
            wanted.extend(fresh)
        for number, name in enumerate(self.ids):
            if number not in needed:
                self._report(
                    f"the output {self.definition.output!r} does not depend on it; use its output, remove "
                    "it, or say `detached: true` if it runs for its effect",
                    *("nodes", name),
                )


def _models_of(mixture: MixtureSpec) -> Iterator[tuple[str | None, Path]]:
    """The models that a mixture names, each with its place in it."""
    for place, expert in enumerate(mixture.experts):
        yield expert.model, ("experts", place, "model")
    yield mixture.aggregator.model, ("aggregator", "model")
    if mixture.verifier is not None:
        yield mixture.verifier.model, ("verifier", "model")


def _input_form(name: str, where: Path) -> str:
    """An input as one place of a workflow file reads it: a condition, a prompt, or a reference."""
    if where[0] == "when":
        return f"`inputs.{name}`"
    return f"`{{{{ inputs.{name} }}}}`" if where[0] == "agent" else f"`${{inputs.{name}}}`"


_TEXT: Schema = {"type": "string"}
_SENTENCES: Schema = {"type": "array", "items": _TEXT}


def _cycles(deps: list[tuple[int, ...]]) -> Iterator[list[int]]:
    """Cycles with no node in common, each in the direction of the data, from its first node on."""
    rest = _unsorted(deps, range(len(deps)))
    for _ in range(_SHOWN_CYCLES):
        if not rest:
            return
        cycle = _one_cycle(deps, rest)
        yield cycle
        rest = _unsorted(deps, rest - set(cycle))


def _unsorted(deps: list[tuple[int, ...]], numbers: Collection[int]) -> set[int]:
    """Those of the nodes that a topological order of them cannot place (Kahn's algorithm)."""
    among = numbers if isinstance(numbers, (set, range)) else set(numbers)
    waiting = {number: sum(dep in among for dep in deps[number]) for number in among}
    readers: dict[int, list[int]] = {}
    for number in among:
        for dep in deps[number]:
            readers.setdefault(dep, []).append(number)
    ready = [number for number, count in waiting.items() if count == 0]
    while ready:
        number = ready.pop()
        del waiting[number]
        for reader in readers.get(number, ()):
            waiting[reader] -= 1
            if waiting[reader] == 0:
                ready.append(reader)
    return set(waiting)


def _one_cycle(deps: list[tuple[int, ...]], among: set[int]) -> list[int]:
    """A cycle among nodes each of which waits for another of them."""
    seen: dict[int, int] = {}
    walked: list[int] = []
    number = min(among)
    while number not in seen:
        seen[number] = len(walked)
        walked.append(number)
        number = next(dep for dep in deps[number] if dep in among)
    cycle = walked[seen[number] :][::-1]
    first = cycle.index(min(cycle))
    return cycle[first:] + cycle[:first]


__all__ = ["Analysis", "Facts", "analyse"]
