"""Reports of batches: what they say, what they leave out, and which files are made when."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from made_batches import ABOUT, done, failed, work, write
from markdown_it import MarkdownIt
from pypdf import PdfReader

from mosaic_queues.errors import ConfigurationError, InputError
from mosaic_tasks.reports import making, markdown, page, pdf
from mosaic_tasks.reports.document import Limits, excerpt_of, headline, period
from mosaic_tasks.reports.formats import Format
from mosaic_tasks.reports.making import check_formats, make
from mosaic_tasks.reports.marks import Marks, read_marks, write_marks
from mosaic_tasks.reports.places import Folder, Store
from mosaic_tasks.reports.result import Entry, read_results, totals_of
from mosaic_tasks.reports.template import read_template

ALL = (Format.MARKDOWN, Format.HTML, Format.PDF)
LIMITS = Limits(failures=9, rows=9, outputs=9, output_chars=99, all_chars=999)
ENTRIES = [
    done(1, "# One\n\n<b>bold</b>", tokens=1_200, cost_usd=0.02),
    failed(2, "the tool raised <script>"),
    done(4, {"rows": [1, "<i>"]}),
    failed(5, "it is no JSON", status="bad"),
]


def html_of(entries: list[Entry], limits: Limits = LIMITS) -> str:
    return page.report(ABOUT, excerpt_of(entries, limits)).html()


def markdown_of(entries: list[Entry]) -> str:
    return "".join(markdown.report(ABOUT, lambda: entries))


# -- what is said ------------------------------------------------------------------------------------------


def test_the_facts_of_a_batch_are_told() -> None:
    totals = totals_of(entry.result for entry in ENTRIES)
    assert (totals.lines, totals.done, totals.failed, totals.tokens_in) == (4, 2, 2, 1_200)
    assert headline(totals) == "2 of 4 lines failed"
    assert headline(totals_of([ENTRIES[0].result])) == "Its one line is done"
    assert headline(totals_of([ENTRIES[0].result, ENTRIES[2].result])) == "All 2 lines done"
    assert period(totals) == "30 November 2026, 00:54 to 00:57 UTC"
    assert period(totals_of([done(1, "").result, done(1_440, "").result])).endswith(
        "00:54 to 1 December 2026, 00:53 UTC"
    )
    assert period(totals_of([failed(1, "x").result])) == ""


@pytest.mark.parametrize("text", ["html", "markdown"])
def test_a_report_has_title_facts_lines_outputs_errors_and_how_to_go_on(text: str) -> None:
    made = (
        html_of(ENTRIES)
        if text == "html"
        else MarkdownIt("commonmark").enable("table").render(markdown_of(ENTRIES))
    )
    said = re.sub(
        r"\s+", " ", re.sub(r"<[^>]*>", " ", made[made.index("<h1>") - 200 if text == "html" else 0 :])
    )
    for part in (
        "Week &lt;48&gt;", "2 of 4 lines failed", "30 November 2026, 00:54 to 00:57 UTC", "1,200", "0.0200 USD",
        "item 1", "&lt;b&gt;bold&lt;/b&gt;", "&lt;i&gt;", "the tool raised &lt;script&gt;", "it is no JSON", "bad",
        "mosaic batch weekly.yaml -o out/", "Mend these lines in in.jsonl", "run run-1, 1.5 s, 1,200 tokens",
    ):  # fmt: skip
        assert part in said, part
    assert "<script>" not in made
    assert "<b>" not in made


def test_columns_and_parts_that_would_be_empty_are_left_out() -> None:
    html = html_of([failed(1, "x")])
    assert "Outputs" not in html
    assert ">Tokens<" not in html
    assert "Without output" not in html_of([done(1, "x")])
    assert "## Without" not in markdown_of([done(1, "x")])


def test_a_page_loads_nothing_and_says_so() -> None:
    html = html_of(ENTRIES)
    assert "default-src 'none'; style-src 'sha256-" in html
    assert not re.search(r"<(script|link|img|iframe|form|base)|\son\w+=|\sstyle=|url\(|@import", html)
    assert '<meta name="dcterms.created" content="2026-11-30T00:57:21Z">' in html


def test_what_is_too_much_for_a_page_is_told() -> None:
    entries = [done(line, "x" * 200) for line in range(1, 31)] + [failed(line, "y") for line in range(31, 51)]
    html = html_of(entries)
    assert "The first 9 of 50 lines are shown; all of them are in out/results.jsonl." in html
    assert "The first 9 of 20 failed lines are shown" in html
    assert "The first 9 of 30 outputs are shown" in html
    assert html.count("101 more characters: line") == 9
    assert html.count("<article") == 9
    spent = html_of(entries, LIMITS._replace(all_chars=250))
    assert "The first 3 of 30 outputs are shown" in spent


def test_all_lines_of_a_large_batch_are_in_its_markdown() -> None:
    text = markdown_of([done(line, f"text {line}") for line in range(1, 3_001)])
    assert text.count("\n### item") == 3_000
    assert "| 3,000 | item 3000 | done |" in text


def test_an_error_is_one_line_that_ends() -> None:
    [line] = [
        line for line in markdown_of([failed(1, "a\n# b\n" * 9_000)]).splitlines() if "**Line 1**" in line
    ]
    assert len(line) < 3_000


# -- PDF ---------------------------------------------------------------------------------------------------


def test_a_pdf_has_title_date_bookmarks_and_the_text() -> None:
    reader = PdfReader(io.BytesIO(pdf.to_pdf(html_of(ENTRIES))))
    assert reader.metadata is not None
    assert (reader.metadata.title, reader.metadata.creation_date_raw) == ("Week <48>", "D:20261130005721Z")
    titles: list[str] = []

    def collect(outline: Any) -> None:
        for entry in outline:
            collect(entry) if isinstance(entry, list) else titles.append(entry.title)

    collect(reader.outline)
    assert titles == ["Week <48>", "Without output", "Lines", "Outputs", "item 1", "One", "item 4"]
    text = "\n".join(each.extract_text() for each in reader.pages)
    assert "<b>bold</b>" in text
    assert "1 / 1" in text or "1 / 2" in text


_DIGEST = """
import hashlib
from made_batches import ABOUT, done, failed
from mosaic_tasks.reports import page, pdf
from mosaic_tasks.reports.document import Limits, excerpt_of
excerpt = excerpt_of([done(1, "# One \\u2713"), failed(2, "x")], Limits(9, 9, 9, 99, 999))
print(hashlib.sha256(pdf.to_pdf(page.report(ABOUT, excerpt).html())).hexdigest())
"""


def test_the_same_results_make_the_same_bytes() -> None:
    def made(seed: str) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-c", _DIGEST]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout

    assert made("1") == made("2") != ""


def test_a_pdf_is_made_without_reading_files_or_the_network(tmp_path: Path) -> None:
    import socket

    (tmp_path / "secret.txt").write_text("a secret")
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.0)
        url = f"http://127.0.0.1:{server.getsockname()[1]}/x"
        file = (tmp_path / "secret.txt").as_uri()
        made = pdf.to_pdf(
            f"<link rel=stylesheet href='{url}'><style>@import '{url}'; p {{background: url({url})}}</style>"
            f"<link rel=attachment href='{file}'><img src='{url}'><img src='{file}'><object data='{file}'></object>x"
        )
        with pytest.raises(BlockingIOError):
            server.accept()
    assert PdfReader(io.BytesIO(made)).attachments == {}
    assert b"a secret" not in made


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (ImportError("no module"), r"pip install 'mosaic-tasks\[reports\]'"),
        (
            OSError("cannot load library 'libpango'\nmore"),
            r"\(cannot load library 'libpango'\).*apt-get install",
        ),
    ],
)
def test_a_library_that_is_missing_is_told_with_the_command_that_helps(
    error: Exception, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Finder:
        def find_spec(self, name: str, *_rest: object) -> None:
            if name == "weasyprint":
                raise error

    monkeypatch.delitem(sys.modules, "weasyprint", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Finder(), *sys.meta_path])
    with pytest.raises(ConfigurationError, match=advice):
        check_formats([Format.PDF])
    check_formats([Format.HTML])


# -- templates ---------------------------------------------------------------------------------------------


def test_a_template_makes_the_report(tmp_path: Path) -> None:
    write(tmp_path / "results.jsonl", ENTRIES)
    source = (
        "# {{ title }}: {{ headline }}\n{% for line in lines %}\n- {{ line.label }} {{ line.status }} "
        "{{ line.output.rows[0] if line.line == 4 else line.output or line.error }}\n{% endfor %}\n{{ left_out }}"
    )
    (tmp_path / "own.md").write_text(source)
    template = read_template(tmp_path / "own.md")
    make(work(tmp_path, Format.MARKDOWN, Format.HTML, template=template), tmp_path / "marks")
    text, html = (tmp_path / "report.md").read_text(), (tmp_path / "report.html").read_text()
    assert "2 of 4 lines failed" in text
    assert "- item 4 done 1" in text
    assert "<b>" not in text
    assert "<h1>Week" in html
    assert "&lt;b&gt;bold" in html


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{{ titel }}", "reads titel, which no report has; it has again, "),
        ("{% for x in %}", r"cannot be used: .*line 1"),
        ("{{ title.__class__ }}", "underscore"),
        ("{% include 'x' %}", "not allowed"),
    ],
)
def test_a_template_that_cannot_be_used_is_told_before_anything_runs(
    source: str, reason: str, tmp_path: Path
) -> None:
    (tmp_path / "own.md").write_text(source)
    with pytest.raises(InputError, match=reason):
        read_template(tmp_path / "own.md")
    with pytest.raises(InputError, match="No such file"):
        read_template(tmp_path / "none.md")


def test_a_template_that_fails_is_told(tmp_path: Path) -> None:
    write(tmp_path / "results.jsonl", ENTRIES)
    with pytest.raises(InputError, match="fails: integer division or modulo by zero"):
        make(work(tmp_path, Format.HTML, template="{{ 1 // 0 }}"), tmp_path / "marks")
    assert not (tmp_path / "report.html").exists()


# -- files -------------------------------------------------------------------------------------------------


def test_a_template_that_makes_more_than_a_pdf_bears_is_told(tmp_path: Path) -> None:
    template = "{% for i in range(60000) %}a b c d e {% endfor %}"
    write(tmp_path / "results.jsonl", ENTRIES)
    with pytest.raises(
        InputError, match="600,000 characters, and this format bears 500,000; show fewer lines"
    ):
        make(work(tmp_path, Format.PDF, template=template), tmp_path / "marks")


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that are made."""
    made: list[str] = []
    writing = Folder.writing

    def noted(self: Folder, name: str) -> Any:
        made.append(name)
        return writing(self, name)

    monkeypatch.setattr(Folder, "writing", noted)
    return made


