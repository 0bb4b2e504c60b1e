"""Pictures for `crossover fit`. Imported only when one is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

from crossover.decide.crossings import crossovers
from crossover.decide.operating import Conditions, Rates
from crossover.decide.profile import Profile
from crossover.decide.sweeps import Series
from crossover.decide.variant import GATED

mpl.use("Agg")

from matplotlib import pyplot as plt


def plot_profile(profile: Profile, conditions: Conditions, path: Path) -> None:
    """Output rate and gain over running requests, with the crossings marked."""
    figure, (rates_axes, gain_axes) = plt.subplots(1, 2, figsize=(11, 4.5))
    rates = {variant: Rates.of(profile, variant, conditions) for variant in profile.measured}
    for variant, curve in rates.items():
        low, high = curve.measured
        batches = [batch for batch in curve.running if low <= batch <= high]
        label = "draft 0 (gated)" if variant == GATED else variant.shown
        rates_axes.plot(batches, [curve.rate(batch) for batch in batches], label=label)
    _dress(rates_axes, "output tokens/s of one scheduler")
    for item in crossovers(profile, conditions):
        low, high = item.measured
        own, zero = rates[item.variant], rates[item.against]
        batches = [batch for batch in own.running if low <= batch <= high]
        gains = [100 * (zero.tpot(batch) / own.tpot(batch) - 1) for batch in batches]
        (line,) = gain_axes.plot(batches, gains, label=f"{item.variant.shown} against {item.against.name}")
        for crossing in item.crossings:
            gain_axes.axvspan(crossing.low, crossing.high, color=line.get_color(), alpha=0.15)
            gain_axes.plot([crossing.running_requests], [0], "o", color=line.get_color())
    gain_axes.axhline(0, color="black", linewidth=0.8)
    _dress(gain_axes, "gain in tokens/s, %")
    figure.suptitle(f"{profile.source}, {conditions.context_tokens:.0f} KV tokens per request")
    _save(figure, path)


def plot_sweeps(series: Sequence[Series], path: Path) -> None:
    """Speed-up over load (or over the speed of one user), one line a series."""
    figure, axes = plt.subplots(figsize=(9, 6))
    for item in series:
        label = " / ".join(item.name[key] for key in ("model", "method") if key in item.name)
        axes.plot(*zip(*item.points, strict=True), marker=".", label=label if len(series) <= 15 else None)
    axes.axhline(1, color="black", linewidth=0.8)
    _dress(axes, "speed-up over no speculation", legend=len(series) <= 15)
    if series[0].by_speed:
        axes.set_xlabel("output tokens/s of one user")
    _save(figure, path)


def _dress(axes: Any, label: str, *, legend: bool = True) -> None:
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlabel("running requests")
    axes.set_ylabel(label)
    axes.grid(alpha=0.3)
    if legend:
        axes.legend(fontsize=8)


def _save(figure: Any, path: Path) -> None:
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)
