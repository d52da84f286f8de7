"""Fixtures of the tests with a real vLLM engine, which `make test-engine` runs: folders of tiny models.

An engine takes 20 s to start: share one by a fixture of the session or the module.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

HERE = Path(__file__).parent
HAS_VLLM = importlib.util.find_spec("vllm") is not None
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
"""What a vLLM engine needs where there is no GPU, no network, and other tests on the same processors."""

FOREIGN = r"(torch|vllm|transformers|triton|numba|xgrammar|outlines_core|llguidance)(\..*)?"
"""Modules whose warnings are theirs; they are errors elsewhere."""

if not HAS_VLLM:
    collect_ignore_glob = ["test_*.py"]


def pytest_report_header() -> str | None:
    """Says why nothing is collected here."""
    return None if HAS_VLLM else f"no vLLM in this environment, so none of {HERE.name}/: `make test-engine`"


def pytest_configure(config: pytest.Config) -> None:
    """Sets the environment before anything imports vLLM, and lets its libraries warn."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    for kind in ("DeprecationWarning", "FutureWarning", "UserWarning"):
        config.addinivalue_line("filterwarnings", f"ignore::{kind}:{FOREIGN}")
    config.addinivalue_line("filterwarnings", "ignore:Unclosed (context|socket) <zmq:ResourceWarning")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what is here, and gives it the time that engines take to start."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.engine)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(300))


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny model with random weights; its name is `tiny`."""
    from tests.engine.models import write_model

    return write_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def tiny_adapter(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A LoRA adapter on `tiny_model`."""
    from tests.engine.models import write_adapter

    return write_adapter(tmp_path_factory.mktemp("adapters") / "tone", base="tiny")


@pytest.fixture(scope="session")
def foreign_adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A LoRA adapter on a wider model that is called `wide`."""
    from tests.engine.models import Shape, write_adapter

    return write_adapter(
        tmp_path_factory.mktemp("adapters") / "foreign", base="wide", shape=Shape(hidden=192)
    )
