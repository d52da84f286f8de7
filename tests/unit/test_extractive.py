"""The extractive engine: sentences, choice, schema filling. No word that the input lacks."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mosaic_queues.errors import EngineRefused, OutputInvalid
from mosaic_tasks.engines.extractive import ExtractiveEngine
from mosaic_tasks.engines.protocol import Completion, EngineRequest, Finished, Message, TextDelta, complete
from mosaic_tasks.engines.schema import mismatch
from mosaic_tasks.engines.sentences import split_blocks, split_sentences

FACTS = """Write about the release.

FACTS:
- The parser team merged 12 commits in 3 modules
- The crash of PROJ-12 in `parser/lexer.py` was fixed
- Closed ticket PROJ-12 in 3 days.
- Closed ticket PROJ-13 in 3 days.
- Closed ticket PROJ-13 in 3 days
- Severity: high
- The review is not finished, mail team@example.org by 2025-02-01
"""

PROSE = """Summarise the text in two sentences. Be brief.

The parser was rewritten this week. It now reads files of 3.5 GB. Lunch was good.
The new parser is ten times faster than the old parser. Version 3.11 ships on Friday.
"""


def ask(text: str, *, system: str = "", **options: Any) -> Completion:
    lead = (Message("system", system),) if system else ()
    request = EngineRequest((*lead, Message("user", text)), **options)
    return asyncio.run(complete(ExtractiveEngine(), request))


def fill(text: str, **properties: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    value = json.loads(ask(text, output_schema=schema).text)
    assert mismatch(value, schema) is None
    return dict(value)


@pytest.mark.parametrize(
    "sentences",
    [
        ["Python 3.11 is out.", "See setup.py.", "It fixes e.g. the bug in v. 2.0."],
        ["Ask Dr. Smith at 5 p.m. tomorrow.", "J. R. Hartley wrote it."],
        ["Run `make demo. Then stop` now.", "Visit https://a.example/c.d?e=1.", "Done!"],
        ["Really?!", '"Yes."', "He left... then came back."],
        ["Fig. 3 shows it.", "No. 5 is alive.", "No.", "I will not."],
        ["See foo.py.", "bar.py changed.", "a_b.c() works.", "In 2024.", "The end etc.", "It cost $3.50."],
        ["Use `a.b`.", "`c.d` is gone."],
    ],
)
def test_sentences_end_where_people_end_them(sentences: list[str]) -> None:
    assert split_sentences(" ".join(sentences)) == sentences


def test_sentences_without_white_space_are_split_at_wide_stops() -> None:
    assert split_sentences("これは。テスト！はい") == ["これは。", "テスト！", "はい"]


def test_list_items_are_sentences_and_fenced_code_is_none() -> None:
    blocks = split_blocks("# Done\n- one thing\n  goes on\n2. another\n\n```\ncode. More.\n```\nLast one.")
    assert [(block.heading, block.sentences) for block in blocks] == [
        ("# Done", ("one thing goes on", "another")),
        ("# Done", ("Last one.",)),
    ]


@settings(max_examples=60, deadline=None)
@given(st.text(alphabet="aB1.!? \n`-#:。", max_size=200))
def test_splitting_loses_nothing_but_white_space(text: str) -> None:
    assert "".join("".join(split_sentences(text)).split()) == "".join(text.split())


def test_facts_are_kept_in_order_and_repetitions_are_dropped() -> None:
    text = ask(FACTS).text
    assert (
        text.index("12 commits") < text.index("PROJ-12 in `parser/lexer.py`") < text.index("Severity: high.")
    )
    assert text.count("Closed ticket PROJ-13 in 3 days.") == 1
    assert "Closed ticket PROJ-12 in 3 days." in text
    assert "Write about" not in text


def test_headings_of_facts_stay_headings() -> None:
    text = ask("FACTS:\n## Done\n- The parser works\n\n## Problems\n- The release was reverted").text
    assert text == "## Done\n\nThe parser works.\n\n## Problems\n\nThe release was reverted."


def test_instructions_limit_the_sentences_and_are_not_repeated() -> None:
    answer = ask(PROSE)
    assert len(split_sentences(answer.text)) == 2
    assert "Summarise" not in answer.text
    assert "parser" in answer.text
    assert answer.finish_reason == "stop"


def test_a_limit_in_the_system_message_holds_too() -> None:
    assert len(ask(FACTS, system="Answer in at most 10 words.").text) <= 60


def test_the_same_input_gives_the_same_answer() -> None:
    assert ask(FACTS) == ask(FACTS)


@pytest.mark.parametrize("max_tokens", [5, 12, 30, 60])
def test_max_tokens_is_kept(max_tokens: int) -> None:
    assert 0 < len(ask(FACTS, max_tokens=max_tokens).text) <= max_tokens * 4


def test_a_sentence_longer_than_max_tokens_is_cut_between_words() -> None:
    answer = ask("FACTS:\n- The parser reads very large files", max_tokens=3)
    assert (answer.text, answer.finish_reason) == ("The parser", "length")


def test_stop_strings_end_the_answer() -> None:
    answer = ask(FACTS, stop=("PROJ-12",))
    assert answer.text.endswith("The crash of ")
    assert answer.finish_reason == "stop"


def test_the_answer_comes_sentence_by_sentence_and_tokens_are_counted() -> None:
    async def events() -> list[TextDelta | Finished]:
        request = EngineRequest((Message("user", FACTS),))
        return [event async for event in ExtractiveEngine().stream(request)]

    *deltas, last = asyncio.run(events())
    text = "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))
    assert len(deltas) == 6
    assert isinstance(last, Finished)
    assert last.usage.output_tokens == -(-len(text) // 4)
    assert (last.usage.cost_usd, last.usage.estimated) == (0.0, True)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(alphabet="abC 1.,`-_", max_size=40), max_size=12))
def test_no_word_is_invented(lines: list[str]) -> None:
    text = "FACTS:\n" + "\n".join(lines)
    try:
        answer = ask(text).text
    except EngineRefused:
        return
    assert set(re.findall(r"\w+", answer)) <= set(re.findall(r"\w+", text))


@pytest.mark.parametrize("text", ["", "FACTS:\n", "Write about it.\n\nFACTS:\n\n- \n"])
def test_nothing_to_write_from_is_refused(text: str) -> None:
    with pytest.raises(EngineRefused, match="FACTS"):
        ask(text)


@pytest.mark.timeout(10)
@pytest.mark.parametrize(
    "text",
    [
        "FACTS:\n"
        + "\n".join(f"- Module {n} changed {n * 7 % 13} times in area {n % 17}" for n in range(5000)),
        "e.g. " * 50_000,
        "." * 100_000 + "x",
        "One sentence of the text. " * 20_000,
        "line\n" * 50_000,
        "a" * 100_000,
        "a.b " * 30_000,
        "x " + "` x" * 20_000,
        "\n\n".join("word " * 2000 for _ in range(50)),
    ],
)
def test_long_input_takes_little_time(text: str) -> None:
    assert 0 < len(ask(text).text) <= 4096


def test_numbers_stand_near_the_field_s_name() -> None:
    filled = fill(FACTS, commit_count={"type": "integer"}, modules={"type": "integer", "maximum": 5})
    assert filled == {"commit_count": 12, "modules": 3}


def test_a_number_behind_its_label_comes_first() -> None:
    schema = {
        "type": "object",
        "properties": {name: {"type": "number"} for name in ("total_assets", "current_assets", "revenue")},
        "required": ["total_assets", "current_assets", "revenue"],
    }
    text = "FACTS:\nIn 2025 revenue rose\nTotal assets: 18.0 million\nCurrent assets: 7.5 million\nRevenue: 1,382.2"
    assert json.loads(ask(text, output_schema=schema).text) == {
        "total_assets": 18.0,
        "current_assets": 7.5,
        "revenue": 1382.2,
    }


def test_versions_and_keys_are_no_numbers() -> None:
    with pytest.raises(OutputInvalid, match=r"'release'.*no fitting number"):
        fill("FACTS:\n- The release 3.11.2 closes REL-7", release={"type": "integer"})


def test_enums_booleans_and_formats_are_read_off() -> None:
    assert fill(
        FACTS,
        severity={"enum": ["low", "high"]},
        review_finished={"type": "boolean"},
        crash={"type": "boolean"},
        due={"type": "string", "format": "date"},
        contact={"type": "string", "format": "email"},
        key={"type": "string", "pattern": r"^[A-Z]+-\d+$"},
    ) == {
        "severity": "high",
        "review_finished": False,
        "crash": True,
        "due": "2025-02-01",
        "contact": "team@example.org",
        "key": "PROJ-12",
    }


def test_strings_are_the_sentences_that_match_the_field() -> None:
    filled = fill(
        FACTS,
        review={"type": "string"},
        fix={"type": "string", "description": "the crash that was fixed"},
        severity={"type": "string"},
        headline={"type": "string", "maxLength": 20},
    )
    assert filled["review"].startswith("The review is not finished")
    assert filled["fix"].startswith("The crash of PROJ-12")
    assert filled["severity"] == "high"
    assert len(filled["headline"]) <= 20


def test_arrays_hold_distinct_sentences_and_objects() -> None:
    ticket = {
        "type": "object",
        "required": ["key"],
        "properties": {"key": {"type": "string", "pattern": "^PROJ-"}},
    }
    filled = fill(
        FACTS,
        points={"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 3},
        tickets={"type": "array", "items": ticket},
    )
    assert 1 <= len(set(filled["points"])) == len(filled["points"]) <= 3
    assert filled["tickets"] == [{"key": "PROJ-12"}, {"key": "PROJ-13"}]


def test_references_nullables_and_defaults_are_followed() -> None:
    schema = {
        "type": "object",
        "required": ["severity", "budget", "owner", "kind"],
        "properties": {
            "severity": {"$ref": "#/$defs/Severity"},
            "budget": {"anyOf": [{"type": "number"}, {"type": "null"}]},
            "owner": {"type": "integer", "default": 7},
            "kind": {"const": "report"},
            "velocity": {"type": "number"},
        },
        "$defs": {"Severity": {"enum": ["low", "high"]}},
    }
    answer = json.loads(ask(FACTS, output_schema=schema).text)
    assert answer == {"severity": "high", "budget": None, "owner": 7, "kind": "report"}


def test_a_schema_that_contains_itself_ends() -> None:
    node = {
        "type": "object",
        "required": ["text"],
        "properties": {
            "text": {"type": "string"},
            "children": {"type": "array", "items": {"$ref": "#/$defs/N"}},
        },
    }
    schema = {"$ref": "#/$defs/N", "$defs": {"N": node}}
    value = json.loads(ask(FACTS, output_schema=schema).text)
    assert mismatch(value, schema) is None


def test_a_required_field_that_is_not_said_is_named() -> None:
    with pytest.raises(OutputInvalid, match=r"'report\.mood'.*none of"):
        fill(
            FACTS,
            report={
                "type": "object",
                "required": ["mood"],
                "properties": {"mood": {"enum": ["glad", "sad"]}},
            },
        )


def test_a_wrong_schema_is_refused_by_name() -> None:
    with pytest.raises(EngineRefused, match="not a JSON Schema"):
        ask(FACTS, output_schema={"type": "strnig"})
