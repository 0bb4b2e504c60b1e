"""What a fleet's own load says about its calibration, put into the profile that it is decided by (docs/design/0078).

`decide.learning` corrects each curve by one factor, within minutes, and that factor is kept in status. Here the same
deviation is seen by load, over hours, and moves points. What the points take over is taken out of the factor that `decide`
is given, so the two never count it twice: at the loads that were visited, points times factor stays what it was.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import structlog

from crossover.api.decision import Decision, Memory
from crossover.api.fleet import FleetSnapshot
from crossover.api.intent import Intent
from crossover.api.points import CalibrationPoint
from crossover.calibrate.passive import FEWEST_MOMENTS, Cell, PassiveState, deviations, moved, observe, refine
from crossover.controller.calibration.store import Resolved
from crossover.decide.learning import HIGHEST, LOWEST, RATIO, STEADY_VARIANT
from crossover.decide.notices import notices
from crossover.decide.operating import correction_of
from crossover.decide.profile import Profile, ProfileError, fit_profile
from crossover.decide.variant import OFF, Variant

REFINE_SECONDS = 600.0
"""Between two looks at whether the points should move: a schedule must not follow noise."""
GROWN = 1.5
"""After a fit that changed nothing, so many times the moments are wanted for the next one: it costs a tenth of a second."""
NOTICEABLE = 0.03
"""A refined curve takes the place of the one in use when it is off by this share at a load that the fleet visits."""


@dataclass(frozen=True, slots=True)
class Made:
    """A profile that fits what was visited better."""

    profile: Profile
    taken: Mapping[str, float]
    moments: int


@dataclass(frozen=True, slots=True)
class Refit:
    """A fit that is due: some tenths of a second of arithmetic on data that nobody changes."""

    resolved: Resolved
    calibrated: Profile
    in_use: Profile
    cells: tuple[Cell, ...]
    memory: Memory

    def make(self) -> Made | None:
        """None = it would change nothing that is noticed."""
        source, tokens = self.calibrated.source, self.resolved.output_tokens
        try:
            refined = refine(self.resolved.points, PassiveState(self.cells))
            points, shared = _followed(refined.points, self.calibrated, self.cells, self.memory)
            made = fit_profile(points, output_tokens_per_request=tokens, source=source)
        except ProfileError:
            return None
        if all(abs(_ratio(made, self.in_use, cell) - 1) <= NOTICEABLE for cell in self.cells):
            return None
        return Made(made, {**shared, **_taken(made, self.calibrated, self.cells)}, refined.moments)


@dataclass(slots=True)
class Passive:
    """Of one fleet, in memory only: after a restart the factors in status alone say the same, by curve instead of by load."""

    state: PassiveState = field(default_factory=PassiveState)
    calibrated: Profile | None = None
    """As measured: with another one everything here is about something else."""
    profile: Profile | None = None
    """As refined; None = as calibrated."""
    taken: Mapping[str, float] = field(default_factory=dict)
    """Variant's name -> share of its factor that stands in the points of ``profile`` now."""
    looked_at_seconds: float = 0.0
    fitted_moments: float = 0.0

    @property
    def in_use(self) -> Profile | None:
        """The profile to decide by."""
        return self.profile or self.calibrated

    def look(self, resolved: Resolved, snapshot: FleetSnapshot, memory: Memory) -> Refit | None:
        """One tick. What it gives is to be done, in any thread, and `take`n; lost, it is asked for again some time later."""
        if self.calibrated is not resolved.profile:
            self.forget()
            self.calibrated, self.looked_at_seconds = resolved.profile, snapshot.at_seconds
        if self.calibrated is None:
            return None
        self.state = observe(self.state, snapshot)
        if snapshot.at_seconds - self.looked_at_seconds < REFINE_SECONDS:
            return None
        self.looked_at_seconds = snapshot.at_seconds
        return self._due(resolved, self.calibrated, memory)

    def take(self, refit: Refit, made: Made | None) -> None:
        """What a refit found. Nothing, when what it began with is not in use any more."""
        if refit.calibrated is not self.calibrated or refit.in_use is not self.in_use:
            return
        self.fitted_moments = sum(cell.moments for cell in refit.cells)
        if made is None:
            return
        self.profile, self.taken = made.profile, made.taken
        structlog.get_logger("crossover.fleet").info(
            "profile refined", source=made.profile.source, moments=made.moments, taken=dict(made.taken)
        )

    def forget(self) -> None:
        """The fleet is not on the machine that was measured, or goes by another calibration."""
        self.state, self.calibrated, self.profile, self.taken = PassiveState(), None, None, {}
        self.fitted_moments = 0.0

    # -- between the memory in status and the memory that `decide` is given ----------------------------------------------

    def lend(self, memory: Memory) -> Memory:
        """Factors on the refined curves instead of on the calibrated ones."""
        if not self.taken:
            return memory
        lent = {name: factor / self.taken.get(name, 1.0) for name, factor in memory.correction.items()}
        return replace(memory, correction=lent, observations=self._averages(memory, -1))

    def take_back(self, decision: Decision, before: Memory, intent: Intent) -> Decision:
        """Factors on the calibrated curves again, and the drift that they tell. ``before``: what `lend` was given. What was
        not learned anew is exactly what it was, so that nothing is written for it."""
        if not self.taken:
            return decision
        lent = self.lend(before).correction
        whole = {
            name: before.correction[name] if lent.get(name) == factor else self._whole(name, factor)
            for name, factor in decision.memory.correction.items()
        }
        memory = replace(decision.memory, correction=whole, observations=self._averages(decision.memory, 1))
        return replace(decision, memory=memory, notices=notices(memory, intent))

    def _averages(self, memory: Memory, sign: int) -> Mapping[str, float]:
        """The average that a factor is learned from is a ratio to the curve, so it moves with the curve."""
        place, average = memory.observations.get(STEADY_VARIANT), memory.observations.get(RATIO)
        if place is None or average is None:
            return memory.observations
        variant = OFF if place < 0 else Variant(int(place))
        moved_by = sign * math.log(self.taken.get(variant.name, 1.0))
        return {**memory.observations, RATIO: average + moved_by}

    def _whole(self, name: str, factor: float) -> float:
        return round(min(HIGHEST, max(LOWEST, factor * self.taken.get(name, 1.0))), 2)

    # -- now and then ----------------------------------------------------------------------------------------------------

    def _due(self, resolved: Resolved, calibrated: Profile, memory: Memory) -> Refit | None:
        """Variants that `decide` has a factor of its own for, because that is what the points take over."""
        cells = tuple(
            cell
            for cell in self.state.cells
            if cell.moments >= FEWEST_MOMENTS
            and cell.variant in calibrated.measured
            and cell.variant.name in memory.correction
        )
        in_use = self.profile or calibrated
        moments = sum(cell.moments for cell in cells)
        if not cells or _fits(in_use, cells) or moments < GROWN * self.fitted_moments:
            return None
        return Refit(resolved, calibrated, in_use, cells, memory)


