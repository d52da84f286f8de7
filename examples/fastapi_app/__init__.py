"""A FastAPI app that sums texts up, and shows the summary while it is written."""
