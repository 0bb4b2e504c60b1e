"""What is compared with what: the search, and the verdict at equal or better attainment."""

from dataclasses import replace

import pytest

from crossover.simulate.catalog import CATALOG, Choice
from crossover.simulate.compare import Comparison, Try, cheapest
from crossover.simulate.run import Outcome, Series
from crossover.simulate.verdict import sentences, verdicts


def outcome(policy, gpu_hours, attainment):
    numbers = dict.fromkeys(
        ("output_tokens_within_slo_per_gpu_hour", "ttft_p50_s", "ttft_p99_s", "tpot_p50_s", "tpot_p99_s"), 0.0
    )
    counts = dict.fromkeys(("replica_changes", "draft_changes", "restarts", "reversals"), 0)
    return Outcome(
        policy=policy,
        seed=1,
        gpu_hours=gpu_hours,
        ttft_attainment=attainment,
        tpot_attainment=attainment,
        attainment=attainment,
        dropped_requests=0.0,
        series=Series(),
        **numbers,
        **counts,
    )


OURS = outcome("crossover", 7.0, 0.99)


def comparison(*rivals):
    tries = tuple(Try(item.policy, Choice(8.0), item) for item in (OURS, *rivals))
    outcomes = tuple(item.outcome for item in tries)
    return Comparison("t", outcomes, {item.policy: Choice(8.0) for item in outcomes}, tries)


def rivals(*others):
    (verdict,) = verdicts(comparison(*others))
    return {item.group: item for item in verdict.rivals}


def test_a_cheaper_rival_that_misses_more_targets_does_not_count():
    found = rivals(outcome("keda+table", 3.0, 0.98), outcome("keda+table", 10.0, 0.992))
    assert found["HPA or KEDA with the engine's table"].best.outcome.gpu_hours == 10.0
    assert found["HPA or KEDA with the engine's table"].saving == pytest.approx(0.3)


def test_a_fixed_count_found_in_hindsight_is_a_bound_and_no_autoscaler():
    found = rivals(outcome("static+table", 6.0, 1.0), outcome("kpa", 9.0, 1.0))
    assert found["any autoscaler"].best.policy == "kpa"
    assert found["best fixed count in hindsight"].saving == pytest.approx(1 - 7 / 6)


def test_when_nobody_attains_as_much_it_is_said():
    (verdict,) = verdicts(comparison(outcome("keda+table", 3.0, 0.9)))
    assert "none attains as much" in "\n".join(sentences(verdict))


@pytest.mark.parametrize(
    ("tried", "chosen"),
    [
        ([(4.0, 9.0, 1.0), (8.0, 5.0, 0.995), (16.0, 3.0, 0.97)], 8.0),
        ([(4.0, 9.0, 0.80), (8.0, 5.0, 0.795), (16.0, 3.0, 0.60)], 8.0),
        ([(4.0, 5.0, 1.0), (8.0, 5.0, 1.0)], 4.0),
    ],
)
def test_the_search_takes_the_cheapest_that_attains_enough_or_nearly_the_best(tried, chosen):
    results = [(Choice(target), outcome("keda", cost, attained)) for target, cost, attained in tried]
    assert cheapest(results, 0.99).target == chosen


def test_choices_are_every_target_with_every_table_and_the_stock_table_first():
    entry = CATALOG["keda+table"]
    assert len(entry.choices) == len(entry.targets) * len(entry.tables)
    assert {choice.table for choice in entry.choices[: len(entry.targets)]} == {entry.tables[0]}
    assert replace(entry.choices[0], table="").target == entry.targets[0]
