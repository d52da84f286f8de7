"""Celery's configuration of `mosaic_tasks.app`, from the environment."""

from mosaic_queues.connection import server_urls
from mosaic_queues.settings import settings

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

if settings().namespace != "mosaic":
    broker_transport_options = {"global_keyprefix": f"{settings().namespace}:"}
    result_backend_transport_options = broker_transport_options
