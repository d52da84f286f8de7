"""Celery's configuration of `mosaic_tasks.app`, from the environment."""

from math import ceil
from typing import Any

from mosaic_queues.connection import server_urls
from mosaic_queues.settings import settings
from mosaic_queues.topology import LEVELS

_urls = server_urls()
broker_url = _urls.broker_url
result_backend = f"mosaic+{broker_url}" if settings().result_backend else None
task_serializer = "json"
result_serializer = "json"
accept_content = ["json", "msgpack"]
task_acks_late = True
task_reject_on_worker_lost = True
worker_prefetch_multiplier = 1
task_default_queue = "mosaic.cpu"
broker_connection_retry_on_startup = True
result_expires = 3600

# A list for each level: by default kombu has four lists for the ten.
broker_transport_options: dict[str, Any] = {"priority_steps": list(LEVELS)}

beat_scheduler = "mosaic_tasks.scheduling.beat:Scheduler"

# Schedules lie on the server. Of several beats the holder of the lock sends; one that is silent for as long as any
# process may be loses it, and ends.
beat_max_loop_interval = settings().liveness_s / 4
redbeat_redis_url = _urls.redis_url
redbeat_redis_options: dict[str, Any] = {}  # unset, it would be those of the broker
redbeat_key_prefix = f"{settings().namespace}:beat:"
redbeat_lock_key = f"{redbeat_key_prefix}:lock"
redbeat_lock_timeout = ceil(settings().liveness_s)

if settings().namespace != "mosaic":
    result_backend_transport_options = {"global_keyprefix": f"{settings().namespace}:"}
    broker_transport_options |= result_backend_transport_options
