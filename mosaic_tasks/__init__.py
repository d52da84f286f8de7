"""mosaic-tasks: workflows of LLM agents on Celery and Redis."""