def test_only_what_changed_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "results.jsonl", ENTRIES)
    made, marks = counted(monkeypatch), tmp_path / "marks"

    def files() -> list[str]:
        made.clear()
        make(work(tmp_path, Format.MARKDOWN, Format.HTML, each=True), marks)
        return list(made)

    one, four = (f"items/0000{line}-item-{line}" for line in (1, 4))
    everything = ["report.md", "report.html", f"{one}.md", f"{one}.html", f"{four}.md", f"{four}.html"]
    assert files() == everything
    assert files() == []
    (tmp_path / "report.html").unlink()
    (tmp_path / f"{four}.md").unlink()
    assert files() == ["report.html", f"{four}.md"]
    write(tmp_path / "results.jsonl", [ENTRIES[0], done(3, "new"), *ENTRIES[2:]])
    assert files() == ["report.md", "report.html", "items/00003-item-3.md", "items/00003-item-3.html"]
    monkeypatch.setattr(making, "_edition", lambda: b"another")
    assert len(files()) == 8


def test_files_of_lines_that_are_gone_go_and_other_files_stay(tmp_path: Path) -> None:
    write(tmp_path / "results.jsonl", ENTRIES)
    make(work(tmp_path, Format.HTML, each=True), tmp_path / "marks")
    (tmp_path / "items" / "mine.html").write_text("mine")
    write(tmp_path / "results.jsonl", [done(1, "x", label="other"), ENTRIES[1]])
    make(work(tmp_path, Format.HTML, each=True), tmp_path / "marks")
    assert names(tmp_path / "items") == {"mine.html", "00001-item-1.html"}


