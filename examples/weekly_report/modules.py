"""Merges commits by module: the folders that a reader of the repository would name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from weekly_report.identities import Identities, everybody
from weekly_report.paths import is_bulk
from weekly_report.records import Commit, FileChange, History, Module, Modules
from weekly_report.words import code

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
    """The modules that people changed, most commits first; those without written lines last."""
    identities = Identities(everybody(history["items"]))
    module_of = namer(history["split"])
    tallies: dict[str, _Tally] = {}
    for commit in _own(history["items"], identities):
        author = identities.name_of(commit["author"])
        for change in commit["files"]:
            tallies.setdefault(module_of(change["path"]), _Tally()).add(commit["hash"], author, change)
    found = [tally.module(name) for name, tally in tallies.items()]
    found.sort(key=_order)
    return Modules(items=found)


def _own(commits: list[Commit], identities: Identities) -> list[Commit]:
    """The commits of people; those of programs where there are no others."""
    return [one for one in commits if not identities.is_bot(identities.who(one["author"]))] or commits


def _order(module: Module) -> tuple[bool, int, int, str]:
    """Commits count before lines: one large import is less work than many small changes."""
    return not module["written"], -module["commits"], -module["written"], module["name"]


def namer(split: Iterable[str]) -> Callable[[str], str]:
    """A function from a path to its module's name, where `told_apart` gave `split`."""
    apart = {tuple(folder.split("/")) for folder in split}

    def module_of(path: str) -> str:
        return "/".join(_module(tuple(path.split("/")[:-1]), apart)) or TOP

    return module_of


def told_apart(paths: Iterable[str]) -> list[str]:
    """The folders that are told apart by their own folders, where these paths changed.

    A module is a top folder, or a folder in one that only holds others (`src`, `packages`), or in one that holds most
    of the changed files.
    """
    folders = Counter(tuple(path.split("/")[:-1]) for path in set(paths))
    return sorted("/".join(folder) for folder in _split(folders))


def _split(folders: Counter[tuple[str, ...]]) -> set[tuple[str, ...]]:
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
        if not is_bulk(change["path"]):
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
    return ["the top folder" if name == TOP else code(name) for name in names]
