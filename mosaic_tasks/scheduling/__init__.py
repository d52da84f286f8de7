"""Schedules: which runs start when, and the beat that starts them, each tick once."""