def test_names_of_files_that_come_from_data_stay_in_their_folder(tmp_path: Path) -> None:
    titles = ["../../up", "/absolute", "nul\0byte", "x" * 9_000, "con", ".", "a/b\\c", "-rf"]
    folder = tmp_path / "inner" / "out"
    folder.mkdir(parents=True)
    write(folder / "results.jsonl", [done(line, {"title": title}) for line, title in enumerate(titles, 1)])
    make(work(folder, Format.MARKDOWN, each=True), folder / "marks")
    assert len(names(folder / "items")) == len(titles)
    assert names(tmp_path) == {f"inner/out/{name}" for name in names(folder)}


def test_without_a_folder_that_can_be_written_to_the_file_is_named(tmp_path: Path) -> None:
    write(tmp_path / "results.jsonl", ENTRIES)
    (tmp_path / "report.html").mkdir()
    with pytest.raises(InputError, match=r"cannot write '.*report\.html': Is a directory"):
        make(work(tmp_path, Format.HTML), tmp_path / "marks")
    assert names(tmp_path) == {"results.jsonl"}


def test_what_was_written_meanwhile_is_not_replaced_by_what_is_fetched(tmp_path: Path) -> None:
    """Two commands find no results on this machine; one has begun to write them when the other has fetched."""
    (tmp_path / "bucket").mkdir()
    (tmp_path / "bucket" / "results.jsonl").write_text("stored")
    store, mine = Store((tmp_path / "bucket").as_uri(), work=tmp_path / "work"), tmp_path / "results.jsonl"
    store.fetch(mine.name, mine)
    assert mine.read_text() == "stored"
    mine.write_text("written")
    store.fetch(mine.name, mine)
    assert mine.read_text() == "written"
    assert {path.name for path in tmp_path.iterdir()} == {"bucket", "results.jsonl"}


