"""Reports of batches: JSONL, Markdown, HTML, PDF, into a folder or an object store."""
