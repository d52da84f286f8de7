"""A canvas as nodes: chains become references, groups lists of references, chords nodes that read such lists.

Each signature is translated for what is *given* to it: the arguments that come before its own, as Celery prepends the
result of the step before, and the nodes that end before it starts.
"""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from celery import Celery
from celery.canvas import Signature, group, maybe_signature

from mosaic_queues.errors import DefinitionError
from mosaic_tasks.adopting.arguments import bind, literal, missing
from mosaic_tasks.adopting.options import Told, node_options, not_kept, of_options, queue_of
from mosaic_tasks.adopting.shapes import (
    are_alike,
    callbacks_of,
    flat,
    heads,
    inner_of,
    members_of,
    steps_of,
    task_of,
)
from mosaic_tasks.definition.builder import AddNode, Flow, Handle

ALIKE = 4
"""So many members of a group that differ in their arguments alone are one node with `for_each`."""
TOOLS = "mosaic_tasks.adopting.tools"
_NO_ID = re.compile(r"[^a-z0-9_]+")
_RESERVED = ("inputs", "item")
Arguments = tuple[Sequence[Any], dict[str, Any]]


class Given(NamedTuple):
    """What comes before a signature.

    Attributes:
        args: arguments before its own, of which an immutable one takes none.
        nodes: those that end before it starts.
        is_callback: nobody waits for it.
        is_member: it is in a group, whose members are nodes of their own.
    """

    args: tuple[Any, ...] = ()
    nodes: tuple[Handle, ...] = ()
    is_callback: bool = False
    is_member: bool = False


class Made(NamedTuple):
    """What a signature has become.

    Attributes:
        value: its result: a node's, or a list of such.
        nodes: those that are over when it is.
    """

    value: Any
    nodes: tuple[Handle, ...]

    def before(self, given: Given) -> Given:
        """What the next step is given."""
        return given._replace(args=(flat(self.value),), nodes=self.nodes)


class Note(NamedTuple):
    """What the workflow does not keep of a canvas."""

    subject: str
    what: str
    instead: str


