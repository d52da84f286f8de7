"""Numbers as people and models write them: `$1,234.50`, `1.234,5`, `1 1/2`, `\\frac{3}{4}`, `75%`, `2 million`.

A number is read exactly, as a fraction. What it counts is left aside: `18`, `$18` and `18 dollars` are one number. So
is the percent sign, as graders of GSM8K and MATH leave it aside: asked for a percentage, one expert writes `75%` and
the next `75`. That `75%` may also mean `0.75` is for `agreement` to say, which sees what the others wrote.

Separators. A point is decimal and a comma separates thousands (`1.234`, `1,234`), unless the writing proves otherwise:
`1.234,5`, `1.234.567`, `1,5` and `0,125` are read as in most of Europe. Groups may have two digits, as in India
(`12,34,567`), and may be separated by spaces or apostrophes.
"""

from __future__ import annotations

import ast
import operator
import re
import unicodedata
from collections.abc import Callable
from fractions import Fraction

_MAX_DIGITS = 60
_MAX_EXPONENT = 60
"""Beyond them a number is none: keys stay short, and `1e999999999` costs nothing."""

NUMBER = re.compile(
    r"""(?<![\w.,])(?P<sign>[-+]?+)(?P<currency>[$€£¥₹]?+)[ ]?+(?P<inner>-?+)
    (?:(?P<mixed>\d{1,9}+)[ ](?=\d{1,9}[ ]?/[ ]?\d))?+
    (?P<digits>
        \d{1,3}(?:,\d{3}){1,30}+(?:\.\d++)?+(?![,.]?\d)
      | \d{1,2}(?:,\d{2}(?!\d)){1,30}+,\d{3}(?:\.\d++)?+(?![,.]?\d)
      | \d{1,3}(?:\.\d{3}){1,30}+,\d++(?![,.]?\d)
      | \d{1,3}(?:\.\d{3}){2,30}+(?![,.]?\d)
      | \d{1,3}(?:[ '’\u00a0\u2009\u202f]\d{3}){1,30}+(?:[.,]\d++)?+(?![,.]?\d)
      | \d++,\d++(?![,.]?\d)
      | \d++(?:\.\d++)?+
      | \.\d++
    )
    (?:(?:[eE]|[ ]?+[×x*·][ ]?+10(?:\^|\*\*)?+)\{?(?P<exponent>[-+]?\d{1,9}+)\}?)?+
    (?:[ ]?+/[ ]?+(?P<denominator>\d{1,60}+)(?![\w/]))?+
    (?:[ ]?+(?P<scale>[kK](?!\w)|(?:thousand|million|billion|trillion)s?\b|(?:mn|bn|[MB])(?!\w)))?+
    (?P<percent>[ ]?+(?:%|percent\b|per\ cent\b))?+""",
    re.VERBOSE,
)
_CALCULATION = re.compile(r"[-+*/(). \d]++")
_DATE = re.compile(r"\d++(?:[-/]\d++)++")
"""Or a range: `10-15`."""
_MAX_FORMULA = 200
_OPERATIONS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}

_SCALES = {
    "k": 3,
    "thousand": 3,
    "m": 6,
    "mn": 6,
    "million": 6,
    "b": 9,
    "bn": 9,
    "billion": 9,
    "trillion": 12,
}
_OF_MONEY = frozenset({"m", "mn", "b", "bn"})
"""Scales that elsewhere may be units."""

_FRACTION = re.compile(r"\\[dtc]?frac\s*+(?:\{\s*+(-?\d++)\s*+\}|(\d))\s*+(?:\{\s*+(\d++)\s*+\}|(\d))")
_VULGAR = re.compile("(\\d?)([¼½¾⅓⅔⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞])")
_WRAPPED = re.compile(r"\\(?:text|mathrm|mathbf|textbf|mbox|operatorname)\s*+\{([^{}]*+)\}")
_SIZES = re.compile(r"\\(?:left|right|displaystyle)\b|\\[!;:]|\\\(|\\\)|\\\[|\\\]|\*\*|`")
_SPELLED = (
    ("\\$", "$"),
    ("\\%", "%"),
    ("{,}", ","),
    ("\\,", " "),
    ("\\times", "×"),
    ("\\cdot", "·"),
    ("\\approx", "≈"),
    ("\\circ", "°"),
    ("−", "-"),
    ("–", "-"),
    ("~", " "),
)
_POWERS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
_RAISED = re.compile("10([⁻]?[⁰¹²³⁴⁵⁶⁷⁸⁹]++)")


