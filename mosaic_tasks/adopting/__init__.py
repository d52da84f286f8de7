"""From Celery canvases to workflow files."""
