"""Writes requirements/lock.txt: an exact version for every package of a development environment.

The versions are those of the environment that runs it, or the newest with `--upgrade`. Packages that only
another supported Python or system needs are locked as well: pip resolves for the interpreter that runs it, so
this looks at the conditions of every package again and adds what they ask for elsewhere.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
LOCK = ROOT / "requirements" / "lock.txt"
PROJECT = "mosaic-tasks"
EVERYTHING = [
    "--group",
    "dev",
    "-e",
    f"{ROOT}[flower,gateway,gpu,procfile,reports,tracing]",
    "pip",
    "hatchling",
    "editables",
]
PYTHONS = ("3.11.0", "3.11.9", "3.12.0", "3.13.0")
SYSTEMS = {"linux": "Linux", "darwin": "Darwin"}
HEADER = """\
# Exact versions of everything that an environment of this project holds, for Python 3.11 to 3.13.
# Written by `make lock`; do not edit.
"""


def main() -> None:
    """Resolve until no other environment asks for more, then write the lock."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--upgrade", action="store_true", help="the newest versions, not the installed ones")
    constraints = "" if parser.parse_args().upgrade else installed()
    extra: set[str] = set()
    packages = resolve(constraints, extra)
    while missing := needed_elsewhere(packages) - packages.keys():
        extra |= missing
        packages = resolve(constraints, extra)
    pins = [f"{name}=={packages[name]['version']}\n" for name in sorted(packages)]
    LOCK.write_text(HEADER + "".join(pins), encoding="utf-8")
    print(f"{LOCK.relative_to(ROOT)}: {len(pins)} packages")


def installed() -> str:
    """The versions of the running environment, as constraints."""
    return pip("freeze", "--all", "--exclude-editable")


def resolve(constraints: str, extra: set[str]) -> dict[str, Any]:
    """The metadata of all packages that pip would install into an empty environment, by name."""
    with tempfile.TemporaryDirectory() as directory:
        limits, report = Path(directory, "constraints.txt"), Path(directory, "report.json")
        limits.write_text(constraints, encoding="utf-8")
        options = [
            "--dry-run",
            "--ignore-installed",
            "--no-build-isolation",
            "--quiet",
            "--report",
            str(report),
        ]
        pip("install", *options, "-c", str(limits), *EVERYTHING, *sorted(extra))
        items = json.loads(report.read_text(encoding="utf-8"))["install"]
    found = {canonicalize_name(item["metadata"]["name"]): item["metadata"] for item in items}
    return {name: metadata for name, metadata in found.items() if name != PROJECT}


def needed_elsewhere(packages: dict[str, Any]) -> set[str]:
    """The names that some supported Python on some supported system needs."""
    texts = [text for metadata in packages.values() for text in metadata.get("requires_dist", [])]
    return {canonicalize_name(need.name) for need in map(Requirement, texts) if applies_somewhere(need)}


def applies_somewhere(need: Requirement) -> bool:
    """Whether a requirement holds, without extras, in any supported environment."""
    return need.marker is None or any(need.marker.evaluate(environment) for environment in environments())


def environments() -> Iterator[dict[str, str]]:
    """The marker values of the supported environments, where they differ from one another."""
    for version, (platform, system) in product(PYTHONS, SYSTEMS.items()):
        yield {
            "python_version": version.rpartition(".")[0],
            "python_full_version": version,
            "sys_platform": platform,
            "platform_system": system,
            "extra": "",
        }


def pip(*arguments: str) -> str:
    """What pip of the running environment prints."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT).stdout


if __name__ == "__main__":
    main()
