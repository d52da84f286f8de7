"""Ordinary chords of a user's own app: a result backend whose joins survive dead workers and lost messages."""
