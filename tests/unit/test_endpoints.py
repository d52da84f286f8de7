"""Endpoints behind one model: their file, the headers of their limits, who is asked next, and who waits for whom."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from virtual_clock import run

from mosaic_queues.errors import ConfigurationError
from mosaic_tasks.engines.dialects import Dialect, Seam, arguments, simpler, unsuited
from mosaic_tasks.engines.endpoints import (
    AllRest,
    Endpoint,
    EndpointGroup,
    EndpointStanding,
    choose,
    load_endpoints,
    note_failure,
    note_success,
    rest,
)
from mosaic_tasks.engines.limits import asked_pause_s, reset_pause_s
from mosaic_tasks.engines.protocol import EngineRequest, Message
from mosaic_tasks.engines.refusals import Interpreter

NOW_S = 1_800_000_000.0  # 2027-01-15T08:00:00Z
FOREVER = float("inf")
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}

GOOD = """
llama:
  - url: http://10.0.0.7:8000/v1
    kind: vllm
    model: meta-llama/Llama-3.1-8B-Instruct
    concurrency: 64
    timeouts: {connect_s: 1, read_s: 30}
  - {url: https://user:secret@api.example.com/v1, key_env: EXAMPLE_KEY, weight: 0.5}
other: [{url: "http://localhost:1/v1"}]
"""


# The file


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "endpoints.yaml"


def wrong(file: Path, text: str) -> str:
    file.write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        load_endpoints(str(file))
    return str(caught.value)


def test_a_file_lists_the_endpoints_of_each_model(file: Path) -> None:
    file.write_text(GOOD)
    catalogue = load_endpoints(str(file))
    assert list(catalogue) == ["llama", "other"]
    first, second = catalogue["llama"]
    assert (first.kind, first.concurrency, first.timeouts.read_s) == ("vllm", 64, 30)
    assert first.model == "meta-llama/Llama-3.1-8B-Instruct"
    assert (second.model, second.key_env, second.weight) == ("llama", "EXAMPLE_KEY", 0.5)
    assert second.server == "api.example.com"


def test_the_variable_names_the_file_which_may_be_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "endpoints.json"
    file.write_text(json.dumps({"m": [{"url": "http://h/v1"}]}, indent="\t"))
    monkeypatch.setenv("MOSAIC_ENDPOINTS", str(file))
    assert load_endpoints()["m"] == (Endpoint(url="http://h/v1", model="m"),)
    monkeypatch.delenv("MOSAIC_ENDPOINTS")
    assert load_endpoints() == {}


@pytest.mark.parametrize(
    ("fields", "field", "told"),
    [
        ("{}", "url", "required"),
        ("{url: ftp://h/v1}", "url", "no http URL"),
        ("{url: 'http://h:port/v1'}", "url", "no http URL"),
        ("{url: http://h/v1, kind: vlm}", "kind", "not 'vlm'"),
        ("{url: http://h/v1, concurrency: 0}", "concurrency", "greater than or equal to 1, not 0"),
        ("{url: http://h/v1, weight: -1}", "weight", "greater than 0, not -1"),
        ("{url: http://h/v1, weight: .nan}", "weight", "finite"),
        ("{url: http://h/v1, concurency: 4}", "concurency", "did you mean 'concurrency'?"),
        ("{url: http://h/v1, timeouts: {read: 4}}", "timeouts.read", "did you mean 'read_s'?"),
        ("{url: http://h/v1, timeouts: {read_s: 0}}", "timeouts.read_s", "greater than 0, not 0"),
        ("{url: http://h/v1, key_env: sk-secret}", "key_env", "never the key itself"),
    ],
)
def test_a_mistake_is_told_with_file_model_endpoint_and_field(
    fields: str, field: str, told: str, file: Path
) -> None:
    message = wrong(file, f"big:\n  - url: http://h/v1\n  - {fields}\n")
    assert f"endpoints file {str(file)!r}, model 'big', endpoint 2, field {field!r}: " in message
    assert told in message
    assert "secret" not in message


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("big: []", "model 'big': "),
        ("big: http://h/v1", "model 'big': "),
        ("big: [http://h/v1]", "model 'big', endpoint 1: "),
        ("[1, 2]", "valid dictionary; write it like 'MODEL: ["),
        ("", "valid dictionary"),
        ("a: [", "neither YAML nor JSON"),
    ],
)
def test_a_file_of_another_form_is_told(text: str, told: str, file: Path) -> None:
    message = wrong(file, text)
    assert told in message
    assert str(file) in message


def test_all_mistakes_are_told_at_once(file: Path) -> None:
    assert len(wrong(file, "a: [{url: x}]\nb: [{url: y}, {kind: z}]").splitlines()) == 4


def test_a_file_that_is_not_there_is_told() -> None:
    with pytest.raises(ConfigurationError, match=r"MOSAIC_ENDPOINTS names 'no\.yaml', which cannot be read"):
        load_endpoints("no.yaml")


def test_what_may_hold_a_key_shows_none() -> None:
    endpoint = Endpoint(url="https://user:secret@h/v1")
    interpreter = Interpreter(endpoint.server, "secret", "KEY", endpoint.timeouts)
    assert "secret" not in repr((endpoint, interpreter))
    assert interpreter.shown("a secret") == "a ***"


# Rate limits


@pytest.mark.parametrize(
    ("headers", "pause_s"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after": "0"}, 0.0),
        ({"retry-after": "7", "retry-after-ms": "250"}, 0.25),
        ({"retry-after": "7", "retry-after-ms": "0"}, 0.0),
        ({"retry-after": "1m30s"}, 90.0),
        ({"retry-after": "Fri, 15 Jan 2027 08:00:20 GMT"}, 20.0),
        ({"retry-after": "Fri, 15 Jan 2027 07:00:00 GMT"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
    ],
)
def test_the_pause_that_a_server_asks_for(headers: dict[str, str], pause_s: float | None) -> None:
    assert asked_pause_s(headers, now_s=NOW_S) == pause_s


@pytest.mark.parametrize(
    ("reset", "pause_s"),
    [
        ("1s", 1.0),
        ("6m0s", 360.0),
        ("20ms", 0.02),
        ("0.5h2m3.5s", 1923.5),
        ("0.01d", 864.0),
        ("12", 12.0),
        ("1800000005", 5.0),
        ("1800000005000", 5.0),
        ("2027-01-15T08:00:05Z", 5.0),
        ("2027-01-15T08:00:05", 5.0),
        ("2027-01-15T09:00:05+01:00", 5.0),
        ("2027-01-15T07:00:00Z", 0.0),
        ("1x", 0.0),
        ("s1", 0.0),
        ("", 0.0),
    ],
)
def test_the_forms_of_a_reset(reset: str, pause_s: float) -> None:
    headers = {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": reset}
    assert reset_pause_s(headers, now_s=NOW_S) == pytest.approx(pause_s)


@pytest.mark.parametrize(
    ("headers", "pause_s"),
    [
        ({"x-ratelimit-remaining-requests": "1", "x-ratelimit-reset-requests": "9s"}, 0),
        ({"x-ratelimit-remaining-requests": "none", "x-ratelimit-reset-requests": "9s"}, 0),
        ({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "9s"}, 9),
        ({"x-ratelimit-remaining-tokens": "0"}, 0),
        ({"x-ratelimit-reset-tokens": "9s"}, 0),
        ({"ratelimit-remaining": "0", "ratelimit-reset": "9"}, 9),
        ({"x-ratelimit-remaining": "0", "x-ratelimit-reset": "1800000009000"}, 9),
        (
            {
                "anthropic-ratelimit-requests-remaining": "4",
                "anthropic-ratelimit-requests-reset": "2027-01-15T08:01:00Z",
                "anthropic-ratelimit-output-tokens-remaining": "0",
                "anthropic-ratelimit-output-tokens-reset": "2027-01-15T08:00:09Z",
            },
            9,
        ),
        (
            {
                "x-ratelimit-remaining-requests": "0",
                "x-ratelimit-reset-requests": "2s",
                "x-ratelimit-remaining-tokens": "0",
                "x-ratelimit-reset-tokens": "9s",
            },
            9,
        ),
    ],
)
def test_only_a_limit_that_is_used_up_pauses(headers: dict[str, str], pause_s: float) -> None:
    assert reset_pause_s(headers, now_s=NOW_S) == pause_s


@pytest.mark.parametrize(
    "pause", ["3601", "2h", "1d", "1899999999", "Fri, 15 Jan 2117 08:00:00 GMT", "9" * 400 + "s"]
)
def test_no_pause_is_believed_beyond_an_hour(pause: str) -> None:
    spent = {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": pause}
    assert asked_pause_s({"retry-after": pause}, now_s=NOW_S) == 3600
    assert asked_pause_s({"retry-after-ms": "1e12"}, now_s=NOW_S) == 3600
    assert reset_pause_s(spent, now_s=NOW_S) == 3600


# Who is asked


def standings(**endpoints: dict[str, Any]) -> list[EndpointStanding]:
    return [
        EndpointStanding(Endpoint(url=f"http://{name}/v1", **options)) for name, options in endpoints.items()
    ]


def takes(able: list[EndpointStanding], count: int) -> str:
    """The hosts that so many requests without an end go to."""
    hosts = []
    for _ in range(count):
        chosen = choose(able, now=0.0)
        assert chosen is not None
        chosen.in_use += 1
        chosen.taken += 1
        hosts.append(chosen.endpoint.server)
    return "".join(hosts)


def test_the_least_used_is_asked() -> None:
    assert takes(standings(a={}, b={}), 4) == "abab"


def test_use_is_relative_to_weight() -> None:
    assert sorted(takes(standings(a={"weight": 2}, b={"weight": 1}), 6)) == list("aaaabb")


def test_requests_one_after_the_other_are_spread_too() -> None:
    able = standings(a={}, b={})
    able[0].taken = 1
    assert takes(able, 1) == "b"


def test_what_rests_or_is_full_or_refuses_is_passed_over() -> None:
    able = standings(a={}, b={"concurrency": 1}, c={}, d={})
    able[0].rests_until = 1.0
    able[2].refuses = True
    assert takes(able, 3) == "bdd"
    able[3].rests_until = 1.0
    assert takes(able, 1) == "c"
    able[2].rests_until = 1.0
    assert choose(able, now=0.0) is None
    assert choose(able, now=1.0) is not None


def failed(standing: EndpointStanding, *, now: float, began: float) -> None:
    note_failure(standing, now=now, began=began, reason="it failed", pause_s=lambda failures: 2.0**failures)


def test_failures_that_were_under_way_together_count_once() -> None:
    (one,) = standings(a={})
    failed(one, now=1.0, began=0.0)
    failed(one, now=1.5, began=0.5)
    assert (one.failures, one.rests_until, one.reason) == (1, 3.5, "it failed")
    failed(one, now=4.0, began=3.5)
    assert (one.failures, one.rests_until) == (2, 8.0)


def test_an_answer_to_a_newer_request_makes_good() -> None:
    (one,) = standings(a={})
    failed(one, now=1.0, began=0.0)
    one.refuses = True
    note_success(one, began=0.5)
    assert (one.failures, one.refuses) == (1, True)
    note_success(one, began=3.0)
    assert (one.failures, one.refuses) == (0, False)


def test_a_rest_is_never_made_shorter() -> None:
    (one,) = standings(a={})
    rest(one, now=0.0, until=9.0, reason="long")
    rest(one, now=0.0, until=5.0, reason="short")
    assert (one.rests_until, one.reason) == (9.0, "long")


# Who waits


def now() -> float:
    return round(asyncio.get_running_loop().time(), 6)


async def place(group: EndpointGroup[EndpointStanding], **options: Any) -> tuple[float, str]:
    given = {"deadline": FOREVER, "longest_s": FOREVER, **options}
    taken = await group.take(**given)
    return now(), taken.endpoint.server


def test_a_place_that_is_given_back_goes_to_who_waits_longest() -> None:
    async def main() -> list[tuple[float, str]]:
        group = EndpointGroup(standings(a={"concurrency": 1}))
        await place(group)
        waiting = [asyncio.create_task(place(group)) for _ in range(3)]
        await asyncio.sleep(1)
        group.free(group.standings[0])
        assert await waiting[0] == (1.0, "a")
        assert not any(task.done() for task in waiting[1:])
        waiting[1].cancel()
        await asyncio.sleep(1)
        group.free(group.standings[0])
        assert await waiting[2] == (2.0, "a")
        group.free(group.standings[0])
        assert group.standings[0].in_use == 0
        return []

    run(main())


def test_one_that_is_cancelled_with_its_place_in_hand_hands_it_on() -> None:
    async def main() -> None:
        group = EndpointGroup(standings(a={"concurrency": 1}))
        await place(group)
        first, second = (asyncio.create_task(place(group)) for _ in range(2))
        await asyncio.sleep(1)
        group.free(group.standings[0])
        first.cancel()
        assert await second == (1.0, "a")
        assert group.standings[0].in_use == 1

    run(main())


def test_no_room_before_the_deadline_is_a_timeout() -> None:
    async def main() -> None:
        group = EndpointGroup(standings(a={"concurrency": 1}))
        await place(group)
        with pytest.raises(TimeoutError):
            await place(group, deadline=3.0)
        assert now() == 3.0

    run(main())


def test_when_all_rest_it_waits_for_the_first() -> None:
    async def main() -> None:
        group = EndpointGroup(standings(a={}, b={}))
        for one, until in zip(group.standings, (9.0, 4.0), strict=True):
            rest(one, now=0.0, until=until, reason="it fell over")
        assert await place(group, deadline=5.0) == (4.0, "b")

    run(main())


def test_those_who_waited_for_a_rest_come_back_spread() -> None:
    async def main() -> None:
        group = EndpointGroup(standings(a={}))
        rest(group.standings[0], now=0.0, until=4.0, reason="it fell over")
        times = [time for time, _ in await asyncio.gather(*(place(group, spread_s=2.0) for _ in range(20)))]
        assert all(4.0 <= time <= 6.0 for time in times)
        assert len(set(times)) > 10

    run(main())


def test_one_that_rests_is_taken_when_the_others_stay_full() -> None:
    async def main() -> None:
        group = EndpointGroup(standings(a={"concurrency": 1}, b={}))
        rest(group.standings[1], now=0.0, until=4.0, reason="it fell over")
        assert await place(group) == (0.0, "a")
        assert await place(group) == (4.0, "b")

    run(main())


def test_those_who_wait_for_room_learn_of_a_rest_that_began_meanwhile() -> None:
    async def main() -> None:
        group = EndpointGroup(standings(a={"concurrency": 1}))
        (one,) = group.standings
        await place(group)
        patient, late, cancelled = (
            asyncio.create_task(place(group, **options)) for options in ({}, {"deadline": 3.0}, {})
        )
        await asyncio.sleep(1)
        rest(one, now=1.0, until=4.0, reason="its limit is used up")
        group.free(one)
        cancelled.cancel()
        with pytest.raises(AllRest, match="its limit is used up; it rests for 3 s"):
            await late
        assert now() == 1.0
        async with asyncio.timeout(10):
            assert await patient == (4.0, "a")
        assert cancelled.cancelled()
        assert one.in_use == 1

    run(main())


def test_a_rest_is_learnt_of_also_when_another_endpoint_goes_to_who_waits_longest() -> None:
    async def main() -> None:
        group = EndpointGroup(standings(a={"concurrency": 1}, b={"concurrency": 1}))
        first, second = group.standings
        rest(second, now=0.0, until=2.0, reason="it fell over")
        await place(group)
        either, only_a = (
            asyncio.create_task(place(group, among=among)) for among in (group.standings, (first,))
        )
        await asyncio.sleep(1)
        second.rests_until = 0.0
        rest(first, now=1.0, until=4.0, reason="its limit is used up")
        group.free(first)
        assert await either == (1.0, "b")
        async with asyncio.timeout(10):
            assert await only_a == (4.0, "a")

    run(main())


@pytest.mark.parametrize("bound", [{"deadline": 3.0}, {"longest_s": 3.0}])
def test_a_rest_that_is_too_long_is_told_at_once(bound: dict[str, float]) -> None:
    async def main() -> None:
        group = EndpointGroup(standings(a={}))
        rest(group.standings[0], now=0.0, until=4.0, reason="it fell over")
        with pytest.raises(AllRest, match="it fell over; it rests for 4 s"):
            await place(group, **bound)
        assert now() == 0.0

    run(main())


def test_only_those_that_will_do_are_taken() -> None:
    async def main() -> None:
        group = EndpointGroup(standings(a={"concurrency": 1}, b={"concurrency": 1}))
        only_b = {"among": (group.standings[1],)}
        assert await place(group, **only_b) == (0.0, "b")
        waiting = asyncio.create_task(place(group, **only_b))
        await place(group)
        group.free(group.standings[0])
        await asyncio.sleep(1)
        assert not waiting.done()
        group.free(group.standings[1])
        assert await waiting == (1.0, "b")

    run(main())


# What servers understand


def sent(kind: str, dialect: Dialect | None = None, **options: Any) -> dict[str, Any]:
    request = EngineRequest((Message("user", "hi"),), model="m", **options)
    endpoint = Endpoint(url="http://h/v1", model="m-there", kind=kind)  # type: ignore[arg-type]
    return arguments(request, endpoint, dialect or Dialect())


def test_a_priority_is_for_vllm_alone() -> None:
    assert sent("vllm", priority=3)["extra_body"] == {"priority": 3}
    assert "extra_body" not in sent("vllm")
    assert "extra_body" not in sent("openai", priority=3)


def test_a_prefix_is_a_message_that_vllm_continues() -> None:
    asked = sent("vllm", prefix="one two \n", max_tokens=10)
    assert asked["messages"][-1] == {"role": "assistant", "content": "one two"}
    assert asked["extra_body"] == {"continue_final_message": True, "add_generation_prompt": False}
    assert asked["max_tokens"] == 7
    assert "extra_body" not in sent("vllm", prefix=" ")


def test_adapters_are_models_where_the_server_has_them() -> None:
    assert sent("vllm", adapter="tone")["model"] == sent("tgi", adapter="tone")["model"] == "tone"
    assert sent("ollama")["model"] == "m-there"


@pytest.mark.parametrize(
    ("kind", "options", "told"),
    [
        ("openai", {"adapter": "tone"}, "the adapter 'tone'"),
        ("ollama", {"prefix": "a"}, "without a prefix"),
        ("vllm", {"prefix": "a", "output_schema": SCHEMA}, "without a prefix"),
        ("vllm", {"prefix": "a", "adapter": "tone"}, ""),
    ],
)
def test_what_a_server_cannot_do_is_told(kind: Any, options: dict[str, Any], told: str) -> None:
    why = unsuited(Endpoint(url="http://h/v1", kind=kind), EngineRequest((), **options))
    assert told in (why or "")
    assert bool(why) == bool(told)


def test_tgi_takes_no_top_p_of_one() -> None:
    assert "top_p" not in sent("tgi", top_p=1.0)
    assert sent("tgi", top_p=0.5)["top_p"] == 0.5
    assert sent("openai", top_p=1.0)["top_p"] == 1.0


@pytest.mark.parametrize(
    ("kind", "form"),
    [
        ("openai", {"type": "json_object"}),
        ("tgi", {"type": "json_object", "value": SCHEMA}),
        ("llamacpp", {"type": "json_object", "schema": SCHEMA}),
    ],
)
def test_json_object_has_the_schema_where_the_server_reads_it(kind: str, form: dict[str, Any]) -> None:
    asked = sent(kind, Dialect(output="json_object"), output_schema=SCHEMA)
    assert asked["response_format"] == form


@pytest.mark.parametrize(
    ("kind", "options", "complaint", "change"),
    [
        ("vllm", {"priority": 3}, "Got priority 3 but Priority scheduling is not enabled.", {"priority"}),
        ("openai", {"priority": 3}, "a high priority problem", set()),
        ("openai", {"logprobs": True}, "logprobs are not supported with this model", {"logprobs"}),
        ("openai", {}, "logprobs are not supported with this model", set()),
        ("openai", {}, "unknown field `stream_options`", {"stream_options"}),
    ],
)
def test_what_an_answer_is_the_same_without_is_left_out(
    kind: Any, options: dict[str, Any], complaint: str, change: set[str]
) -> None:
    learnt = simpler(Dialect(), EngineRequest((), **options), kind, complaint)
    assert learnt.lacks == change
    assert simpler(learnt, EngineRequest((), **options), kind, complaint) == learnt


def test_an_array_s_schema_is_learnt_as_an_object_where_the_object_has_the_schema() -> None:
    request = EngineRequest((), output_schema={"type": "array"})
    complaint = "response_format: unknown variant `json_schema`"
    assert simpler(Dialect(), request, "tgi", complaint).output == "json_object"
    assert simpler(Dialect(), request, "openai", complaint).output == "prompt"


@pytest.mark.parametrize(
    ("prefix", "pieces", "rest_of_it"),
    [
        ("one", [" two"], " two"),
        ("one ", [" two"], "two"),
        ("one ", ["two"], "two"),
        ("one\n\n", ["\n", "\n", "\ntwo"], "\ntwo"),
        ("one \n", [" two"], "two"),
        ("one", ["two", " ", " "], "two  "),
        ("one \n", [" ", "two", "\n"], "two\n"),
    ],
)
def test_white_space_at_the_seam_comes_once(prefix: str, pieces: list[str], rest_of_it: str) -> None:
    seam = Seam(prefix)
    assert "".join(seam.join(piece) for piece in pieces) == rest_of_it
