"""All routes of the status page."""

from __future__ import annotations

from fastapi import APIRouter

from mosaic_tasks.gateway.pages import assets, fleet, run, runs, signing

router = APIRouter()
for each in (runs, run, fleet, signing, assets):
    router.include_router(each.router)