def test_a_place_that_cannot_be_written_to_is_told_also_before_a_store(tmp_path: Path) -> None:
    (tmp_path / "work").write_text("a file")
    (tmp_path / "folder").mkdir()
    store = Store((tmp_path / "bucket").as_uri(), work=tmp_path / "work")
    with pytest.raises(InputError, match=r"cannot write .*report\.html\.fresh"), store.writing("report.html"):
        pass
    with pytest.raises(InputError, match="cannot delete"):
        Folder(tmp_path).delete("folder")


def test_marks_that_are_none_of_ours_are_none(tmp_path: Path) -> None:
    for text in ("", "{", "[]", '{"made": 1}'):
        (tmp_path / "marks").write_text(text)
        assert read_marks(tmp_path / "marks") == Marks()
    write_marks(tmp_path / "marks", Marks({"a": "b"}, "msg"))
    assert read_marks(tmp_path / "marks") == Marks({"a": "b"}, "msg")
    assert names(tmp_path) == {"marks"}


def test_results_of_something_else_are_told(tmp_path: Path) -> None:
    (tmp_path / "results.jsonl").write_text("{}\n")
    with pytest.raises(InputError, match=r"cannot read the results '.*results\.jsonl'"):
        list(read_results(tmp_path / "results.jsonl"))


# -- object stores -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["file", "memory"])
def test_an_object_store_gets_reports_and_results_and_gives_them_back(scheme: str, tmp_path: Path) -> None:
    write(tmp_path / "results.jsonl", ENTRIES)
    url = f"file://{tmp_path}/a%20store" if scheme == "file" else "memory:///"
    store = Store(url, work=tmp_path / "work")
    made = make(work(tmp_path, Format.JSONL, *ALL, each=True, place=store), tmp_path / "marks")
    assert made == ["results.jsonl", "report.md", "report.html", "report.pdf", "items"]
    assert store.holds("items/00001-item-1.pdf")
    assert not store.holds("items/00002-item-2.pdf")
    store.fetch("results.jsonl", tmp_path / "back.jsonl")
    assert (tmp_path / "back.jsonl").read_bytes() == (tmp_path / "results.jsonl").read_bytes()
    store.fetch("none", tmp_path / "none")
    store.delete("report.md")
    store.delete("report.md")
    assert not store.holds("report.md")
    assert not (tmp_path / "none").exists()
    assert names(tmp_path / "work") == set()


@pytest.mark.parametrize("url", ["nonsense://x/y", "s3://", "://x"])
def test_a_url_of_no_store_is_told(url: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be used as an object store"):
        Store(url, work=tmp_path)


def test_credentials_in_a_url_are_not_shown(tmp_path: Path) -> None:
    assert Store("s3://user:secret@bucket/a", work=tmp_path).where("x") == "s3://bucket/a/x"
    with pytest.raises(ConfigurationError) as told:
        Store("nonsense://user:secret@host/a", work=tmp_path)
    assert "secret" not in str(told.value)
