"""The workflows that can be started over HTTP: those of a folder or of named files, and no others.

A workflow names tools by their import path, so one that comes from outside would run any code.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from mosaic_queues.errors import ConfigurationError, InputError
from mosaic_tasks.definition.references import did_you_mean
from mosaic_tasks.definition.workflow import Workflow

_SUFFIXES = {".yaml", ".yml"}


class Catalog(Mapping[str, Workflow]):
    """Workflows by their names."""

    def __init__(self, workflows: Iterable[Workflow]) -> None:
        self._workflows: dict[str, Workflow] = {}
        for workflow in workflows:
            if workflow.name in self._workflows:
                raise ConfigurationError(f"two workflows are called {workflow.name!r}; rename one of them")
            self._workflows[workflow.name] = workflow

    @classmethod
    def of(cls, paths: Iterable[Path]) -> Catalog:
        """Those of files, and of all workflow files right in folders.

        Raises:
            ConfigurationError: there is no such file, or two workflows have one name.
            DefinitionError: a workflow is wrong.
        """
        return cls(_read(file) for path in paths for file in _files(path))

    def named(self, name: str) -> Workflow:
        """The workflow of this name.

        Raises:
            InputError: there is none.
        """
        if name not in self._workflows:
            meant = did_you_mean(name, self._workflows) or "; GET /v1/workflows names those that there are"
            raise InputError(f"there is no workflow {name!r} here{meant}")
        return self._workflows[name]

    def __getitem__(self, name: str) -> Workflow:
        return self._workflows[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._workflows)

    def __len__(self) -> int:
        return len(self._workflows)


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        found = sorted(file for file in path.iterdir() if file.suffix in _SUFFIXES)
        if not found:
            raise ConfigurationError(f"the folder {str(path)!r} holds no workflow file (*.yaml)")
        return found
    if not path.exists():
        raise ConfigurationError(
            f"there is no file or folder {str(path)!r}; name workflow files, or a folder of them"
        )
    return [path]


def _read(file: Path) -> Workflow:
    workflow = Workflow.from_file(file)
    workflow.analysed()
    return workflow
