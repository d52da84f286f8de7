"""Workers that would take calls of models that they do not host, and fail them."""

from __future__ import annotations

import pytest
from redis import Redis

from tests.services import Pool, Workers

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("pool", ["prefork", "async"])
def test_a_celery_worker_for_a_model_that_it_does_not_host_is_refused(
    workers: Workers, redis_client: Redis, pool: Pool
) -> None:
    worker = workers.start("mosaic_tasks.app", ["mosaic.cpu", "mosaic.gpu.tiny"], pool=pool)
    assert worker.wait() == 1
    worker.kill()  # reads its log to the end
    (told,) = [line for line in worker.log.splitlines() if "worker.refused" in line]
    assert (
        "it does not host what it would serve, 'mosaic.gpu.tiny'; start instead: mosaic worker --class CLASS"
        in told
    )
    assert "Traceback" not in worker.log
    assert redis_client.dbsize() == 0
