"""Pictures of profiles and sweeps. Imported only when one is asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from crossover.decide.crossings import Crossover, crossovers
from crossover.decide.operating import Conditions, Rates
from crossover.decide.profile import Profile
from crossover.decide.sweeps import Series
from crossover.decide.variant import GATED, Variant

BEYOND = 1.6
"""How far a curve is drawn beyond what was measured, as a factor."""
HOW_TO_READ = (
    "Points are what was measured, hollow ones what was interpolated between draft lengths; lines are what the controller "
    "goes by, dotted beyond the measured loads. On the right a draft length pays where its line is above 0; it crosses at the "
    "dot, and the band around it is the 95 % interval."
)


def plot_profile(profile: Profile, conditions: Conditions, path: Path) -> None:
    """A picture of it in a file. Raises `OSError`, and `ValueError` for a suffix that is no picture's."""
    profile_figure(profile, conditions).savefig(path, dpi=120)


def profile_figure(profile: Profile, conditions: Conditions) -> Figure:
    """Output rate and gain over running requests, with the points, and the crossings with their intervals."""
    figure = Figure(figsize=(11, 4.8), layout="constrained")
    rates_axes, gain_axes = figure.subplots(1, 2)
    rates = {variant: Rates.of(profile, variant, conditions) for variant in profile.measured}
    colours = {variant: f"C{number}" for number, variant in enumerate(rates)}
    for variant, curve in rates.items():
        label = "draft 0 (gated)" if variant == GATED else variant.shown
        _curve(rates_axes, curve, colours[variant], label)
        _points(rates_axes, profile, variant, colours[variant])
    _dress(rates_axes, "output tokens/s of one scheduler")
    rates_axes.set_ylim(bottom=0)
    for item in crossovers(profile, conditions):
        _gain(gain_axes, item, rates, colours[item.variant])
    gain_axes.axhline(0, color="black", linewidth=0.8)
    _dress(gain_axes, "gain in output tokens/s, %")
    context = f", {conditions.context_tokens:,.0f} KV tokens per request" if conditions.context_tokens else ""
    figure.suptitle(f"{profile.source}{context}", fontsize=10)
    return figure


def _curve(axes: Any, curve: Rates, colour: str, label: str) -> None:
    """Solid where it was measured, dotted beyond."""
    low, high = curve.measured
    inside = [low, *(batch for batch in curve.running if low < batch < high), high]
    beyond = [high, *(batch for batch in curve.running if high < batch <= min(BEYOND * high, curve.limit))]
    axes.plot(inside, [curve.rate(batch) for batch in inside], color=colour, label=label)
    axes.plot(beyond, [curve.rate(batch) for batch in beyond], color=colour, linestyle=":", linewidth=1.2)


def _points(axes: Any, profile: Profile, variant: Variant, colour: str) -> None:
    for point in profile.points:
        rate = profile.measured_rate(point)
        if Variant(point.draft_tokens, point.off) == variant and rate is not None:
            face = "none" if point.interpolated else colour
            axes.plot(point.running_requests, rate, "o", markersize=4.5, color=colour, markerfacecolor=face)


def _gain(axes: Any, item: Crossover, rates: Mapping[Variant, Rates], colour: str) -> None:
    """The colour is the draft length's; against "gated" the line is dash-dotted, of an interpolated length dashed."""
    low, high = item.measured
    own, zero = rates[item.variant], rates[item.against]
    batches = [low, *(batch for batch in own.running if low < batch < high), high]
    gains = [100 * (zero.tpot(batch) / own.tpot(batch) - 1) for batch in batches]
    style = "--" if item.interpolated else "-" if item.against.off else "-."
    label = f"{item.variant.shown} against {item.against.name}: {item.shown}"
    axes.plot(batches, gains, style, color=colour, label=label)
    for crossing in item.crossings:
        axes.axvspan(crossing.low, crossing.high, color=colour, alpha=0.12, linewidth=0)
        axes.plot([crossing.running_requests], [0], "o", color=colour)


def plot_sweeps(series: Sequence[Series], path: Path) -> None:
    """Speed-up over load (or over the speed of one user), one line a series."""
    figure = Figure(figsize=(9, 6), layout="constrained")
    axes = figure.subplots()
    for item in series:
        label = " / ".join(item.name[key] for key in ("model", "method") if key in item.name)
        axes.plot(*zip(*item.points, strict=True), marker=".", label=label if len(series) <= 15 else None)
    axes.axhline(1, color="black", linewidth=0.8)
    _dress(axes, "speed-up over no speculation", legend=len(series) <= 15)
    if series[0].by_speed:
        axes.set_xlabel("output tokens/s of one user")
    figure.savefig(path, dpi=120)


def _dress(axes: Any, label: str, *, legend: bool = True) -> None:
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlabel("running requests")
    axes.set_ylabel(label)
    axes.grid(alpha=0.3)
    if legend:
        axes.legend(fontsize=8)
