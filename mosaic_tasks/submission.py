"""Opens a run: the one way from a workflow to calls in queues."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from celery import Celery

from mosaic_queues.connection import server_errors
from mosaic_queues.errors import InputError, NotSerializable
from mosaic_queues.ledger import KeyedRun, Ledger
from mosaic_queues.transitions import Group, Release
from mosaic_queues.values import encode, plain
from mosaic_routing.pool import pool
from mosaic_routing.queues import ROUTED
from mosaic_tasks.definition.compiling import compile_workflow
from mosaic_tasks.definition.plan import Plan, plan_hash
from mosaic_tasks.definition.terms import Terms, check_key, without_terms
from mosaic_tasks.definition.workflow import Workflow
from mosaic_tasks.engines.registry import configured
from mosaic_tasks.execution.prepared import PreparedPlan
from mosaic_tasks.execution.process import Process, ledger_url, process_for
from mosaic_tasks.observability.origin import origin
from mosaic_tasks.webhooks.targets import check_url

SLOW_S = 10.0
"""An opening that takes longer may find its run taken from the index meanwhile: it is entered once more."""


class Submitted(NamedTuple):
    """A run; of an idempotency key that is known it is the earlier one, which is not new."""

    run_id: str
    is_new: bool


class Opening(NamedTuple):
    """A run that may be opened: checked and compiled; the server knows nothing of it. It does not show what is in it.

    Attributes:
        key: idempotency key.
        webhook: the URL that is told its end.
    """

    app: Celery
    plan: Plan
    inputs: Mapping[str, Any]
    key: str | None = None
    webhook: str | None = None

    def __repr__(self) -> str:
        return f"<Opening {self.plan.name}>"

    def known(self) -> Submitted | None:
        """The run that the key stands for, where that was opened and is retained. Only looks.

        Raises:
            InputError: an input holds what cannot be stored, or the key stands for something else.
            ServerError: the server does not answer.
        """
        if self.key is None:
            return None
        with server_errors(ledger_url(self.app)):
            return _known(process_for(self.app).ledger, self.plan, self.inputs, self.key)

    def open(self) -> Submitted:
        """Opens the run, and publishes its first calls.

        Raises:
            InputError: as `open_run`.
            ServerError: the server does not answer, is full, or its user lacks a right.
        """
        with server_errors(ledger_url(self.app)):
            process = process_for(self.app)
            return open_run(process, self.plan, self.inputs, key=self.key, webhook=self.webhook)


def submit_to(
    app: Celery,
    workflow: Workflow | str | Path,
    inputs: Mapping[str, Any] | None,
    *,
    key: str | None,
    terms: Terms = Terms(),  # noqa: B008
    webhook: str | None = None,
) -> Submitted:
    """Checks and compiles a workflow, opens a run of it, and publishes its first calls through `app`.

    Raises:
        ConfigurationError, DefinitionError, InputError: as `opening_of`.
        InputError: as `open_run`.
        ServerError: the server does not answer, is full, or its user lacks a right.
    """
    return opening_of(app, workflow, inputs, key=key, terms=terms, webhook=webhook).open()


def opening_of(
    app: Celery,
    workflow: Workflow | str | Path,
    inputs: Mapping[str, Any] | None,
    *,
    key: str | None,
    terms: Terms = Terms(),  # noqa: B008
    webhook: str | None = None,
) -> Opening:
    """Checks and compiles a workflow; asks no server, and where there is a webhook the resolver of names.

    Raises:
        ConfigurationError: the router is to place calls, and the model pool cannot be read; or `MOSAIC_WEBHOOK_ALLOW`
            is malformed.
        DefinitionError: the workflow is wrong.
        InputError: the inputs do not fit, the terms make no sense, the key is no text, or the webhook may not be told.
    """
    definition = workflow if isinstance(workflow, Workflow) else Workflow.from_file(workflow)
    values = definition.validate_inputs(inputs or {})
    plan = terms.of(plan_for(definition))
    if any(node.queue == ROUTED for node in plan.nodes):
        pool()  # one that cannot be read is told here, and not by each who is to place a call
    if key is not None:
        check_key(key)
    if webhook is not None:
        check_url(webhook)  # before a quota is asked, and also where the key is known
    return Opening(app, plan, values, key, webhook)


def plan_for(definition: Workflow) -> Plan:
    """The plan that a run of the workflow executes if it starts now: agents without a model have that of the settings.

    Raises:
        DefinitionError: the workflow is wrong.
    """
    return compile_workflow(definition, default_model=configured())


def open_run(
    process: Process,
    plan: Plan,
    inputs: Mapping[str, Any],
    *,
    key: str | None = None,
    run_id: str | None = None,
    webhook: str | None = None,
) -> Submitted:
    """Opens a run of a plan.

    Crash-safe in its order: webhook, plan, index, ledger, messages; from wherever it stops the sweeper or a second
    submission with the same key goes on.

    Args:
        run_id: where it is decided already; of several who open one run the first does.

    Raises:
        InputError: an input holds what cannot be stored, the key stands for another workflow or other inputs, or the
            webhook may not be told.
    """
    if webhook is not None:
        check_url(webhook)
    run_id = run_id or new_run_id()
    if key is not None:
        asked = _keyed(run_id, plan, inputs)
        found = process.ledger.run_for_key(plan.tenant, key, asked, keep_s=_kept_s(process))
        run_id = _same(key, found, asked)
    packed = _pack_inputs(process, run_id, inputs)
    if webhook is not None and process.ledger.statuses([run_id]) == [None]:
        process.webhooks.register(run_id, webhook)  # that of a run that is there was, and may be told by now
    data = plan.encode()
    return Submitted(run_id, _open(process, run_id, PreparedPlan(plan_hash(data), plan), data, packed))


def _kept_s(process: Process) -> float:
    """No run is known for longer."""
    return process.settings.max_run_s + process.settings.retention_s


def _open(process: Process, run_id: str, prepared: PreparedPlan, data: bytes, packed: bytes) -> bool:
    """Opens the run in the ledger, and publishes its first calls; False: it is open already, or was.

    Args:
        data: the plan, encoded.
        packed: the inputs.
    """
    config, ledger, plan, keep_s = process.settings, process.ledger, prepared.plan, _kept_s(process)
    begun, begun_ns, course = time.monotonic(), time.time_ns(), origin()
    roots = prepared.by_queue(plan.roots)
    letters = process.letters(run_id, prepared, ready_at_once(roots))
    opened = ledger.open_run(
        run_id,
        plan=prepared.hash,
        plan_data=data,
        name=plan.name,
        inputs=packed,
        roots=roots,
        retention_s=config.retention_s,
        max_run_s=config.max_run_s,
        tenant=plan.tenant,
        origin=course,
        entered_ms=process.now_ms(),
        letters=letters,
    )
    if opened:
        if time.monotonic() - begun > SLOW_S:
            ledger.list_run(run_id, now_ms=process.now_ms(), keep_s=keep_s)
        process.remember_plan(run_id, prepared)
        if not opened.is_sent:
            process.publish(run_id, prepared, ready_at_once(roots))
        process.observer.submitted(run_id, plan.name, origin=course, start_ns=begun_ns)
    return opened.is_new


def _known(ledger: Ledger, plan: Plan, inputs: Mapping[str, Any], key: str) -> Submitted | None:
    """The run of a key, if it is there: who noted the key may have died before, and a run may go before its key."""
    found = ledger.known_run(plan.tenant, key)
    if found is None:
        return None
    run_id = _same(key, found, _keyed(found.run_id, plan, inputs))
    [status] = ledger.statuses([run_id])
    return None if status is None else Submitted(run_id, is_new=False)


def _keyed(run_id: str, plan: Plan, inputs: Mapping[str, Any]) -> KeyedRun:
    with _told_by_input():
        data = msgspec.to_builtins(plain(inputs), str_keys=True)
    workflow = plan_hash(without_terms(plan).encode())
    packed = msgspec.json.encode(data, order="deterministic")
    return KeyedRun(run_id, plan.name, workflow, blake2b(packed, digest_size=16).hexdigest())


def _same(key: str, found: KeyedRun, asked: KeyedRun) -> str:
    """The id of the run that the key stands for, which has to be for what is asked.

    Raises:
        InputError: it is for something else.
    """
    if found.workflow != asked.workflow:
        raise InputError(
            f"the key {key!r} stands for run {found.run_id} of workflow {found.name!r}, and not for workflow "
            f"{asked.name!r} as it is now{' or with this model' if found.name == asked.name else ''}; give another key"
        )
    if found.inputs != asked.inputs:
        raise InputError(
            f"the key {key!r} stands for run {found.run_id} of workflow {found.name!r} with other inputs than these; "
            "give another key"
        )
    return found.run_id


def _pack_inputs(process: Process, run_id: str, inputs: Mapping[str, Any]) -> bytes:
    with _told_by_input():
        return process.payloads.pack(run_id, dict(inputs))


def check_inputs(definition: Workflow, inputs: Mapping[str, Any]) -> None:
    """Whether a run can be opened with these inputs; asks no server.

    Raises:
        InputError: they do not fit, or hold what cannot be stored.
    """
    values = definition.validate_inputs(inputs)
    with _told_by_input():
        encode(values)


@contextmanager
def _told_by_input() -> Iterator[None]:
    try:
        yield
    except NotSerializable as error:
        raise InputError(f"input {error.path[0]!r}: inputs{error.reason}") from error


def ready_at_once(groups: Sequence[Release]) -> list[Group]:
    """The calls to publish when a run opens; mailboxes wait for chunks."""
    ready = [
        (group[0], [call for call in group[1] if len(group) == 2 or call not in group[2]]) for group in groups
    ]
    return [(queue, calls) for queue, calls in ready if calls]


def new_run_id() -> str:
    """A UUIDv7 with fractions of a millisecond (RFC 9562, 6.2, method 3): sorts by time; also the trace id."""
    ms, rest_ns = divmod(time.time_ns(), 1_000_000)
    fraction = rest_ns * 4096 // 1_000_000
    value = (ms << 80) | (0x7 << 76) | (fraction << 64) | int.from_bytes(os.urandom(8), "big")
    value = (value & ~(0x3 << 62)) | (0x2 << 62)
    digits = f"{value:032x}"
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
