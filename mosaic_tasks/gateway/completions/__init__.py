"""`/v1/chat/completions` and `/v1/models`: to a client of OpenAI's API a workflow is a model."""
