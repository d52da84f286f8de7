"""What is kept of a ticket."""

from __future__ import annotations

from uuid import uuid4

from django.db import models


class Ticket(models.Model):
    """Somebody's question.

    Attributes:
        run_id: of the run that answers it; empty until it is submitted.
    """

    id = models.UUIDField(primary_key=True, default=uuid4, editable=False)
    text = models.TextField(max_length=20_000)
    run_id = models.CharField(max_length=36, default="", blank=True, db_index=True)
    created = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return self.text[:60]