def plain(text: str) -> str:
    """`text` without LaTeX and Markdown around its numbers; fractions as `3/4`."""
    for written, meant in _SPELLED:
        text = text.replace(written, meant)
    text = _SIZES.sub("", _WRAPPED.sub(r" \1", text))
    text = _FRACTION.sub(_as_slash, text)
    text = _VULGAR.sub(_as_mixed, text)
    text = _RAISED.sub(lambda found: f"10^{found[1].translate(_POWERS)}", text)
    return text.replace("$$", "").strip().strip("$" if text.count("$") % 2 == 0 else "").strip()


def _as_slash(found: re.Match[str]) -> str:
    """A LaTeX fraction; with a space behind a whole number, of which it makes a mixed one."""
    mixed = found.start() and found.string[found.start() - 1].isdigit()
    return f"{' ' if mixed else ''}{found[1] or found[2]}/{found[3] or found[4]}"


def _as_mixed(found: re.Match[str]) -> str:
    """One character for a fraction, in its parts: Unicode says `1⁄2` of `½`."""
    return f"{found[1]} {unicodedata.normalize('NFKC', found[2]).replace('⁄', '/')}"


def value_of(found: re.Match[str]) -> Fraction | None:
    """The number that `NUMBER` found; None where it has no value, or more digits than anybody counts."""
    whole = _decimal(found["digits"])
    exponent = int(found["exponent"] or 0)
    denominator = int(found["denominator"] or 1)
    if whole is None or abs(exponent) > _MAX_EXPONENT or not denominator:
        return None
    value: Fraction = whole * Fraction(10) ** exponent / denominator + int(found["mixed"] or 0)
    value *= 10 ** _scale(found)
    return -value if "-" in (found["sign"], found["inner"]) else value


def arithmetic(text: str) -> Fraction | None:
    """The value of a calculation that was left undone, `42 - (15 + 18)`; None where it is none."""
    text = text.replace("×", "*").replace("·", "*").replace("$", "").strip()
    if len(text) > _MAX_FORMULA or not _CALCULATION.fullmatch(text) or _DATE.fullmatch(text):
        return None
    try:
        value = _evaluated(ast.parse(text, mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, KeyError, MemoryError):
        return None
    return value if len(str(value)) <= 2 * _MAX_DIGITS else None


def _evaluated(node: ast.expr) -> Fraction:
    match node:
        case ast.Constant(int() | float() as number):
            return Fraction(str(number))
        case ast.UnaryOp(ast.USub(), operand):
            return -_evaluated(operand)
        case ast.BinOp(left, operator_, right):
            return _OPERATIONS[type(operator_)](_evaluated(left), _evaluated(right))
    raise ValueError(f"{type(node).__name__} is no arithmetic")


def _scale(found: re.Match[str]) -> int:
    name = (found["scale"] or "").lower().removesuffix("s")
    if name in _OF_MONEY and not found["currency"]:
        return 0
    return _SCALES.get(name, 0)


def _decimal(digits: str) -> Fraction | None:
    """The value of digits with their separators."""
    if len(digits) > _MAX_DIGITS:
        return None
    digits = re.sub("[ '’\u00a0\u2009\u202f]", "", digits)
    last = max(digits.rfind(","), digits.rfind("."))
    if last < 0:
        return Fraction(int(digits))
    whole, part = re.sub("[.,]", "", digits[:last]) or "0", digits[last + 1 :]
    if _is_decimal(digits, last):
        return Fraction(int(whole + part), 10 ** len(part))
    return Fraction(int(whole + part))


def _is_decimal(digits: str, last: int) -> bool:
    """Whether the last separator parts off decimals."""
    mark, other = digits[last], "," if digits[last] == "." else "."
    if digits.count(mark) > 1:
        return False
    if other in digits or mark == ".":
        return True
    return len(digits) - last != 4 or last > 3 or digits[0] == "0"


__all__ = ["NUMBER", "arithmetic", "plain", "value_of"]
