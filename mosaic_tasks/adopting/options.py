"""What a signature and its task say beside their arguments: what a node can say too, and what it cannot."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import CodeType
from typing import Any

from celery import Task
from celery.canvas import Signature

Told = tuple[str, str]
"""What is not kept, and what to do instead."""

_KNOWN = {
    "queue",
    "link",
    "link_error",
    "time_limit",
    "soft_time_limit",
    "task_id",
    "reply_to",
    "group_id",
    "chord",
}
_KNOWN |= {
    "group_index",
    "root_id",
    "parent_id",
    "app",
    "producer",
    "add_to_parent",
    "shadow",
    "stamped_headers",
}
_TELL = {
    "countdown": "a node starts as soon as what it reads is there; have the tool wait, or submit the run later",
    "eta": "a node starts as soon as what it reads is there; submit the run at that time, or use `schedules:`",
    "expires": "give the workflow a `deadline:`, or the submission deadline_s",
    "priority": "a priority belongs to a whole run: submit(..., priority=0 to 9), where 0 is the most urgent",
    "retry": "a message that the broker loses is published again in any case",
    "retry_policy": "a message that the broker loses is published again in any case",
    "ignore_result": "outputs are kept as long as their run, then deleted",
    "serializer": "payloads travel in the payload store, never in messages",
    "compression": "payloads travel in the payload store, never in messages",
    "headers": "a node gets its arguments only; give it what it needs there",
}
_ELSE = "it is about how a message is published; say it for the queue"
_ACTIONS = {
    "retry": "a failing node is tried again by its `retry:`; have the task raise instead",
    "replace": "a node cannot become other nodes; make them nodes of the workflow, or submit a run from the task",
    "add_to_chord": "a fan-out is `for_each:` over a list, which may still grow",
    "update_state": "publish what there is so far: make it a generator, which streams",
}
_REJECT = (
    "`retry:` tries again whatever is raised; raise celery.exceptions.Reject for what is to fail at once"
)
_HOOKS = ("before_start", "on_success", "on_failure", "on_retry", "after_return")


def queue_of(sig: Signature) -> str:
    """Where the app would send it."""
    options = {key: sig.options[key] for key in ("queue", "exchange", "routing_key") if sig.options.get(key)}
    route = sig.app.amqp.router.route(options, sig.task, tuple(sig.args), dict(sig.kwargs))
    queue = route.get("queue") or sig.app.conf.task_default_queue
    return str(getattr(queue, "name", queue))


def node_options(sig: Signature) -> dict[str, Any]:
    """What a node says likewise: its timeout and its attempts."""
    task: Task = sig.type
    limits = [sig.options.get(name) or getattr(task, name) for name in ("soft_time_limit", "time_limit")]
    timeout_s = next((limit for limit in limits if limit), None)
    return {"timeout": timeout_s, "retry": _retry_of(task)}


def _retry_of(task: Task) -> dict[str, Any] | None:
    """The rule that `autoretry_for` comes to; its `retry_backoff` doubles the pauses."""
    if not getattr(task, "autoretry_for", ()):
        return None
    backoff, most = getattr(task, "retry_backoff", False), task.max_retries
    attempts = 1000 if most is None else min(int(most) + 1, 1000)
    if not backoff:
        return {"attempts": attempts, "delay": float(task.default_retry_delay), "factor": 1.0,
                "max_delay": float(task.default_retry_delay)}  # fmt: skip
    longest_s = float(getattr(task, "retry_backoff_max", 600))
    return {"attempts": attempts, "delay": float(backoff), "factor": 2.0, "max_delay": longest_s}


def not_kept(sig: Signature) -> Iterator[Told]:
    """What a plain signature says that its node does not."""
    yield from of_options(sig.options)
    yield from _of_task(sig.type)


def of_options(options: Mapping[str, Any]) -> Iterator[Told]:
    """The same of options of its message."""
    if options.get("link_error"):
        names = ", ".join(_names(options["link_error"]))
        yield (
            f"link_error={names}",
            "say `on_failure:` on the node, or wait for the run and act on its error",
        )
    for key in sorted(options.keys() - _KNOWN):
        if options[key] is not None:
            yield (f"{key}={options[key]!r:.60}", _TELL.get(key, _ELSE))


def _names(callbacks: Any) -> list[str]:
    many = callbacks if isinstance(callbacks, (list, tuple)) else [callbacks]
    return [str(each.get("task", each)) if isinstance(each, Mapping) else str(each) for each in many]


def _of_task(task: Task) -> Iterator[Told]:
    if (kinds := getattr(task, "autoretry_for", ())) and tuple(kinds) != (Exception,):
        named = ", ".join(kind.__name__ for kind in kinds)
        yield f"autoretry_for={named} only", _REJECT
    if task.rate_limit:
        yield (f"rate_limit={task.rate_limit!r}", "have fewer workers on its queue")
    if task.ignore_result:
        yield ("ignore_result", _TELL["ignore_result"])
    yield from _of_class(task)
    yield from _of_self(task)


def _of_class(task: Task) -> Iterator[Told]:
    hooks = [name for name in _HOOKS if getattr(type(task), name, None) is not getattr(Task, name)]
    if hooks:
        yield (
            f"{', '.join(hooks)} of its class",
            "hooks are not called in a node; do that in the task, or in a node after it",
        )


def _of_self(task: Task) -> Iterator[Told]:
    """A task with `bind=True` is called as it is; its request is one of nobody."""
    run = getattr(task, "_orig_run", task.run)
    code = getattr(getattr(run, "__func__", None), "__code__", None)
    if code is None:
        return
    names = set(_names_in(code))
    used = [name for name in _ACTIONS if name in names]
    yield from ((f"self.{name}()", _ACTIONS[name]) for name in used)
    if "request" in names:
        yield ("self.request", "it has neither id nor retries in a node; give what is needed as an argument")


def _names_in(code: CodeType) -> Iterator[str]:
    """The attributes that a function uses, those in functions within it among them."""
    yield from code.co_names
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _names_in(each)
