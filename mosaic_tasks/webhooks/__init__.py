"""Webhooks: what is over is told to a URL, signed as Standard Webhooks says, and to no address that is not meant."""
