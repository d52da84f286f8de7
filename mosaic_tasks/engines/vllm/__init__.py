"""vLLM inside a worker: what a model is, the engine, and who watches it. vLLM is imported when one starts."""
