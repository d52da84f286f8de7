"""Settings of the example; the environment says where its database is."""

from __future__ import annotations

import os
from pathlib import Path

from django.core.management.utils import get_random_secret_key

SECRET_KEY = os.environ.get("TICKETS_SECRET_KEY") or get_random_secret_key()
ALLOWED_HOSTS = ["localhost", "127.0.0.1"]
ROOT_URLCONF = "django_app.urls"
ASGI_APPLICATION = "django_app.asgi.application"
INSTALLED_APPS = ["django_app.tickets"]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
TEMPLATES = [{"BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True}]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("TICKETS_DB", Path.cwd() / "tickets.sqlite3"),
    }
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
