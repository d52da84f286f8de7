"""Merges commits by module: the folders that a reader of the repository would name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from weekly_report.identities import Identities, everybody
from weekly_report.paths import is_generated
from weekly_report.records import FileChange, History, Module, Modules

TOP = "."
"""Name of the module that holds the files outside of any folder."""

_CONTAINERS = {
    "src",
    "lib",
    "libs",
    "packages",
    "apps",
    "services",
    "pkg",
    "internal",
    "crates",
    "modules",
    "plugins",
}
_DOMINANT = 0.5
_MAX_DEPTH = 4


def modules(history: History) -> Modules:
    """The modules that changed, most changed lines first, generated files aside."""
    identities = Identities(everybody(history["items"]))
    module_of = namer(history)
    tallies: dict[str, _Tally] = {}
    for commit in history["items"]:
        author = identities.name(identities.who(commit["author"]))
        for change in commit["files"]:
            tallies.setdefault(module_of(change["path"]), _Tally()).add(commit["hash"], author, change)
    found = [tally.module(name) for name, tally in tallies.items()]
    found.sort(key=lambda module: (-module["written"], -module["commits"], module["name"]))
    return Modules(items=found)


def namer(history: History) -> Callable[[str], str]:
    """A function from a path to its module's name.

    A module is a top folder, or a folder in one that only holds others (`src`, `packages`). One that holds
    most of the changed files is told apart by its own folders.
    """
    folders = Counter(
        tuple(path.split("/")[:-1])
        for path in {change["path"] for commit in history["items"] for change in commit["files"]}
    )
    split = _split(folders)

    def module_of(path: str) -> str:
        return "/".join(_module(tuple(path.split("/")[:-1]), split)) or TOP

    return module_of


def _split(folders: Counter[tuple[str, ...]]) -> set[tuple[str, ...]]:
    """The folders that are told apart by their own folders."""
    split = {folder[:1] for folder in folders if folder and folder[0].casefold() in _CONTAINERS}
    for _ in range(_MAX_DEPTH):
        sizes: Counter[tuple[str, ...]] = Counter()
        for folder, files in folders.items():
            sizes[_module(folder, split)] += files
        largest, files = max(sizes.items(), key=lambda pair: pair[1], default=((), 0))
        inside = {folder[: len(largest) + 1] for folder in folders if folder[: len(largest)] == largest}
        if not largest or largest in split or files < _DOMINANT * sizes.total() or len(inside) < 2:
            break
        split.add(largest)
    return split


def _module(folder: tuple[str, ...], split: set[tuple[str, ...]]) -> tuple[str, ...]:
    depth = min(1, len(folder))
    while folder[:depth] in split and depth < min(len(folder), _MAX_DEPTH):
        depth += 1
    return folder[:depth]


@dataclass
class _Tally:
    commits: set[str] = field(default_factory=set)
    people: Counter[str] = field(default_factory=Counter)
    files: set[str] = field(default_factory=set)
    insertions: int = 0
    deletions: int = 0
    written: int = 0

    def add(self, commit: str, author: str, change: FileChange) -> None:
        if commit not in self.commits:
            self.people[author] += 1
        self.commits.add(commit)
        self.files.add(change["path"])
        self.insertions += change["insertions"]
        self.deletions += change["deletions"]
        if not is_generated(change["path"]):
            self.written += change["insertions"] + change["deletions"]

    def module(self, name: str) -> Module:
        return Module(
            name=name,
            commits=len(self.commits),
            people=_most_first(self.people),
            files=len(self.files),
            insertions=self.insertions,
            deletions=self.deletions,
            written=self.written,
        )


def _most_first(names: Counter[str]) -> list[str]:
    return sorted(names, key=lambda name: (-names[name], name))


def label(names: Iterable[str]) -> list[str]:
    """Module names as a sentence shows them."""
    return ["the top folder" if name == TOP else f"`{name}`" for name in names]
