"""subscribePattern is Java's language: each row was asked of java.util.regex.Pattern (17).

What is refused (None) Java refuses too, but for what has no counterpart: a few properties, flags in the
middle or for comments, and a class that begins or ends with &&.
"""

from __future__ import annotations

import pytest
from tidegate.spark.java_pattern import PatternError, compile_java_pattern

NAMES = ("flights", "flights-2", "flights.eu", "FLIGHTS", "a", "b1", "x_y", "late.eu-west.1", "+")


@pytest.mark.parametrize(
    ("expression", "matching"),
    [
        ("flights.*", ["flights", "flights-2", "flights.eu"]),
        (r"flights\.eu", ["flights.eu"]),
        (r"\Qflights.\Eeu", ["flights.eu"]),
        (r"\Qflights", ["flights"]),
        ("[a-z&&[^b]]+", ["flights", "a"]),
        ("[a-z&&[aeiou]]", ["a"]),
        ("[a-c[x-z_]]+", ["a", "x_y"]),
        ("[^a-z.]+", ["FLIGHTS", "+"]),
        ("[^[a-z][.]]+", ["FLIGHTS", "+"]),
        (r"\p{Lower}+", ["flights", "a"]),
        (r"\P{Lower}+", ["FLIGHTS", "+"]),
        (r"\p{javaLowerCase}", None),
        (r"\p{IsAlphabetic}", None),
        (r"[\p{Alpha}&&[^\p{Upper}]]+", ["flights", "a"]),
        (r"\w+", ["flights", "FLIGHTS", "a", "b1", "x_y"]),
        (r"\w\d", ["b1"]),
        (r"[\w.-]+\.\d", ["late.eu-west.1"]),
        ("(?i)flights", ["flights", "FLIGHTS"]),
        ("(?i)flight\u017f", []),
        ("(?i)[^f]lights", []),
        ("(?i)[^b]lights", ["flights", "FLIGHTS"]),
        ("(?i)[a-z&&[^F]]+", ["a"]),
        (r"(?i)\P{Lower}+", ["+"]),
        (r"(?i)[\QF\E]lights", ["flights", "FLIGHTS"]),
        ("(?:(?i:x)|[^F])lights", ["flights"]),
        ("(?i:F)lights", ["flights"]),
        ("(?<name>a|b)1?", ["a", "b1"]),
        (r"(?<l>[a-z])_(?!\k<l>).", ["x_y"]),
        ("a|b.", ["a", "b1"]),
        (r"fl(?=ights\z)\w++", ["flights"]),
        ("flights(?>-2|.eu)?", ["flights", "flights-2", "flights.eu"]),
        (r"\x61|\u0062\x{31}", ["a", "b1"]),
        (r"[+-]", ["+"]),
        (r"[a\-z]", ["a"]),
        ("[]a]", ["a"]),
        ("[a&&b]", []),
        (r"^b\d{1,2}$", ["b1"]),
        ("[", None), ("a{,2}", None), ("{", None), ("*", None), ("(?P<n>a)", None), ("[z-a]", None),
        ("(a", None), (r"\y", None),
        (r"\p{Nonsense}", None), ("a(?i)b", None), ("\\", None), (r"\k<none>", None),
        ("(?<n>a)(?<n>b)", None), ("(?a)flights", None), ("(?x)a b1", None),
        ("a{99999999999999999999}", None), (r"\x{110000}", None), ("[&&a]", None), ("[a&&]", None),
    ],
)  # fmt: skip
def test_names_match_as_they_do_in_java(expression: str, matching: list[str] | None) -> None:
    if matching is None:
        with pytest.raises(PatternError):
            compile_java_pattern(expression)
    else:
        pattern = compile_java_pattern(expression)
        assert [name for name in NAMES if pattern.fullmatch(name)] == matching


def test_an_expression_that_is_nested_without_end_is_refused() -> None:
    with pytest.raises(PatternError):
        compile_java_pattern("[" * 100_000)
