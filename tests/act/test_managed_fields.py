from __future__ import annotations

from typing import Any

from crossover.api.managed_fields import MANAGER, REPLICAS, applied_by, container_path, extract, owners

LIVE: dict[str, Any] = {
    "metadata": {"annotations": {"ours": "1", "theirs": "2"}},
    "spec": {
        "replicas": 3,
        "template": {
            "spec": {
                "containers": [
                    {
                        "name": "server",
                        "image": "x",
                        "args": ["a", "b"],
                        "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
                        "ports": [{"containerPort": 1, "protocol": "TCP"}, {"containerPort": 2}],
                    },
                    {"name": "router"},
                ]
            }
        },
        "finalizers": ["one", "two"],
    },
}


def test_extract_takes_leaves_items_and_sets_and_nothing_else() -> None:
    fields = {
        "f:metadata": {"f:annotations": {"f:ours": {}, "f:gone": {}}},
        "f:spec": {
            "f:finalizers": {'v:"two"': {}},
            "f:template": {
                "f:spec": {
                    "f:containers": {
                        'k:{"name":"server"}': {
                            ".": {},
                            "f:name": {},
                            "f:args": {},
                            "f:env": {'k:{"name":"B"}': {".": {}, "f:name": {}, "f:value": {}}},
                            "f:ports": {'k:{"containerPort":2,"protocol":"TCP"}': {".": {}, "f:containerPort": {}}},
                        },
                        'k:{"name":"absent"}': {"f:args": {}},
                    }
                }
            },
        },
    }
    assert extract(LIVE, fields) == {
        "metadata": {"annotations": {"ours": "1"}},
        "spec": {
            "finalizers": ["two"],
            "template": {
                "spec": {
                    "containers": [
                        {
                            "name": "server",
                            "args": ["a", "b"],
                            "env": [{"name": "B", "value": "2"}],
                            "ports": [{"containerPort": 2, "protocol": "TCP"}],
                        }
                    ]
                }
            },
        },
    }


def test_extract_copies() -> None:
    taken = extract(LIVE, {"f:spec": {"f:finalizers": {}}})
    taken["spec"]["finalizers"].append("three")
    assert LIVE["spec"]["finalizers"] == ["one", "two"]


def test_owners_newest_first_and_ours_only_by_apply() -> None:
    args = {"f:spec": {"f:template": {"f:spec": {"f:containers": {'k:{"name":"server"}': {"f:args": {}}}}}}}
    entries = [
        {"manager": "kubectl", "operation": "Update", "time": "2026-01-01T00:00:00Z", "fieldsV1": args},
        {"manager": "helm", "operation": "Apply", "time": "2026-02-01T00:00:00Z", "fieldsV1": args},
        {"manager": MANAGER, "operation": "Update", "subresource": "scale", "fieldsV1": {"f:spec": {"f:replicas": {}}}},
    ]
    assert [owner.name for owner in owners(entries, container_path("server", "args"))] == ["helm", "kubectl"]
    assert [owner.name for owner in owners(entries, REPLICAS)] == [MANAGER]
    assert applied_by(entries, MANAGER) == {}
    assert applied_by(entries, "helm") == args
