"""Templates say much, reach nothing and end soon."""

from __future__ import annotations

from typing import Any

import pytest

from mosaic_queues.errors import BindingError
from mosaic_tasks.definition import sandbox
from mosaic_tasks.definition.templates import TemplateProblem, evaluate, names_in, names_in_expression, render

PERSON = {"name": "Ann", "items": [3, 1, 2], "team": {"size": 4}}


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("Hello {{ p.name }}", "Hello Ann"),
        ("{{ p.items }}", "[3, 1, 2]"),
        ("{{ p }}", '{"name": "Ann", "items": [3, 1, 2], "team": {"size": 4}}'),
        (
            "{% for i in p['items'] | sort %}{{ loop.index }}:{{ i }}{{ ', ' if not loop.last }}{% endfor %}",
            "1:1, 2:2, 3:3",
        ),
        ("{% for key, value in p.team.items() %}{{ key }}={{ value }}{% endfor %}", "size=4"),
        ("{% for i in range(2) %}\n- {{ i }}\n{% endfor %}\n", "- 0\n- 1\n"),
        (
            "{% set ns = namespace(n=0) %}{% for i in p['items'] %}"
            "{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}",
            "6",
        ),
        ("{{ p.missing | default('none') }} {{ p.missing is defined }}", "none False"),
        ("{{ p['items'] | join(', ') }} {{ p['items'] | sum }} {{ 'a b'.split() | length }}", "3, 1, 2 6 2"),
        (
            "{{ 'x' ~ 1 ~ none }} {{ 2 * 3 }} {{ 'ab' * 2 }} {{ 'abc'.replace('b', '-') | upper }}",
            "x1None 6 abab A-C",
        ),
        ("{% for g in xs | groupby('k') %}{{ g.grouper }}{{ g.list | length }} {% endfor %}", "a2 b1 "),
        ("{{ xs | map(attribute='k') | unique | list | tojson }} {{ 2.345 | round(1) }}", '["a", "b"] 2.3'),
        (
            "{% set s %}a{{ 1 }}{% endset %}{{ s | indent(2, true) }}{% filter upper %}b{% endfilter %}",
            "  a1B",
        ),
        ("<b>{{ '<i>' }}</b>", "<b><i></b>"),
    ],
)
def test_a_template_renders(source: str, text: str) -> None:
    assert render(source, {"p": PERSON, "xs": [{"k": "a"}, {"k": "a"}, {"k": "b"}]}) == text


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (
            "{% for i in range(1000) %}{% for j in range(1000) %}{% endfor %}{% endfor %}",
            "loops more than 100,000 times",
        ),
        ("{% for i in range(10 ** 9) %}{% endfor %}", "a range of 1,000,000,000"),
        ("{% set x = 'a' %}" + "{% set x = x ~ x %}" * 60, "a text of more than"),
        ("{% set x = ['a'] %}" + "{% set x = [x, x] %}" * 60 + "{{ x }}", "more than 16,777,216"),
        ("{% set x = ['a'] %}" + "{% set x = x + x %}" * 60, "more than 16,777,216"),
        (
            "{% set x = [1, 2] | map(attribute='z', default=['a']) | list %}" * 2 + "{{ x * 9 }}",
            "multiplies something",
        ),
        ("{{ 9 ** 9 ** 9 ** 9 ** 9 }}", "a number that is too large"),
        ("{{ 'a' * 10 ** 10 }}", "a text of more than"),
        ("{{ '%999999999d' % 1 }}", "% on something else than numbers"),
        ("{{ ('a' * 4000000).replace('a', 'bb') }}", "a text of more than"),
        ("{{ [big] * 9 }}", "multiplies something else"),
        ("{% set s %}{% for i in range(99999) %}{{ big }}{% endfor %}{% endset %}", "more than 16,777,216"),
        ("{% for i in range(99999) %}" + "x" * 999 + "{% endfor %}", "more than 16,777,216"),
        ("{{ big }}{{ big }}{{ big }}{{ big }}{{ big }}", "a text of more than"),
        ("{{ [[1]] | sum(start=[]) }}", "only numbers can be summed"),
        ("{{ namespace(a=1) }}", "uses a Namespace as data"),
        ("{{ namespace(a=1) | string }}", "filters a namespace"),
        ("{{ p.items | map('upper') }}", "use |list on what is lazy"),
    ],
)
def test_a_template_that_would_run_or_grow_without_end_is_stopped(source: str, reason: str) -> None:
    with pytest.raises(BindingError) as caught:
        render(source, {"big": "x" * 1_000_000, "p": PERSON})
    assert reason in str(caught.value)


