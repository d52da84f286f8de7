"""The table of tickets."""

from __future__ import annotations

import uuid

from django.db import migrations, models


class Migration(migrations.Migration):
    """Makes it."""

    initial = True
    dependencies = ()
    operations = (
        migrations.CreateModel(
            name="Ticket",
            fields=[
                (
                    "id",
                    models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False, serialize=False),
                ),
                ("text", models.TextField(max_length=20_000)),
                ("run_id", models.CharField(max_length=36, default="", blank=True, db_index=True)),
                ("created", models.DateTimeField(auto_now_add=True)),
            ],
        ),
    )
