from __future__ import annotations

import pytest

from crossover.cluster.selectors import SelectorError, parse, render

LABELS = {"app": "llama", "tier": "gpu", "example.org/role": "leader", "empty": ""}


@pytest.mark.parametrize(
    ("selector", "matches"),
    [
        ("app=llama", True),
        ("app==llama", True),
        ("app = llama , tier = gpu", True),
        ("app=other", False),
        ("app!=other", True),
        ("missing!=x", True),
        ("tier in (cpu, gpu)", True),
        ("tier in (cpu)", False),
        ("tier notin (cpu)", True),
        ("missing notin (cpu)", True),
        ("missing in (cpu)", False),
        ("app", True),
        ("missing", False),
        ("!missing", True),
        ("!app", False),
        ("example.org/role=leader", True),
        ("example.org/role in (leader),app=llama,!canary", True),
        ("empty=", True),
        ("inside=1", False),
        ("", False),
    ],
)
def test_matches_as_the_api_does(selector: str, matches: bool) -> None:
    assert parse(selector)(LABELS) is matches


@pytest.mark.parametrize("selector", ["=x", "app=a b", "app in gpu", "a,,b", "tier in (a", "app=(x)"])
def test_what_is_no_selector_is_refused(selector: str) -> None:
    with pytest.raises(SelectorError):
        parse(selector)


def test_renders_a_label_selector_object() -> None:
    text = render(
        {
            "matchLabels": {"tier": "gpu", "app": "llama"},
            "matchExpressions": [
                {"key": "a", "operator": "In", "values": ["x", "y"]},
                {"key": "b", "operator": "NotIn", "values": ["z"]},
                {"key": "c", "operator": "Exists"},
                {"key": "d", "operator": "DoesNotExist"},
            ],
        }
    )
    assert text == "app=llama,tier=gpu,a in (x,y),b notin (z),c,!d"
    assert parse(text)({"app": "llama", "tier": "gpu", "a": "y", "c": ""})
    assert not parse(text)({"app": "llama", "tier": "gpu", "a": "y", "c": "", "d": ""})
    assert render({}) == ""