class Translation:
    """Adds the nodes of a canvas to a flow.

    Args:
        app: whose tasks they are; nodes are in its default queue, unless they say another.

    Attributes:
        notes: what is not kept.
    """

    def __init__(self, flow: Flow, *, app: Celery) -> None:
        self._flow, self._app = flow, app
        self._queue = str(app.conf.task_default_queue)
        self._names, self._taken = set(_RESERVED), Counter[str]()
        self.notes: list[Note] = []

    def whole(self, canvas: Signature) -> None:
        """The whole canvas; what partial signatures at its beginning lack becomes inputs.

        Raises:
            DefinitionError: something in it has no form in a workflow file.
        """
        inputs = tuple(self._flow.input(self._free(name)) for name in self._lacking(canvas))
        made = self._made(canvas, Given(inputs))
        value = made.value
        if not isinstance(value, Handle):
            value = self._flow.tool(f"{TOOLS}:listed", id=self._free("results"), values=value)
        self._flow.output(value)

    def _lacking(self, canvas: Signature) -> list[str]:
        """The arguments that the canvas is to be called with, by their names in the task that lacks most."""
        open_ = [head for head in heads(canvas) if not head.immutable]
        lacking = [_checked(head, missing, head.args, head.kwargs) for head in open_]
        return max(lacking, key=len, default=[])

    # -- kinds of signatures -------------------------------------------------------------------------------------------

    def _made(self, sig: Signature, given: Given) -> Made:
        sig = maybe_signature(sig, app=self._app)
        kinds: dict[str, Callable[[Signature, Given], Made]] = {
            "celery.chain": self._chain, "celery.chord": self._chord, "celery.group": self._group,
            "celery.chunks": self._chunks, "celery.map": self._map, "celery.starmap": self._map,
        }  # fmt: skip
        made = kinds.get(sig.task, self._task)(sig, given)
        for callback in callbacks_of(sig):
            self._made(callback, made.before(given)._replace(is_callback=True))
        return made

    def _chain(self, sig: Signature, given: Given) -> Made:
        first, *others = steps_of(sig) or [None]
        if first is None:
            raise DefinitionError(["a chain without tasks has no result; give it one"])
        made = self._made(first, given)
        for step in others:
            made = self._made(step, made.before(given))
        return made

    def _chord(self, sig: Signature, given: Given) -> Made:
        header = self._group(group(sig.tasks, app=self._app), given)
        self._tell("chord", of_options({**sig.options, "link": None}))
        return self._made(sig.body, header.before(given))

    def _group(self, sig: Signature, given: Given) -> Made:
        members = members_of(sig)
        if len(members) >= ALIKE and not given.is_member and are_alike(members):
            return self._alike(members, given)
        parts = [self._made(member, given._replace(is_member=True)) for member in members]
        return Made([part.value for part in parts], tuple(node for part in parts for node in part.nodes))

    def _task(self, sig: Signature, given: Given) -> Made:
        args = _checked(sig, literal, list(sig.args)), _checked(sig, literal, dict(sig.kwargs))
        return _single(self._node(sig, args, given))

    def _alike(self, members: Sequence[Signature], given: Given) -> Made:
        """Members that differ in arguments by position alone, as one node."""
        first, rows = members[0], [_checked(member, literal, list(member.args)) for member in members]
        kwargs = _checked(first, literal, dict(first.kwargs))
        own, items = _columns(rows)
        return _single(self._over(first, items, (own, kwargs), given))

    def _map(self, sig: Signature, given: Given) -> Made:
        return _single(self._mapped(sig, given, starred=sig.task == "celery.starmap"))

    def _chunks(self, sig: Signature, given: Given) -> Made:
        each, size = self._mapped(sig, given, starred=True), int(sig.kwargs["n"])
        if size < 1:
            raise DefinitionError([f"chunks of {each.name!r}: {size!r} items a chunk; give 1 or more"])
        return _single(self._tool("chunked", given, each.name, values=each, size=size))

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def _mapped(self, sig: Signature, given: Given, *, starred: bool) -> Handle:
        """A call for each item of a `map`, a `starmap` or of `chunks`, which take no arguments from before."""
        inner = inner_of(sig)
        items = _checked(inner, literal, _listed(inner, sig.kwargs["it"], starred=starred))
        lengths = {len(item) for item in items} if starred else {1}
        if len(lengths) != 1:
            problem = "its items have different lengths; give all the same" if lengths else "it has no items"
            raise DefinitionError([f"starmap of {inner.task!r}: {problem}"])
        item = Handle("item")
        args = [item[place] for place in range(*lengths)] if starred else [item]
        self._tell(sig.task, of_options({**sig.options, "link": None}))
        inner.set(immutable=True)
        return self._over(inner, items, (args, {}), given)

    def _over(self, sig: Signature, items: list[Any], args: Arguments, given: Given) -> Handle:
        listed = self._flow.input(self._free(f"{_name_of(sig)}_items"), {"type": "array"}, default=items)
        return self._node(sig, args, given, for_each=listed)

    def _node(self, sig: Signature, args: Arguments, given: Given, **options: Any) -> Handle:
        """A node of a task; by its name, unless some of its arguments have none or its worker must await it."""
        self._tell(sig.task, not_kept(sig))
        task, queue = task_of(sig), queue_of(sig)
        before = () if sig.immutable else given.args
        positional, kwargs = [*before, *args[0]], args[1]
        options |= {
            "id": self._free(_name_of(sig)),
            "queue": queue if queue != self._queue else None,
            "after": given.nodes if sig.immutable else (),
            "detached": given.is_callback,
            **node_options(sig),
        }
        named = _checked(sig, bind, positional, kwargs)
        if named is None:
            with_ = {"task": sig.task, "args": positional, **({"kwargs": kwargs} if kwargs else {})}
            return self._flow.tool(f"{TOOLS}:by_position", with_=with_, **options)
        add: AddNode[Any] = self._flow.task
        subject = sig.task
        if inspect.iscoroutinefunction(inspect.unwrap(task.run)):
            add, subject = self._flow.tool, f"{task.__module__}:{task.__name__}"
        return add(subject, with_=named, **options)

    def _tool(self, name: str, given: Given, base: str, **arguments: Any) -> Handle:
        node_id = self._free(f"{base}_{name}")
        return self._flow.tool(f"{TOOLS}:{name}", id=node_id, detached=given.is_callback, with_=arguments)

    # -- names and notes -----------------------------------------------------------------------------------------------

    def _free(self, base: str) -> str:
        """A name that nothing else has."""
        name = base
        while name in self._names:
            self._taken[base] += 1
            name = f"{base}_{self._taken[base] + 1}"
        self._names.add(name)
        return name

    def _tell(self, subject: str, told: Iterable[Told]) -> None:
        for what, instead in told:
            note = Note(subject, what, instead)
            if note not in self.notes:
                self.notes.append(note)


def _listed(sig: Signature, items: Iterable[Any], *, starred: bool) -> list[Any]:
    """The items of a `map`; those of a `starmap` are lists of arguments themselves.

    Raises:
        DefinitionError: one is none.
    """
    try:
        return [list(item) if starred else item for item in items]
    except TypeError as error:
        raise DefinitionError(
            [f"starmap of {sig.task!r}: each item is to be a list of arguments; {error}"]
        ) from None


def _single(node: Handle) -> Made:
    return Made(node, (node,))


def _name_of(sig: Signature) -> str:
    return _NO_ID.sub("_", str(sig.task).rpartition(".")[2].lower()).strip("_") or "task"


def _columns(rows: Sequence[Sequence[Any]]) -> tuple[list[Any], list[Any]]:
    """What alike calls have in common, with the item in the place of what differs; and the items."""
    columns = list(zip(*rows, strict=True))
    differ = [
        place for place, column in enumerate(columns) if any(repr(each) != repr(column[0]) for each in column)
    ]
    item = Handle("item")
    if len(differ) == 1:
        own = {differ[0]: item}
        items = [row[differ[0]] for row in rows]
    else:
        own = {place: item[number] for number, place in enumerate(differ)}
        items = [[row[place] for place in differ] for row in rows]
    return [own.get(place, column[0]) for place, column in enumerate(columns)], items


def _checked(sig: Signature, work: Callable[..., Any], *arguments: Any) -> Any:
    """What `work` makes of arguments of a task, or of it and them.

    Raises:
        DefinitionError: they do not fit it, or a workflow file.
    """
    given = arguments if work is literal else (task_of(sig), *arguments)
    try:
        return work(*given)
    except TypeError as error:
        raise DefinitionError([f"{sig.task}: {error}"]) from None