def test_a_slow_template_is_stopped_by_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "MAX_S", 0.2)
    with pytest.raises(BindingError, match=r"takes longer than 0\.2 s"):
        render(
            "{% for i in range(90000) %}{{ xs | sort | length }}{% endfor %}",
            {"xs": list(range(20_000, 0, -1))},
        )


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{{ ''.__class__ }}", "'__class__' begins with an underscore"),
        ("{{ x['__class__'] }}", "'__class__' begins with an underscore"),
        ("{{ x._private }}", "'_private' begins with an underscore"),
        ("{{ x | attr('__class__') }}", "no filter 'attr'"),
        ("{{ x | uper }}", "no filter 'uper'; did you mean 'upper'?"),
        ("{% if x is evn %}{% endif %}", "no test 'evn'; did you mean 'even'?"),
        ("{% macro f() %}{{ f() }}{% endmacro %}", "macro is not allowed"),
        ("{% include 'x' %}", "include is not allowed"),
        ("{% extends 'x' %}", "extends is not allowed"),
        ("{% import 'x' as y %}", "import is not allowed"),
        ("{% for i in x recursive %}{% endfor %}", "recursive loops are not allowed"),
        ("a\n{% if %}", "(line 2 of the template)"),
        ("{{ x", "unexpected end of template"),
        ("{{ " + "(" * 5000, "nested too deeply"),
        ("x" * 300_000, "the template has 300,000 characters"),
    ],
)
def test_a_template_that_cannot_be_used_is_refused_before_a_run(source: str, reason: str) -> None:
    with pytest.raises(TemplateProblem) as caught:
        names_in(source)
    assert reason in str(caught.value)
    with pytest.raises(BindingError):
        render(source, {"x": 1})


@pytest.mark.parametrize(
    "source",
    [
        "{{ x['__cl' ~ 'ass__'] }}",
        "{{ [x] | map(attribute='__class__') | list }}",
        "{{ x.format(1) }}",
        "{{ x.join }}",
        "{{ f.read() }}",
        "{{ [1].append(2) }}",
        "{{ range.__init__ if false else lipsum }}"[:0] + "{{ lipsum }}",
        "{{ self }}",
    ],
)
def test_what_is_reached_for_only_at_run_time_is_not_there(source: str) -> None:
    with pytest.raises(BindingError):
        render(source, {"x": "text", "f": object()})


def test_a_missing_key_names_the_nearest() -> None:
    with pytest.raises(
        BindingError, match=r"no 'nam' here; it has: name, items, team; did you mean 'name'\?"
    ):
        render("{{ p.nam }}", {"p": PERSON})


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("p['items'] | length > 2", True),
        ("p.team.size == 5 or not p", False),
        ("p.team", {"size": 4}),
        ("1 + 1", 2),
    ],
)
def test_an_expression_has_a_value(expression: str, value: Any) -> None:
    assert evaluate(expression, {"p": PERSON}) == value


@pytest.mark.parametrize("expression", ["p.nam", "p.nam | length", "q", "1 / 0", "p.name > 1"])
def test_an_expression_that_fails_is_not_simply_false(expression: str) -> None:
    with pytest.raises(BindingError):
        evaluate(expression, {"p": PERSON})


@pytest.mark.parametrize("expression", ["1 +", "a b", "{{ a }}", "", "a.__class__"])
def test_a_bad_expression_is_refused(expression: str) -> None:
    with pytest.raises(TemplateProblem):
        names_in_expression(expression)


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("{% for x in x.xs %}{{ x }}{% endfor %}", {"x"}),
        ("{% for x in xs %}{{ x.y }}{% else %}{{ x }}{% endfor %}", {"x", "xs"}),
        (
            "{% for k, v in xs if v > limit %}{{ k }}{% for x in v %}{{ x }}{{ k }}{% endfor %}{% endfor %}",
            {"xs", "limit"},
        ),
        ("{% for x in xs %}{% endfor %}{{ x }}", {"x", "xs"}),
        ("{% set x = 1 %}{{ x }}{% with y = z %}{{ y }}{% endwith %}", {"z"}),
        ("{% if a %}{% set x = 1 %}{% endif %}{{ x }}", {"a", "x"}),
        ("{% set ns = namespace(n=a) %}{% set ns.n = b %}{{ ns.n }}", {"a", "b"}),
    ],
)
def test_scopes_of_names_are_those_of_jinja(source: str, names: set[str]) -> None:
    assert names_in(source) == names


def test_names_are_those_that_a_template_needs_from_outside() -> None:
    source = "{{ a.b }}{% for x in xs %}{{ x }}{{ loop.index }}{% endfor %}{% set c = c ~ 1 %}{{ range(3) }}"
    assert names_in(source) == {"a", "xs", "c"}
    assert names_in_expression("a.b > c and d is defined") == {"a", "c", "d"}
