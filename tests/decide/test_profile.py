"""The profile against the step model its points were drawn from: values, uncertainty, and points that say something else
than the model's shape."""

import math
import random
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crossover.api.points import CalibrationPoint
from crossover.decide.acceptance import equivalent_rate, shift_between, shifted, truncated
from crossover.decide.crossings import Verdict, crossovers
from crossover.decide.linear import backward, cholesky, forward, non_negative
from crossover.decide.operating import Conditions, Rates, best_schedule
from crossover.decide.profile import ProfileError, fit_profile, interpolated
from crossover.decide.step_model import PRESETS, UNVALIDATED, acceptance_length
from crossover.decide.variant import GATED, OFF, Variant
from tests.decide.truth import LADDER, VARIANTS, crossing, gain, points

MODEL = PRESETS["70b-a100-tp4"]
EXACT = fit_profile(points(MODEL))


@pytest.mark.parametrize("name", sorted(PRESETS))
@pytest.mark.parametrize("context", [256.0, 512.0, 2048.0])
def test_exact_points_of_one_context_give_step_times_at_others(name, context):
    profile = fit_profile(points(PRESETS[name]))
    for variant in VARIANTS:
        for running in (1, 3, 20, 50, 100, 180):
            truth = PRESETS[name].step_seconds(running, variant.draft_tokens, running * context, off=variant.off)
            assert profile.step_seconds(variant, running, context) == pytest.approx(truth, rel=0.02)


def test_the_two_zeros_have_separate_curves():
    assert EXACT.step_seconds(GATED, 32) > EXACT.step_seconds(OFF, 32) * 1.01


@pytest.mark.parametrize("name", sorted(PRESETS))
@pytest.mark.parametrize("draft_tokens", [3, 7])
def test_the_crossover_of_exact_points(name, draft_tokens):
    truth = crossing(PRESETS[name], draft_tokens, 512.0)
    found = next(
        item
        for item in crossovers(fit_profile(points(PRESETS[name])))
        if item.variant == Variant(draft_tokens) and item.against == OFF
    )
    if truth is None or truth > max(LADDER):
        assert found.verdict is Verdict.ALWAYS_PAYS
        assert found.shown == "none up to 192"
    else:
        assert found.crossings[0].running_requests == pytest.approx(truth, rel=0.02)
        assert found.crossings[0].pays_below


@pytest.mark.parametrize(("noise", "allowed"), [(0.01, 0.05), (0.03, 0.15)])
def test_under_noise_the_interval_holds_the_truth(noise, allowed):
    truth = crossing(MODEL, 7, 512.0)
    inside, worst = 0, 0.0
    for seed in range(20):
        found = next(
            item
            for item in crossovers(fit_profile(points(MODEL, noise=noise, seed=seed)))
            if item.variant == Variant(7) and item.against == OFF
        )
        crossed = found.crossings[0]
        inside += crossed.low <= truth <= crossed.high
        worst = max(worst, abs(crossed.running_requests / truth - 1))
    assert inside >= 18, "95 % intervals"
    assert worst <= allowed


def test_a_longer_context_moves_the_crossover_out():
    at = {context: crossing_of(EXACT, 7, context) for context in (512.0, 2048.0)}
    assert at[2048.0] == pytest.approx(crossing(MODEL, 7, 2048.0), rel=0.03)
    assert at[2048.0] > at[512.0]


def crossing_of(profile, draft_tokens, context=None):
    under = Conditions(profile.context_tokens if context is None else context)
    found = next(c for c in crossovers(profile, under) if c.variant == Variant(draft_tokens) and c.against == OFF)
    return found.crossings[0].running_requests if found.crossings else None


def test_a_cliff_is_found_between_the_points_beside_it():
    """Beyond the largest captured graph a drafting step takes more than twice as long."""

    def cliff(variant, running):
        return 2.2 if variant.draft_tokens and running > 40 else 1.0

    ladder = (1, 8, 16, 24, 32, 40, 48, 64)
    found = crossing_of(fit_profile(points(PRESETS["70b-h100-tp4"], ladder=ladder, factor=cliff)), 3)
    assert 40 <= found <= 48


def test_a_curve_that_crosses_twice_keeps_both_crossings():
    """A mixture of experts: one token touches few experts, so plain decoding is cheap at the smallest batches; drafts
    win in the middle and lose when compute binds."""

    def experts(variant, running):
        if variant.draft_tokens:
            return 2.2 if running >= 64 else 1.0
        return {1: 0.35, 2: 0.5}.get(running, 1.0)

    ladder = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128)
    profile = fit_profile(points(PRESETS["70b-h100-tp4"], ladder=ladder, factor=experts))
    found = next(c for c in crossovers(profile) if c.variant == Variant(3) and c.against == OFF)
    assert [c.pays_below for c in found.crossings] == [False, True]
    assert 1.5 <= found.crossings[0].running_requests <= 4
    assert 48 <= found.crossings[1].running_requests <= 64


