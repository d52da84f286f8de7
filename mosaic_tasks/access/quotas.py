"""What a tenant may do over the gateway: runs started a minute, runs open at once, streams read at once.

Rates and readers are buckets and leases of the guards, in the server, for all gateways together: what a gateway held
that was killed lapses within twice `Guards.expiry_ms`. A place for an open run is taken before it is submitted, and
is the run's until that is over, whoever ends it. Which runs are over is looked up only when no place is free. Two
submissions with one idempotency key come to one run, so they share a place; what is taken of a rate is taken by each.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Annotated, NamedTuple, Self, cast

import structlog
import yaml
from celery import Celery
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from redis.exceptions import RedisError

from mosaic_queues.errors import ConfigurationError, QuotaExceeded
from mosaic_routing.guards import BucketLimit, Lease, Limited, Need, Take
from mosaic_routing.guards.buckets import MAX_PER_MINUTE
from mosaic_routing.guards.leases import MAX_WEIGHT
from mosaic_routing.guards.limits import EACH
from mosaic_tasks.access.principal import Principal
from mosaic_tasks.access.scripts import AccessScript
from mosaic_tasks.access.secrets import hashed, make_token
from mosaic_tasks.execution.process import Process, process_for

log = structlog.get_logger(__name__)

SUBMISSION_S = 120.0
"""No submission takes longer; the place of one whose gateway was killed is free again after this."""
AGAIN_S = 5.0
"""Nobody knows when a run or a stream ends: a client may ask again after so long."""
_occupy, _opened, _vacate = AccessScript("occupy"), AccessScript("opened"), AccessScript("vacate")
_STARTING = "start:"
"""So begin the names of places of runs that are not open yet; the others are ids of runs."""
_Count = Annotated[int, Field(ge=1, le=MAX_WEIGHT)]


class Quota(BaseModel):
    """What one tenant may do; None: no limit.

    Attributes:
        starts_per_minute: runs that are started or run again.
        open_runs: runs of the gateway that are not over.
        readers: streams that are read at once.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    starts_per_minute: Annotated[int, Field(ge=1, le=MAX_PER_MINUTE)] | None = None
    open_runs: _Count | None = None
    readers: _Count | None = None


