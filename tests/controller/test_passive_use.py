"""The points of a live fleet and the factors of `decide`: together they count a deviation once."""

import math
from dataclasses import replace

import pytest
from tests.calibrate.test_passive import CALIBRATED, MODEL, START, TICK, V3, lived, pod, snapshot

from crossover.api.decision import DecisionReason, Memory
from crossover.api.intent import Intent, ReplicaIntent, SpeculationIntent, SpeculationPolicy
from crossover.calibrate.passive import PassiveState
from crossover.controller.calibration.store import Resolved
from crossover.controller.passive import REFINE_SECONDS, Passive
from crossover.decide import plan, to_json
from crossover.decide.operating import correction_of
from crossover.decide.profile import fit_profile
from crossover.decide.variant import OFF, Variant

HELD = Intent(ReplicaIntent(min=3, max=3), SpeculationIntent(policy=SpeculationPolicy.HOLD))


def resolved(points=CALIBRATED):
    return Resolved(fit_profile(points), points=tuple(points))


class Alone(Passive):
    """Only factors."""

    def look(self, resolved, snapshot, memory):
        self.calibrated = resolved.profile


def ticked(passive, calibration, seen, memory):
    """As the controller does it, with its thread left out."""
    due = passive.look(calibration, seen, memory)
    if due is not None:
        passive.take(due, due.make())
    return passive.in_use


class Life:
    """A steady fleet that is decided about tick by tick, as the controller does it."""

    def __init__(self, factor, loads=(40, 40, 40), *, variant=V3, calibration=None, kind=Passive):
        self.factor, self.loads, self.variant = factor, loads, variant
        self.calibration = calibration or resolved()
        self.passive, self.memory, self.at = kind(), Memory(), START
        self.written, self.decision = [], None

    def run(self, seconds):
        until = self.at + seconds
        while self.at < until:
            pods = [pod(n, self.at, load, self.variant, factor=self.factor(load)) for n, load in enumerate(self.loads)]
            seen = snapshot(self.at, pods, enabled=not self.variant.off)
            self.profile = ticked(self.passive, self.calibration, seen, self.memory)
            decision = plan(seen, HELD, self.passive.lend(self.memory), self.profile)
            self.decision = self.passive.take_back(decision, self.memory, HELD)
            self.memory = self.decision.memory
            if not self.written or self.written[-1] != to_json(self.memory):
                self.written.append(to_json(self.memory))
            self.at += TICK
        return self

    def believed(self, load, variant=V3):
        """Step time that decisions go by, as a share of the calibrated truth."""
        factor = correction_of(self.passive.lend(self.memory).correction, variant)
        truth = MODEL.step_seconds(load, variant.draft_tokens, load * 512, off=variant.off)
        return factor * self.profile.step_seconds(variant, load, 512) / truth


@pytest.mark.parametrize("factor", [0.75, 1.3, 1.8])
def test_one_deviation_is_counted_once(factor):
    """Learned by the factor first, taken over by the points later: what is believed never moves away from the truth."""
    life = Life(lambda _: factor).run(500)
    assert life.passive.profile is None
    assert life.believed(40) == pytest.approx(factor, rel=0.05)
    for _ in range(12):
        life.run(300)
        assert life.believed(40) == pytest.approx(factor, rel=0.05)
    assert life.passive.profile is not None, "the points did take it over"
    assert correction_of(life.passive.lend(life.memory).correction, V3) == pytest.approx(1, abs=0.05)
    assert life.memory.correction["draft-3"] == pytest.approx(factor, rel=0.05)


def test_the_drift_is_told_as_long_as_it_lasts():
    """Although `decide` itself sees a curve that fits."""
    life = Life(lambda _: 1.4).run(2 * REFINE_SECONDS)
    assert life.passive.profile is not None
    told = [notice for notice in life.decision.notices if notice.reason is DecisionReason.CALIBRATION_DRIFT]
    assert "draft-3 steps take 40% longer" in told[0].message


@pytest.mark.parametrize("factor", [1.0, 1.3])
def test_a_steady_fleet_has_a_memory_that_does_not_move(factor):
    life = Life(lambda _: factor).run(500)
    before = len(life.written)
    life.run(6 * REFINE_SECONDS)
    assert len(life.written) == before


def test_a_fleet_that_is_as_calibrated_goes_by_the_calibration_itself():
    life = Life(lambda _: 1.0).run(3 * REFINE_SECONDS)
    assert life.passive.profile is None
    assert life.profile is life.calibration.profile


