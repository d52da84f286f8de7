"""Submits what was committed and not submitted; for cron, and after a start."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand

from django_app.tickets.models import Ticket
from django_app.tickets.submitting import submit_ticket


class Command(BaseCommand):
    """python -m django_app.manage submit_tickets"""

    help = "Submit the tickets that were committed and have no run yet."

    def handle(self, *_args: Any, **_options: Any) -> None:
        """Submits each of them; says how many."""
        waiting = list(Ticket.objects.filter(run_id=""))
        done = sum(submit_ticket(ticket) for ticket in waiting)
        self.stdout.write(f"submitted {done} of {len(waiting)}")