class _QuotaFile(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    tenants: dict[str, Quota] = {}


@lru_cache(maxsize=8)
def read_quotas(path: Path) -> Mapping[str, Quota]:
    """The quotas of a file by tenant, `*` for each that has none of its own; a process reads a file once.

    Raises:
        ConfigurationError: it cannot be read, or says what makes no sense.
    """
    try:
        return _QuotaFile.model_validate(yaml.safe_load(path.read_text("utf-8")) or {}).tenants
    except ValidationError as error:
        told = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
        raise ConfigurationError(f"the quotas in {str(path)!r} cannot be used: {told}") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigurationError(f"the quotas in {str(path)!r} cannot be read: {error}") from error


class _Place(NamedTuple):
    """A place for a run that is about to be opened.

    Attributes:
        keys: of the server: the places of the tenant, and who holds this one.
        name: the same for all who start the same run.
        holder: one of these.
    """

    keys: tuple[str, str]
    name: str
    holder: str

    @classmethod
    def of(cls, process: Process, tenant: str, key: str | None) -> Self:
        """That of a submission with this idempotency key."""
        places, holder = process.ledger.keys.access(f"open:{tenant}"), make_token()
        name = f"{_STARTING}{holder if key is None else hashed(key)}"
        return cls((places, f"{places}:{name}"), name, holder)

    def becomes(self, process: Process, run_id: str) -> None:
        """It is that of a run from now on, as long as it is open."""
        order = {"place": self.name, "run": run_id, "lapse": int(process.settings.max_run_s * 1000)}
        try:
            _opened(process.client, self.keys, order)
        except RedisError as error:
            log.warning("access.quota", what="cannot count an open run", run=run_id, error=str(error))


class Start:
    """A run that a tenant is about to start."""

    def __init__(self, process: Process, place: _Place | None) -> None:
        self._process, self._place = process, place

    def opened(self, run_id: str) -> None:
        """The run is there: from now on it counts as long as it is open. The run stands whatever happens to that."""
        place, self._place = self._place, None
        if place is not None:
            place.becomes(self._process, run_id)

    def give_up(self) -> None:
        """There is no run; the place is free again, at once where the server answers."""
        place, self._place = self._place, None
        if place is None:
            return
        try:
            _vacate(self._process.client, place.keys, {"place": place.name, "holder": place.holder})
        except RedisError as error:
            log.warning("access.quota", what="cannot free a place, which lapses by itself", error=str(error))


class Quotas:
    """The quotas of all tenants.

    Args:
        by_tenant: `*` stands for each that is not there.
    """

    def __init__(self, process: Process, by_tenant: Mapping[str, Quota]) -> None:
        self._process, self._by_tenant = process, by_tenant

    @contextmanager
    def start(self, principal: Principal, *, key: str | None = None) -> Iterator[Start]:
        """Around a submission. Who leaves it without having said `opened` has started nothing.

        Args:
            key: the idempotency key, if it has one.

        Raises:
            QuotaExceeded: the tenant has as many open runs as it may, or has started too many just now.
            ServerError, redis.RedisError: the server is away.
        """
        tenant, quota = principal.tenant, self._of(principal.tenant)
        place = self._occupy(tenant, key, quota.open_runs) if quota.open_runs is not None else None
        start = Start(self._process, place)
        try:
            if quota.starts_per_minute is not None:
                self._take(tenant, quota.starts_per_minute)
            yield start
        finally:
            start.give_up()

    def counts(self, principal: Principal, key: str, run_id: str) -> None:
        """The run of an idempotency key counts, also where whoever opened it died before it could say so."""
        if self._of(principal.tenant).open_runs is not None:
            _Place.of(self._process, principal.tenant, key).becomes(self._process, run_id)

    @asynccontextmanager
    async def reading(self, principal: Principal) -> AsyncIterator[None]:
        """Around the reading of a stream.

        Raises:
            QuotaExceeded: the tenant reads as many as it may.
            ServerError, redis.RedisError: the server is away.
        """
        tenant, readers = principal.tenant, self._of(principal.tenant).readers
        async with AsyncExitStack() as held:
            if readers is not None:
                need = Need(leases=(Lease(f"gateway:{tenant}:readers", 1, readers),))
                try:
                    await held.enter_async_context(self._process.guards.admit(need, wait_s=0))
                except Limited:
                    raise _exceeded(tenant, f"{readers} streams at once", AGAIN_S) from None
            yield

    def _of(self, tenant: str) -> Quota:
        return self._by_tenant.get(tenant) or self._by_tenant.get(EACH) or Quota()

    def _take(self, tenant: str, per_minute: int) -> None:
        need = Need(takes=(Take(f"gateway:{tenant}:starts", 1, BucketLimit(per_minute)),))
        try:
            with self._process.guards.admit(need, wait_s=0):
                pass  # what was taken from a bucket is not given back
        except Limited as error:
            raise _exceeded(tenant, f"{per_minute} runs a minute", error.wait_s) from None

    def _occupy(self, tenant: str, key: str | None, limit: int) -> _Place:
        """A place for a run that is about to be opened.

        Raises:
            QuotaExceeded: none is free, also after a look at which runs are over.
        """
        place = _Place.of(self._process, tenant, key)
        lapse = int(SUBMISSION_S * 1000)
        order = {"place": place.name, "holder": place.holder, "limit": limit, "lapse": lapse}
        is_free = _occupy(self._process.client, place.keys, order) or (
            self._free_ended(place.keys[0]) and _occupy(self._process.client, place.keys, order)
        )
        if not is_free:
            raise _exceeded(tenant, f"{limit} open runs", AGAIN_S)
        return place

    def _free_ended(self, key: str) -> int:
        """Frees the places of runs that are over; how many these were."""
        held = cast("list[bytes]", self._process.client.zrange(key, 0, -1))
        runs = [each.decode() for each in held if not each.startswith(_STARTING.encode())]
        statuses = self._process.ledger.statuses(runs)
        ended = [run for run, status in zip(runs, statuses, strict=True) if status != "running"]
        return self._process.client.zrem(key, *ended) if ended else 0


def quotas_of(app: Celery) -> Quotas:
    """The quotas of an app's server, as the settings say.

    Raises:
        ConfigurationError: their file cannot be used.
    """
    process = process_for(app)
    path = process.settings.quotas
    return Quotas(process, read_quotas(path) if path is not None else {})


def _exceeded(tenant: str, what: str, wait_s: float) -> QuotaExceeded:
    whose = f"the tenant {tenant!r}" if tenant else "whoever has no tenant"
    return QuotaExceeded(
        f"{whose} has had its share of {what}; ask again in {wait_s:.3g} s", retry_after_s=wait_s
    )


__all__ = ["Quota", "Quotas", "Start", "quotas_of", "read_quotas"]
