"""For `uvicorn django_app.asgi:application`: streams need a server for coroutines."""

import os

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "django_app.settings")
application = get_asgi_application()
