"""The status page: runs, a run's graph and timeline, and the workers, made on the server and renewed by events."""
