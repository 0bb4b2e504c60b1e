"""Label selectors in the API's own notation (``app=x,tier in (a,b),!canary``), as `/scale` gives them.

Grammar: https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#label-selectors
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

Matches = Callable[[Mapping[str, str]], bool]

_KEY = r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?(/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?"
_SET = re.compile(rf"(?P<key>{_KEY})\s+(?P<operator>in|notin)\s*\(\s*(?P<values>[^()]*)\)")
_EQUAL = re.compile(rf"(?P<key>{_KEY})\s*(?P<operator>==|=|!=)\s*(?P<value>[-A-Za-z0-9_.]*)")
_EXISTS = re.compile(rf"(?P<not>!?)\s*(?P<key>{_KEY})")
_SEPARATOR = re.compile(r"\s*(,|$)\s*")


class SelectorError(ValueError):
    """The text is no label selector."""


@lru_cache(maxsize=4096)
def parse(selector: str) -> Matches:
    """A predicate on labels. An empty selector matches nothing: `/scale` leaves it empty when it does not know.

    Raises `SelectorError`.
    """
    text = selector.strip()
    if not text:
        return lambda labels: False
    tests: list[Matches] = []
    position = 0
    while position < len(text):
        test, position = _requirement(text, position)
        tests.append(test)
        separator = _SEPARATOR.match(text, position)
        if separator is None:
            raise SelectorError(f"label selector {selector!r}: unexpected text at character {position + 1}")
        position = separator.end()
    return lambda labels: all(test(labels) for test in tests)


def _requirement(text: str, position: int) -> tuple[Matches, int]:
    if match := _SET.match(text, position):
        key = match["key"]
        values = frozenset(value.strip() for value in match["values"].split(","))
        if match["operator"] == "in":
            return lambda labels: labels.get(key) in values, match.end()
        return lambda labels: labels.get(key) not in values, match.end()
    if match := _EQUAL.match(text, position):
        key, value = match["key"], match["value"]
        if match["operator"] == "!=":
            return lambda labels: labels.get(key) != value, match.end()
        return lambda labels: labels.get(key) == value, match.end()
    if match := _EXISTS.match(text, position):
        key = match["key"]
        if match["not"]:
            return lambda labels: key not in labels, match.end()
        return lambda labels: key in labels, match.end()
    raise SelectorError(f"label selector {text!r}: unexpected text at character {position + 1}")


def render(selector: Mapping[str, Any] | None) -> str:
    """A metav1.LabelSelector (matchLabels, matchExpressions) in that notation. None or empty -> empty text."""
    if not selector:
        return ""
    parts = [f"{key}={value}" for key, value in sorted((selector.get("matchLabels") or {}).items())]
    for item in selector.get("matchExpressions") or []:
        key, operator, values = item["key"], item["operator"], ",".join(item.get("values") or [])
        parts.append(
            {
                "In": f"{key} in ({values})",
                "NotIn": f"{key} notin ({values})",
                "Exists": key,
                "DoesNotExist": f"!{key}",
            }[operator]
        )
    return ",".join(parts)
