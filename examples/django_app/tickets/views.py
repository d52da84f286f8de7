"""The pages: all tickets, one ticket, and what is written for it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from functools import partial
from uuid import UUID

from asgiref.sync import sync_to_async
from django.db import transaction
from django.forms import ModelForm
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase, StreamingHttpResponse
from django.shortcuts import aget_object_or_404, get_object_or_404, redirect, render
from django.views.decorators.http import require_GET, require_http_methods

from django_app.tickets.models import Ticket
from django_app.tickets.submitting import submit_ticket
from mosaic_tasks import Run, UnknownRun, get_run


class TicketForm(ModelForm):  # type: ignore[type-arg]
    """What is asked of whoever has a question."""

    class Meta:
        """The one field of it."""

        model = Ticket
        fields = ("text",)


@require_http_methods(["GET", "POST"])
def tickets(request: HttpRequest) -> HttpResponse:
    """The latest tickets, and a form for another one."""
    form = TicketForm(request.POST or None)
    if not form.is_valid():
        latest = Ticket.objects.order_by("-created")[:20]
        return render(request, "tickets/tickets.html", {"form": form, "tickets": latest})
    with transaction.atomic():
        ticket = form.save()
        transaction.on_commit(partial(submit_ticket, ticket))
    return redirect("ticket", pk=ticket.pk)


@require_GET
def ticket(request: HttpRequest, pk: UUID) -> HttpResponse:
    """A ticket. Its script asks for the stream."""
    return render(request, "tickets/ticket.html", {"ticket": get_object_or_404(Ticket, pk=pk)})


@require_GET
async def stream(request: HttpRequest, pk: UUID) -> HttpResponseBase:
    """What is written for a ticket, as server-sent events. A browser that comes back goes on where it was."""
    found = await aget_object_or_404(Ticket, pk=pk)
    if not found.run_id:
        raise Http404("it is not submitted yet")
    try:
        run = await sync_to_async(get_run, thread_sensitive=False)(found.run_id)
    except UnknownRun:
        raise Http404("its run is too old") from None
    written = events(run, request.headers.get("Last-Event-ID"))
    return StreamingHttpResponse(
        written, content_type="text/event-stream", headers={"Cache-Control": "no-store"}
    )


async def events(run: Run, after: str | None) -> AsyncIterator[str]:
    """The events of a run's output node, and how the run ended."""
    async with run.astream(after=after) as reading:
        async for event in reading:
            yield sent(event.kind, {"offset": event.offset, "value": event.value}, event.id)
    record = await sync_to_async(run.record, thread_sensitive=False)()
    yield sent("over", {"status": record.status, "error": record.error})


def sent(kind: str, data: object, event_id: str = "") -> str:
    """A server-sent event."""
    place = f"id: {event_id}\n" if event_id else ""
    return f"event: {kind}\n{place}data: {json.dumps(data)}\n\n"
