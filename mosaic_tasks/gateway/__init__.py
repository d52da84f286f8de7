"""The HTTP gateway: runs over REST and server-sent events, an OpenAI-compatible endpoint, and the status page."""
