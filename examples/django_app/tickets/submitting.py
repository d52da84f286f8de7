"""From tickets to runs.

A worker must not see a ticket that may yet be rolled back, and a ticket that was committed must not be forgotten. So a
run is submitted once the transaction is committed; where the process dies in between, or the server is away,
`submit_tickets` does it later. The ticket's id is the key of its run: whoever submits it again gets the same run.
"""

from __future__ import annotations

import logging
from pathlib import Path

from django_app.tickets.models import Ticket
from mosaic_tasks import ServerUnavailable, Workflow, submit

log = logging.getLogger(__name__)
TRIAGE = Workflow.from_file(Path(__file__).parents[1] / "triage.yaml")


def submit_ticket(ticket: Ticket) -> bool:
    """Starts the run of a ticket, and notes it. False: the server is away."""
    try:
        run = submit(TRIAGE, {"text": ticket.text}, key=f"tickets/{ticket.pk}")
    except ServerUnavailable as error:
        log.warning("ticket %s waits for `submit_tickets`: %s", ticket.pk, error)
        return False
    Ticket.objects.filter(pk=ticket.pk).update(run_id=run.id)
    return True