def test_always_loses_is_a_result():
    found = [
        c for c in crossovers(fit_profile(points(acceptance=0.02))) if c.variant == Variant(7) and c.against == OFF
    ]
    assert found[0].verdict is Verdict.NEVER_PAYS
    assert found[0].shown == "never pays from 1 to 192"


def test_few_points_are_joined_by_straight_lines_or_by_a_given_model():
    few = [item for item in points(ladder=(8, 128)) if (item.draft_tokens, item.off) in {(0, True), (7, False)}]
    plain, modelled = fit_profile(few), fit_profile(few, prior=MODEL)
    truth = MODEL.step_seconds(48, 7, 48 * 512.0)
    assert plain.step_seconds(Variant(7), 128) == pytest.approx(MODEL.step_seconds(128, 7, 128 * 512.0), rel=0.02)
    assert modelled.step_seconds(Variant(7), 48) == pytest.approx(truth, rel=0.02)
    off = plain.curves[OFF]
    between, at_point = (interpolated(off.running, off.errors, running) for running in (32, 128))
    assert between > 2 * at_point, "uncertain between far points"


def test_rates_and_acceptance_are_as_good_as_step_times():
    by_step = points()
    by_rate = [
        replace(
            item,
            step_seconds=None,
            output_tokens_per_second=item.running_requests * item.acceptance_length / item.step_seconds,
        )
        for item in by_step
    ]
    one, two = fit_profile(by_step), fit_profile(by_rate)
    assert two.step_seconds(Variant(3), 50) == pytest.approx(one.step_seconds(Variant(3), 50), rel=1e-6)


@pytest.mark.parametrize(
    ("broken", "text"),
    [
        ({"running_requests": 0}, "runningRequests must be above 0"),
        ({"running_requests": math.nan}, "runningRequests must be above 0"),
        ({"draft_tokens": -1}, "draftTokens must be 0 or more"),
        ({"off": True}, "draftTokens must be 0"),
        ({"acceptance_length": 4.5}, "between 1 and draftTokens + 1"),
        ({"step_seconds": None}, "needs stepSeconds or outputTokensPerSecond"),
        ({"step_seconds": -0.1}, "needs stepSeconds or outputTokensPerSecond"),
    ],
)
def test_points_that_make_no_sense_name_the_point_and_the_field(broken, text):
    good = CalibrationPoint(8, 3, step_seconds=0.02, acceptance_length=2.4)
    with pytest.raises(ProfileError, match=r"point 2 .*" + text.replace("+", r"\+")):
        fit_profile([good, replace(good, **broken)])
    with pytest.raises(ProfileError, match="no calibration points"):
        fit_profile([])


@settings(max_examples=40)
@given(st.data())
def test_any_points_give_curves_that_rise_and_do_not_depend_on_order(data):
    drawn = data.draw(
        st.lists(
            st.tuples(st.sampled_from([1, 2, 8, 32, 100]), st.sampled_from([0, 3]), st.floats(0.005, 0.2)),
            min_size=1,
            max_size=16,
        )
    )
    made = [
        CalibrationPoint(b, k, context_tokens=500.0, step_seconds=t, acceptance_length=2.0 if k else None)
        for b, k, t in drawn
    ]
    profile = fit_profile(made)
    again = fit_profile(random.Random(1).sample(made, len(made)))
    for variant, curve in profile.curves.items():
        steps = [profile.step_seconds(variant, running) for running in curve.running]
        assert all(before <= after * (1 + 1e-9) for before, after in pairwise(steps))
        assert all(math.isfinite(value) and value > 0 for value in curve.base_seconds)
        for running in (1, 10, 90):
            assert again.step_seconds(variant, running) == pytest.approx(
                profile.step_seconds(variant, running), rel=1e-3
            )


def test_a_shape_that_does_not_fit_never_bends_a_curve_away_from_its_points():
    """A mixture of experts at one context: step times rise steeply and then hardly at all, which no KV slope explains."""
    model = UNVALIDATED["57b-moe-h100-tp4"]
    made = points(model, variants=(OFF, Variant(7)), ladder=(1, 4, 8, 16, 32, 64, 128, 256), acceptance=0.4)
    profile = fit_profile(made)
    for point in made:
        fitted = profile.step_seconds(Variant(point.draft_tokens, point.off), point.running_requests)
        assert fitted == pytest.approx(point.step_seconds, rel=0.03)


# -- operating points ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_operating_point_is_the_least_batch_that_serves_the_demand(variant):
    rates = Rates.of(EXACT, variant, Conditions(512.0))
    length = acceptance_length(0.67, variant.draft_tokens)
    for demand in (50.0, 300.0, 900.0):
        truth, step = 0.02, 0.02
        while truth * length / MODEL.step_seconds(truth, variant.draft_tokens, truth * 512, off=variant.off) < demand:
            truth += step
        assert rates.batch_at(demand) == pytest.approx(truth, rel=0.04, abs=0.1)


