"""Names of the keys in the server."""

from __future__ import annotations


class Keys:
    """Key names under one namespace. A run's keys share the hash tag `{run_id}`, so one slot holds them all."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self.runs = f"{namespace}:runs"
        """Sorted set of the runs that are not over, by time of opening (ms)."""
        self.holders = f"{namespace}:holders"
        """Sorted set of live processes, by expiry (ms)."""
        self.sweeper = f"{namespace}:sweeper"
        """The lock of the process whose sweeper recovers runs."""
        self.changes = f"{namespace}:changes"
        """Stream of what changes the list of runs; the scripts know its name, too."""

    def run(self, run_id: str) -> tuple[str, str, str, str, str, str, str]:
        """The keys of a run in the order of the scripts: run, calls, out, events, blobs, end, boxes."""
        prefix = f"{self.namespace}:{{{run_id}}}:"
        return (
            prefix + "run",
            prefix + "calls",
            prefix + "out",
            prefix + "events",
            prefix + "blobs",
            prefix + "end",
            prefix + "boxes",
        )

    def stream(self, run_id: str, stream: str) -> str:
        """The chunks of a stream of a run."""
        return f"{self.namespace}:{{{run_id}}}:s:{stream}"

    def plan(self, plan_hash: str) -> str:
        """The plan with this content hash."""
        return f"{self.namespace}:plan:{plan_hash}"

    def holder(self, name: str) -> str:
        """What a live process says of itself; expires with it."""
        return f"{self.namespace}:holder:{name}"

    def recalls(self, holder: str) -> str:
        """Where a process is told that calls which it runs do not count any more."""
        return f"{self.namespace}:recalls:{holder}"

    def once(self, tenant: str, key: str) -> str:
        """The run that an idempotency key of a tenant stands for. No name of a tenant has a colon."""
        return f"{self.namespace}:once:{tenant}:{key}"

    def history(self, tenant: str | None) -> str:
        """Sorted set of the runs of a tenant, or of all (None), also of those that are over."""
        return f"{self.namespace}:history:{tenant}" if tenant is not None else f"{self.namespace}:history"

    def access(self, what: str) -> str:
        """What the gateway keeps of API keys, sessions, quotas and the audit log; all in one slot."""
        return f"{self.namespace}:{{access}}:{what}"
