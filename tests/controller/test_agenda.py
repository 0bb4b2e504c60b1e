"""The keyed queue: one worker per key, nothing lost."""

from hypothesis import given
from hypothesis import strategies as st

from crossover.controller.agenda import Agenda


def test_takes_the_key_that_is_due_longest():
    agenda: Agenda[str] = Agenda()
    agenda.want("b", 2.0)
    agenda.want("a", 1.0)
    assert agenda.take(0.5) is None
    assert agenda.take(5.0) == "a"
    assert agenda.take(5.0) == "b"
    assert agenda.take(5.0) is None


def test_an_event_brings_a_key_forward_but_never_back():
    agenda: Agenda[str] = Agenda()
    agenda.want("a", 10.0)
    agenda.want("a", 3.0)
    agenda.want("a", 20.0)
    assert agenda.next_due() == 3.0
    assert agenda.take(3.0) == "a"


def test_an_event_during_work_is_not_lost_and_does_not_run_twice_at_once():
    agenda: Agenda[str] = Agenda()
    agenda.want("a", 0.0)
    assert agenda.take(0.0) == "a"
    agenda.want("a", 1.0)
    assert agenda.take(5.0) is None
    agenda.done("a", next_at_seconds=30.0)
    assert agenda.take(1.0) == "a"


def test_a_deleted_key_does_not_come_back():
    agenda: Agenda[str] = Agenda()
    agenda.want("a", 0.0)
    agenda.take(0.0)
    agenda.done("a", None)
    agenda.want("b", 1.0)
    agenda.drop("b")
    assert agenda.next_due() is None
    assert len(agenda) == 0


operations = st.lists(
    st.tuples(st.sampled_from(["want", "take", "done"]), st.sampled_from("abc"), st.integers(0, 50)), max_size=60
)


@given(operations)
def test_never_hands_a_key_out_twice_and_never_forgets_one(steps):
    agenda: Agenda[str] = Agenda()
    working: set[str] = set()
    expected: dict[str, int] = {}
    again: dict[str, int] = {}
    for action, key, time in steps:
        if action == "want":
            target = again if key in working else expected
            target[key] = min(target.get(key, time), time)
            agenda.want(key, time)
        elif action == "take":
            taken = agenda.take(time)
            due = [name for name, at in expected.items() if at <= time]
            assert (taken is None) == (not due)
            if taken is not None:
                assert taken not in working
                assert expected[taken] == min(expected[name] for name in due)
                working.add(taken)
                del expected[taken]
        elif key in working:
            working.discard(key)
            agenda.done(key, time)
            expected[key] = min(time, again.pop(key, time))
    assert agenda.next_due() == (min(expected.values()) if expected else None)
