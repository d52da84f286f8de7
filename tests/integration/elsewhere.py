"""What the documentation shows and no test runs as it stands, each with the reason."""

from __future__ import annotations

_VLLM = "needs vLLM, and a GPU or minutes; tests/engine hosts small models with the same options"
_MAKES = "makes the environment that runs this test"
_WEIGHTS = "needs the weights of the engine's environment; tests/engine/test_models.py does it in a folder of its own"
_PUBLIC = "needs a receiver at a public address; test_report_batch.py tells one on loopback"
_CLUSTER = "needs a cluster; test_deployment_files.py checks what the chart renders"
_SERVER = "needs the tools and the folders of a server; test_restoring.py does it in folders of its own"

COMMANDS = {
    # README.md, docs/quickstart.md, docs/flower.md, CONTRIBUTING.md
    "make demo": "test_readme.py runs it",
    "make flower": "test_flower_demo.py runs it",
    "pip install .": "needs a package index; test_packaging.py builds and reads what it would install",
    "make test": "runs this test",
    "make dev": _MAKES,
    # examples/weekly_report/README.md
    'make demo REPO=~/src/shop SINCE="2 weeks ago" TICKETS=jira.json': "test_demo.py runs it for folders of its own",
    # docs/batches.md
    "mosaic batch digest.yaml --inputs topics.jsonl --output s3://reports/week-48/ --webhook "
    "https://hooks.example.com/reports": _PUBLIC,
    # docs/deployment.md
    "kubectl create secret generic mosaic-server --from-literal=url=rediss://user:password@host:6379/0": _CLUSTER,
    "kubectl create secret generic keys --from-literal=OPENAI_API_KEY=...": _CLUSTER,
    "helm install mosaic docker/helm/mosaic-tasks --set providers.secret=keys -f mine.yaml": _CLUSTER,
    # docs/engines.md
    "mosaic worker --class h100 --model /models/llama-8b": _VLLM,
    "mosaic worker --class h100 --model llama.yaml --engine-option block_size=32": _VLLM,
    "make demo MODEL=smollm2": _VLLM,
    "make engine": _MAKES,
    ".venv-engine/bin/python -m mosaic_tasks.engines.smollm2": _WEIGHTS,
    ".venv-engine/bin/mosaic worker --class cpu --model .mosaic/models/smollm2": _VLLM,
    "MOSAIC_MODEL=vllm:smollm2 .venv/bin/mosaic run examples/weekly_report/workflow.yaml": _VLLM,
    # docs/operations.md
    "valkey-cli --rdb /backup/mosaic.rdb": _SERVER,
    "rsync -a .mosaic/objects/ /backup/objects/": _SERVER,
    "cp /backup/mosaic.rdb /var/lib/valkey/dump.rdb": _SERVER,
    "valkey-server --dir /var/lib/valkey --appendonly no --maxmemory-policy noeviction --daemonize yes": _SERVER,
    "valkey-cli config set appendonly yes": _SERVER,
    # docs/reference/cli.md
    "mosaic worker --class h100 --model /models/llama-3.1-8b": _VLLM,
    "mosaic worker --class cpu --model smollm2.yaml --engine-option block_size=32": _VLLM,
}
