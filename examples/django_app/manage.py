"""Django's commands, and `submit_tickets`: python -m django_app.manage migrate."""

import os

from django.core.management import execute_from_command_line

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "django_app.settings")

if __name__ == "__main__":
    execute_from_command_line()