def test_a_restart_believes_the_same_at_the_load_of_the_fleet():
    """Only factors are kept in status: they are of the calibrated curves, whatever the points took over."""
    life = Life(lambda _: 1.3).run(3 * REFINE_SECONDS)
    before = life.believed(40)
    life.passive = Passive()
    life.run(TICK)
    assert life.believed(40) == pytest.approx(before, rel=0.05)


def test_a_deviation_that_depends_on_the_load_is_followed_by_load():
    """One factor for a curve cannot: it is right at one load only."""

    def factor(load):
        return 1.0 + 0.4 * math.log(load / 10) / math.log(9)

    def day(life):
        for load in (10, 90, 30, 10, 90, 30):
            life.loads = (load,) * 3
            life.run(REFINE_SECONDS)
        return [abs(life.believed(load) / factor(load) - 1) for load in (10, 30, 90)]

    errors, without = day(Life(factor)), day(Life(factor, kind=Alone))
    assert max(errors) < 0.06, errors
    assert max(errors) < max(without) / 2, without


def test_what_never_ran_keeps_its_share_of_what_the_others_taught():
    """ "Off" shares the factor of draft 3. When points take that over, "off" must not fall back to the calibration."""
    life = Life(lambda _: 1.3).run(500)
    before = life.believed(40, OFF)
    assert before == pytest.approx(1.3, rel=0.06)
    life.run(2 * REFINE_SECONDS)
    assert life.passive.profile is not None
    assert life.believed(40, OFF) == pytest.approx(before, rel=0.05)
    life.variant = OFF
    life.factor = lambda _: 1.0
    life.run(900)
    assert life.believed(40, OFF) == pytest.approx(1.0, rel=0.05), "and is corrected when it runs"
    assert life.memory.correction["off"] == pytest.approx(1.0, abs=0.05)


def test_another_calibration_begins_anew():
    life = Life(lambda _: 1.3).run(2 * REFINE_SECONDS)
    assert life.passive.profile is not None
    fresh = resolved(tuple(replace(point, step_seconds=point.step_seconds * 1.3) for point in CALIBRATED))
    assert ticked(life.passive, fresh, snapshot(life.at, []), life.memory) is fresh.profile
    assert life.passive.lend(life.memory) is life.memory


def test_variants_without_a_factor_of_their_own_move_nothing():
    """Points only take over what `decide` has a factor for."""
    passive, calibration = Passive(), resolved()
    ticked(passive, calibration, snapshot(START, []), Memory())
    passive.state = lived((20, 60), factor=1.4)
    seen = snapshot(START + 2 * REFINE_SECONDS, [])
    assert ticked(passive, calibration, seen, Memory()) is calibration.profile
    assert passive.state != PassiveState()
    later = snapshot(seen.at_seconds + REFINE_SECONDS, [])
    assert ticked(passive, calibration, later, Memory(correction={"draft-3": 1.4})) is not calibration.profile
    assert Variant(3).name in passive.taken


def due_soon():
    """A fleet whose points are about to move."""
    passive, calibration = Passive(), resolved()
    ticked(passive, calibration, snapshot(START, []), Memory())
    passive.state = lived((20, 60), factor=1.4)
    seen = snapshot(START + 2 * REFINE_SECONDS, [])
    return passive, calibration, seen, Memory(correction={"draft-3": 1.4})


def test_a_refit_that_is_lost_is_asked_for_again():
    """A tick may be cancelled while the thread still works."""
    passive, calibration, seen, memory = due_soon()
    assert passive.look(calibration, seen, memory) is not None
    assert passive.look(calibration, seen, memory) is None, "not on every tick"
    later = snapshot(seen.at_seconds + REFINE_SECONDS, [])
    assert ticked(passive, calibration, later, memory) is not calibration.profile


def test_a_refit_that_comes_late_changes_nothing():
    """Meanwhile the calibration was measured anew."""
    passive, calibration, seen, memory = due_soon()
    due = passive.look(calibration, seen, memory)
    made = due.make()
    fresh = resolved(tuple(replace(point, step_seconds=point.step_seconds * 1.3) for point in CALIBRATED))
    ticked(passive, fresh, seen, memory)
    passive.take(due, made)
    assert passive.in_use is fresh.profile
    assert passive.lend(memory) is memory