def test_capacity_respects_the_tpot_target_the_engine_and_the_kv_pool():
    wide = Rates.of(EXACT, Variant(3), Conditions(512.0))
    slow = Rates.of(EXACT, Variant(3), Conditions(512.0, tpot_seconds=0.030))
    few = Rates.of(EXACT, Variant(3), Conditions(512.0, max_running_requests=16))
    small = Rates.of(EXACT, Variant(3), Conditions(512.0, kv_capacity_tokens=512 * 20))
    at_target = slow.batch_at_tpot(0.030)
    assert slow.tpot(at_target) == pytest.approx(0.030)
    assert slow.capacity == pytest.approx(at_target / 0.030)
    assert few.limit == 16
    assert small.limit == pytest.approx(18)
    assert max(slow.capacity, few.capacity, small.capacity) < wide.capacity
    assert slow.highest == wide.highest, "the target limits what is wanted, not what is possible"


def test_a_correction_and_a_live_acceptance_move_the_curve():
    plain = Rates.of(EXACT, Variant(3), Conditions(512.0))
    slower = Rates.of(EXACT, Variant(3), Conditions(512.0, correction={"draft-3": 1.2}))
    shared = Rates.of(EXACT, Variant(3), Conditions(512.0, correction={"off": 1.2}))
    better = Rates.of(EXACT, Variant(3), Conditions(512.0, lengths={Variant(3): 3.0}))
    assert slower.tpot(30) == pytest.approx(1.2 * plain.tpot(30))
    assert shared.tpot(30) == pytest.approx(slower.tpot(30)), "a variant that never ran shares what others learned"
    assert better.tpot(30) == pytest.approx(plain.tpot(30) * acceptance_length(0.67, 3) / 3.0)


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_the_schedule_is_within_two_percent_of_the_best_draft_length_at_every_batch(name):
    profile = fit_profile(points(PRESETS[name]))
    variants = [variant for variant in profile.curves if not variant.off]
    rates = {variant: Rates.of(profile, variant, Conditions(512.0)) for variant in variants}
    schedule = best_schedule(rates)
    assert schedule[0][0] == 1
    assert len(schedule) <= 8
    for batch in range(1, 193):
        chosen = Variant(next(draft for start, draft in reversed(schedule) if batch >= start))
        best = min(true_tpot(PRESETS[name], variant, batch) for variant in variants)
        assert true_tpot(PRESETS[name], chosen, batch) <= best * 1.03


def true_tpot(model, variant, running):
    length = acceptance_length(0.67, variant.draft_tokens)
    return model.step_seconds(running, variant.draft_tokens, running * 512.0) / length


# -- acceptance ------------------------------------------------------------------------------------------------------


@given(st.floats(0.02, 0.97), st.integers(1, 12))
def test_the_equivalent_rate_inverts_the_acceptance_length(rate, draft_tokens):
    assert equivalent_rate(acceptance_length(rate, draft_tokens), draft_tokens) == pytest.approx(rate, abs=1e-4)


@given(st.floats(0.1, 0.9), st.floats(0.1, 0.9), st.integers(1, 8), st.integers(1, 8))
def test_a_workload_shift_seen_at_one_draft_length_predicts_another(before, after, seen, other):
    """Exact where positions are independent."""
    shift = shift_between(acceptance_length(before, seen), acceptance_length(after, seen), seen)
    assert shifted(acceptance_length(before, other), other, shift) == pytest.approx(
        acceptance_length(after, other), rel=2e-3
    )


def test_positions_give_shorter_drafts_exactly():
    """Conditional acceptance .685 .647 .640 of a published log: marginals are their running products."""
    marginals = (0.685, 0.685 * 0.647, 0.685 * 0.647 * 0.640)
    assert truncated(1 + sum(marginals), marginals, 1) == pytest.approx(1.685)
    assert truncated(1 + sum(marginals), marginals, 2) == pytest.approx(1 + 0.685 + 0.685 * 0.647)
    assert truncated(2.4, marginals, 7) is None


# -- linear algebra --------------------------------------------------------------------------------------------------


columns_of_four = st.lists(st.lists(st.floats(-3, 3), min_size=4, max_size=4), min_size=3, max_size=3)


@given(columns_of_four, st.lists(st.floats(0, 3), min_size=3, max_size=3))
def test_least_squares_finds_coefficients_that_made_the_target(columns, coefficients):
    target = [sum(c * column[i] for c, column in zip(coefficients, columns, strict=True)) for i in range(4)]
    found, rest = non_negative(columns, target)
    assert min(found) >= 0
    assert rest <= 1e-6 * (1 + sum(value * value for value in target))


def test_cholesky_solves_and_refuses():
    lower = cholesky([[4.0, 2.0], [2.0, 3.0]])
    assert backward(lower, forward(lower, [8.0, 7.0])) == pytest.approx([1.25, 1.5])
    assert cholesky([[1.0, 2.0], [2.0, 1.0]]) is None


def test_the_gain_of_the_truth_itself_is_what_the_profile_says():
    for running in (1, 16, 64, 150):
        found = EXACT.output_rate(Variant(3), running) / EXACT.output_rate(OFF, running) - 1
        assert found == pytest.approx(gain(MODEL, 3, running, 512.0), abs=0.02)
