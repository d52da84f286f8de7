"""How a worker runs a plan: claims, calls, records, and says what it does."""
