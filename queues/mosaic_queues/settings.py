"""Settings of a process, read once from `MOSAIC_*` environment variables."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from mosaic_queues.errors import ConfigurationError


class Settings(BaseSettings):
    """What a process needs to know about its server and its limits. Times in seconds, sizes in bytes."""

    model_config = SettingsConfigDict(env_prefix="MOSAIC_", frozen=True)

    redis_url: str | None = Field(
        default=None,
        description="server of the ledger, and of the broker of `mosaic_tasks.app`: Redis 6.2+ or Valkey; "
        "unset: an embedded one",
    )
    home: Path = Field(
        default=Path(".mosaic"), description="directory of the embedded server and the local object store"
    )
    object_store: str | None = Field(
        default=None,
        description="URL for large payloads (`s3://...`, `file:///...`); unset: `objects` in MOSAIC_HOME; workers on "
        "several machines need a shared one",
    )
    namespace: str = Field(default="mosaic", pattern=r"^[A-Za-z0-9_.-]+$", description="prefix of every key")
    result_backend: bool = Field(
        default=True, description="use the ledger's join as the app's result backend"
    )

    topology: Path | None = Field(
        default=None, description="file of the workers and queues; unset: the one that comes with it"
    )
    models: Path | None = Field(
        default=None, description="file of the model pool; unset: the one that comes with it"
    )

    routing_policy: str = Field(default="adaptive", description="how the router chooses among targets")
    prefix_chars: int = Field(
        default=1_024, ge=1, description="characters of a prompt that prefix affinity takes as a block"
    )

    liveness_s: float = Field(default=10.0, gt=0.5, description="a process silent for so long is dead")
    sweep_s: float = Field(default=0.5, gt=0, description="pause between two sweeps")
    outbox_grace_s: float = Field(
        default=2.0, gt=0, description="a ready call older than this is published again if no queue holds it"
    )
    max_losses: int = Field(default=3, ge=1, description="a call whose process died so often fails")
    dead_letters: int = Field(
        default=1_000, ge=1, description="dead letters that are kept; the oldest go first"
    )

    retention_s: float = Field(default=86_400.0, gt=0, description="how long a finished run is kept")
    history_runs: int = Field(
        default=100_000, ge=1, description="runs that are listed of each tenant, and of all together"
    )
    max_run_s: float = Field(
        default=7 * 86_400.0, gt=0, description="an unfinished run older than this fails"
    )

    inline_bytes: int = Field(default=4_096, ge=0, description="payloads up to this stay beside the state")
    redis_bytes: int = Field(
        default=1_048_576,
        ge=0,
        description="payloads up to this stay in the server, larger ones go to the object store",
    )
    stream_bytes: int = Field(
        default=67_108_864,
        ge=0,
        description="chunks of one stream up to this stay in the server, later ones go to the object store, not folds'",
    )
    stream_lag: int = Field(
        default=1_000_000,
        ge=1,
        description="a producer waits for a running reader that is so many items or characters behind",
    )
    max_payload_bytes: int = Field(default=1_073_741_824, gt=0, description="larger values are refused")
    max_run_bytes: int = Field(
        default=1_073_741_824,
        gt=0,
        description="a run whose state, outputs, events, chunks and payloads take more of the server fails",
    )
    max_run_object_bytes: int = Field(
        default=17_179_869_184,
        gt=0,
        description="a value that would bring a run's objects outside the server above this is refused",
    )
    max_nodes: int = Field(default=50_000, gt=0, description="larger workflows are refused")

    max_items: int = Field(default=100_000, gt=0, description="a fan-out over more items is refused")

    tracing: bool | None = Field(
        default=None,
        description="send traces to a collector (OTLP over HTTP); unset: where OTEL_EXPORTER_OTLP_ENDPOINT is set",
    )

    continuation_calls: int = Field(
        default=2048, ge=0, description="calls that one message may go on to, without the broker; 0: none"
    )
    continuation_s: float = Field(default=0.2, ge=0, description="time that one message may spend so")
    batch_calls: int = Field(default=256, ge=1, description="calls that one message may carry")
    batch_s: float = Field(
        default=0.1, gt=0, description="a message's share of work; a batch that takes longer is handed back"
    )

    oidc_issuer: str | None = Field(
        default=None, description="URL of the identity provider whose tokens the gateway takes; unset: none"
    )
    oidc_audience: str | None = Field(
        default=None, description="what tokens must be for: the gateway's name there"
    )
    oidc_tenant_claim: str = Field(
        default="tenant", description="claim of a token that names the tenant; empty: all have the tenant ''"
    )
    oidc_scope_claim: str = Field(default="scope", description="claim of a token that lists the scopes")
    quotas: Path | None = Field(
        default=None, description="file of what tenants may do over the gateway; unset: no quotas"
    )
    session_s: float = Field(default=43_200.0, gt=0, description="a browser's session ends after this")
    audit_entries: int = Field(
        default=100_000, ge=1, description="entries of the audit log that are kept; the oldest go first"
    )

    gateway_body_bytes: int = Field(
        default=4_194_304, ge=1_024, description="the gateway takes no larger body of a request"
    )
    gateway_patience_s: float = Field(
        default=30.0,
        gt=0,
        description="a client of the gateway that sends or reads nothing for so long is dropped",
    )
    gateway_silence_s: float = Field(
        default=15.0,
        gt=0,
        description="the gateway sends a comment when a stream has said nothing for so long",
    )


@lru_cache(maxsize=1)
def settings() -> Settings:
    """The settings of this process.

    Raises:
        ConfigurationError: a variable has no usable value.
    """
    try:
        return Settings()
    except ValidationError as error:
        problems = "; ".join(
            f"MOSAIC_{'_'.join(str(part) for part in each['loc']).upper()}={each['input']!r}: {each['msg']}"
            for each in error.errors()
        )
        raise ConfigurationError(f"the environment cannot be used: {problems}") from None
