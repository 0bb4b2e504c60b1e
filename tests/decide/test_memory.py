"""What survives a restart, and that nothing in status can break the next start."""

from crossover.api.decision import Change, DecisionReason, Memory
from crossover.api.resources.status import Memory as StatusMemory
from crossover.decide import from_json, plan, to_json, with_changes
from crossover.decide.memory import MAX_REPLICA_CHANGES, trimmed
from tests.decide.fleets import INTENT, NOW, fleet

FULL = Memory(
    changes=(
        Change(NOW - 50, "draft", 7, 0, 41.3, 5210.0, 44.0),
        Change(NOW - 10, "replicas", 3, 5),
    ),
    correction={"draft-3": 1.07, "off": 0.95},
    latched=DecisionReason.THRESHOLD_CYCLES,
)


def test_what_must_survive_survives():
    assert from_json(to_json(FULL)) == FULL


def test_the_status_schema_takes_it_whole():
    document = to_json(FULL)
    kept = StatusMemory.model_validate(document).model_dump(by_alias=True, exclude_none=True)
    assert kept == document


def test_a_steady_fleet_changes_nothing_in_status():
    memory, documents = Memory(), []
    for n in range(10):
        memory = plan(fleet(30.0, 30.0, at=NOW + 5 * n), INTENT, memory).memory
        documents.append(to_json(memory))
    assert documents == [{}] * 10


def test_what_cannot_be_read_is_dropped():
    broken = {
        "changes": [
            7,
            {"kind": "draft"},
            {"atSeconds": "nan", "kind": "draft"},
            {"atSeconds": 1, "kind": "other"},
            {"atSeconds": 5, "kind": "draft", "fromValue": "x", "toValue": 0, "runningRequests": []},
        ],
        "corrections": [{"curve": "a"}, {"curve": "b", "factor": "-1"}, {"curve": "c", "factor": "1.2"}],
        "latched": "Nonsense",
    }
    assert from_json(broken) == Memory(changes=(Change(5.0, "draft", None, 0),), correction={"c": 1.2})
    assert from_json({"changes": "none", "corrections": 3}) == Memory()


def test_a_decision_that_was_not_carried_out_leaves_no_change():
    decision = plan(fleet(64.0, 64.0), INTENT, Memory())
    assert decision.replicas.target == 4
    assert with_changes(decision.memory, decision, replicas=False, draft=False).changes == ()
    carried_out = with_changes(decision.memory, decision, replicas=True, draft=True)
    assert [(change.kind, change.from_value, change.to_value) for change in carried_out.changes] == [("replicas", 2, 4)]


def test_many_changes_are_folded_and_still_count_in_full():
    changes = tuple(Change(NOW - 99 + n, "replicas", 10 + 4 * n, 14 + 4 * n) for n in range(100))
    kept = trimmed(changes, NOW)
    assert len(kept) == MAX_REPLICA_CHANGES
    assert sum(change.to_value - change.from_value for change in kept) == 400
    assert kept[1:] == changes[-MAX_REPLICA_CHANGES + 1 :], "the young ones as they were"


def test_draft_changes_outlive_any_policy_period():
    changes = (Change(NOW - 90_000, "draft", 7, 0), Change(NOW - 90_000, "replicas", 2, 3))
    assert trimmed(changes, NOW) == changes[:1]