def _fits(profile: Profile, cells: tuple[Cell, ...]) -> bool:
    """Every load that was visited is as the curve says, as far as its error allows."""
    found = [item for items in deviations(profile, cells).values() for item in items]
    return all(abs(value) <= max(NOTICEABLE, 2 * error) for value, error in found)


def _followed(
    points: tuple[CalibrationPoint, ...], calibrated: Profile, cells: tuple[Cell, ...], memory: Memory
) -> tuple[tuple[CalibrationPoint, ...], dict[str, float]]:
    """Variants that never ran here share what the others taught. That stands in their points from now on, because the
    others' factors, which it came from, are about to go."""
    visited = {cell.variant for cell in cells}
    shared = {
        variant: correction_of(memory.correction, variant)
        for variant in calibrated.measured
        if variant not in visited and variant.name not in memory.correction
    }
    made = tuple(moved(point, shared.get(Variant(point.draft_tokens, point.off), 1.0)) for point in points)
    return made, {variant.name: factor for variant, factor in shared.items()}


def _taken(made: Profile, calibrated: Profile, cells: tuple[Cell, ...]) -> dict[str, float]:
    """Per variant: mean of ln(refined / calibrated) over the loads that were visited, by how often they were."""
    found: dict[str, float] = {}
    for variant in {cell.variant for cell in cells}:
        own = [cell for cell in cells if cell.variant == variant]
        total = sum(cell.moments for cell in own)
        found[variant.name] = math.exp(
            sum(cell.moments * math.log(_ratio(made, calibrated, cell)) for cell in own) / total
        )
    return found


def _ratio(one: Profile, other: Profile, cell: Cell) -> float:
    """Of step times at a visited load."""
    context = cell.context_tokens
    return one.step_seconds(cell.variant, cell.running, context) / other.step_seconds(
        cell.variant, cell.running, context
    )
