"""Draft lengths that are not measured, against a hidden truth; and when all of them are measured after all."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossover.calibrate.between import MOST_ERROR, Forcing, ends_and_middle, error_at_middle
from crossover.calibrate.forced import NEAR, ForcedAcceptance, not_forced
from crossover.decide.crossings import crossovers
from crossover.decide.profile import fit_profile
from crossover.decide.variant import OFF, Variant
from tests.calibrate.sweeps import A100, CONTEXT, H100, MOE, Scene, sweep

WANTED = (1, 2, 3, 4, 5, 6, 7)
RATE = 0.67
FORCED = Forcing(WANTED, ForcedAcceptance(rate=RATE))


def scene(model, **more):
    return Scene(model, (OFF, *map(Variant, WANTED)), RATE, **more)


def swept(hidden, seed=1):
    """What the sweep asks for when only three of the draft lengths are measured."""
    return sweep(replace(hidden, variants=(OFF, Variant(1), Variant(4), Variant(7))), noise=0.005, seed=seed).points


@pytest.mark.parametrize("model", [A100, H100], ids=["70B on A100", "8B on H100"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_crossover_of_every_length_is_within_5_percent_though_three_are_measured(model, seed):
    hidden = scene(model)
    points = swept(hidden, seed)
    assert len(points) <= 24
    made = FORCED.interpolated(points)
    assert {point.draft_tokens for point in made} == {2, 3, 5, 6}
    assert all(point.interpolated for point in made)
    found = crossovers(fit_profile([*points, *made]))
    assert [item.interpolated for item in found] == [False, True, True, False, True, True, False]
    for item in found:
        (truth,) = hidden.crossings(item.variant, OFF)
        assert len(item.crossings) == 1
        assert abs(item.crossings[0].running_requests / truth - 1) <= 0.05, item.variant.shown


@pytest.mark.parametrize(
    "model", [A100, MOE, replace(H100, padding_tokens=64)], ids=["dense", "mixture of experts", "stairs of 64 tokens"]
)
def test_the_error_told_is_about_the_error_made(model):
    """Also on hardware whose steps have another shape than the fitted one."""
    hidden = scene(model)
    points = swept(hidden)
    told = error_at_middle(points, (1, 4, 7))
    wrong = [
        point.step_seconds / hidden.seconds(Variant(point.draft_tokens), point.running_requests) - 1
        for point in FORCED.interpolated(points)
    ]
    made = math.sqrt(sum(value * value for value in wrong) / len(wrong))
    assert made <= 2 * max(told, 0.01)


def test_a_length_that_its_neighbours_do_not_tell_of_is_measured():
    """A cliff at 256 tokens in the batch meets every draft length at another load."""
    hidden = scene(
        H100, factor=lambda one, load: 1.4 if one.draft_tokens and load * (one.draft_tokens + 1) > 256 else 1
    )
    points = swept(hidden)
    assert error_at_middle(points, (1, 4, 7)) > MOST_ERROR
    assert FORCED.measured(points) == WANTED
    assert FORCED.interpolated(points) == ()
    assert FORCED.sentence(points) == ""


def test_a_server_that_accepts_as_it_likes_is_measured_at_every_length():
    points = swept(scene(A100))
    other = Forcing(WANTED, ForcedAcceptance(rate=0.4))
    assert other.measured(points) == WANTED
    assert other.interpolated(points) == ()
    caveat = not_forced(other.acceptance, next(point for point in points if point.draft_tokens == 7))
    assert caveat is not None
    assert "instead of the forced 1.67" in caveat.message


def test_trees_are_not_interpolated():
    points = [replace(point, verified_tokens=16) if point.draft_tokens else point for point in swept(scene(A100))]
    assert FORCED.measured(points) == WANTED


def test_once_a_further_length_is_measured_all_of_them_are():
    points = swept(scene(A100))
    more = replace(next(point for point in points if point.draft_tokens == 1), draft_tokens=2)
    assert FORCED.measured([*points, more]) == WANTED


def test_too_few_points_are_said_to_be_too_few():
    points = [point for point in swept(scene(A100)) if point.draft_tokens != 4]
    assert FORCED.interpolated(points) == ()
    assert "draft 2, 3, 5, 6: neither measured nor interpolated" in FORCED.sentence(points)


def test_what_is_interpolated_weighs_like_one_point():
    """They share one error, so many of them are not surer than one."""
    points = swept(scene(A100))
    made = [point for point in FORCED.interpolated(points) if point.draft_tokens == 3]
    told = max(0.01, error_at_middle(points, (1, 4, 7)))
    assert sum(1 / point.relative_error**2 for point in made) == pytest.approx(1 / told**2)
    assert {point.context_tokens for point in made} == {CONTEXT}


@given(st.sets(st.integers(1, 64), min_size=1, max_size=8))
def test_the_ends_are_always_measured(wanted):
    drafts = tuple(sorted(wanted))
    few = ends_and_middle(drafts)
    assert (few[0], few[-1]) == (drafts[0], drafts[-1])
    assert len(few) == min(3, len(drafts))
    assert set(few) <= wanted


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_lengths_follow_from_positions_as_the_counters_of_a_server_would_give_them(shares):
    """Tokens per step = 1 + sum of the marginals, whatever the draft length."""
    by_position = tuple(sorted(shares, reverse=True))
    forced = ForcedAcceptance(by_position)
    assert forced.longest == len(by_position)
    for draft in range(1, len(by_position) + 1):
        assert forced.length(draft) == pytest.approx(1 + sum(by_position[:draft]))


@given(st.integers(1, 12), st.floats(0.02, 0.95))
def test_a_length_seen_at_one_draft_length_gives_it_back(draft, rate):
    seen = sum(rate**position for position in range(draft + 1))
    assert ForcedAcceptance.of_length(seen, draft).length(draft) == pytest.approx(seen, rel=1e-3)
    assert NEAR < 0.1
