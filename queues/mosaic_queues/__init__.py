"""How work and data travel: queues, ledger, chord join, payloads, embedded server."""
