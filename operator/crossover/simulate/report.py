"""`report.html`: one self-contained page with pictures, for a browser and for print."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any

from matplotlib import colormaps
from matplotlib.figure import Figure
from scipy.stats import t as student_t

from crossover.simulate.compare import Comparison
from crossover.simulate.run import Outcome
from crossover.simulate.verdict import sentences, verdicts

COLUMNS: tuple[tuple[str, str, str], ...] = (
    ("policy", "policy", "s"),
    ("gpu_hours", "GPU-hours", ".2f"),
    ("attainment", "within both targets", ".1%"),
    ("ttft_attainment", "TTFT", ".1%"),
    ("tpot_attainment", "TPOT", ".1%"),
    ("output_tokens_within_slo_per_gpu_hour", "tokens in SLO / GPU-hour", ",.0f"),
    ("ttft_p99_s", "TTFT p99 s", ".2f"),
    ("tpot_p99_s", "TPOT p99 s", ".4f"),
    ("replica_changes", "scale events", "d"),
    ("reversals", "reversals", "d"),
    ("draft_changes", "draft changes", "d"),
    ("restarts", "restarts", "d"),
    ("dropped_requests", "dropped", ".0f"),
)
ROWS = (
    ("arrivals", "requests/s"),
    ("ready", "replicas"),
    ("batch", "running requests per replica"),
    ("draft", "draft length"),
    ("tpot", "TPOT s"),
    ("waiting", "waiting requests"),
)
LEAST_MISSED = 0.02
"""Percent; where a picture with a logarithmic axis ends."""
COLOURS = colormaps["tab20"].colors  # type: ignore[attr-defined]
STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:1100px;margin:2rem auto;padding:0 1rem;color:#1a1a1a}
table{border-collapse:collapse;width:100%;font-size:13px}th,td{padding:.3rem .5rem;border-bottom:1px solid #ddd;text-align:right}
th:first-child,td:first-child{text-align:left}img{max-width:100%}h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2rem}
pre{font:13px/1.5 ui-monospace,monospace;white-space:pre-wrap}
@media print{body{margin:0}h2{break-before:auto}img{break-inside:avoid}}"""


def html_page(comparison: Comparison, notes: Sequence[str], belief: tuple[Figure, str] | None = None) -> str:
    """``notes``: how it was made, one sentence each. ``belief``: a picture of what the controller goes by, and how to read
    it."""
    first_seed = min(item.seed for item in comparison.outcomes)
    shown = [item for item in comparison.outcomes if item.seed == first_seed]
    parts = [
        f"<h1>{html.escape(comparison.trace)}: policies side by side</h1>",
        "<ul>" + "".join(f"<li>{html.escape(note)}</li>" for note in notes) + "</ul>",
        "<h2>Verdict at equal or better attainment</h2>",
        *(f"<pre>{html.escape(chr(10).join(sentences(item)))}</pre>" for item in verdicts(comparison)),
        "<h2>Cost against attainment</h2>",
        _image(_scatter(comparison), "GPU-hours against attainment, one point a policy and seed"),
        "<h2>Measures</h2>",
        _table(comparison.outcomes),
        *(_belief(*belief) if belief is not None else ()),
        "<h2>What happened</h2>",
        *(_image(_timeline(item), f"{item.policy} over time") for item in shown),
    ]
    title = html.escape(comparison.trace)
    head = f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>{STYLE}</style></head>'
    return f"{head}<body>{''.join(parts)}</body></html>\n"


def rows(outcomes: Sequence[Outcome], columns: Sequence[tuple[str, str, str]]) -> list[list[str]]:
    """A row a policy, in the order of the outcomes: the value, or mean and 95 % interval over the seeds."""
    groups: dict[str, list[Outcome]] = {}
    for item in outcomes:
        groups.setdefault(item.policy, []).append(item)
    return [
        [_cell([getattr(item, name) for item in group], form) for name, _, form in columns] for group in groups.values()
    ]


def _cell(values: Sequence[Any], form: str) -> str:
    if len(values) == 1 or isinstance(values[0], str):
        return format(values[0], form)
    form = ".1f" if form == "d" else form
    half = stdev(values) / len(values) ** 0.5 * float(student_t.ppf(0.975, len(values) - 1))
    return f"{format(fmean(values), form)} ± {format(half, form)}"


def _table(outcomes: Sequence[Outcome]) -> str:
    head = "".join(f"<th>{title}</th>" for _, title, _ in COLUMNS)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows(outcomes, COLUMNS))
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _image(png: bytes, text: str) -> str:
    return f'<p><img alt="{html.escape(text)}" src="data:image/png;base64,{base64.b64encode(png).decode()}"></p>'


def _belief(figure: Figure, how_to_read: str) -> tuple[str, ...]:
    return (
        "<h2>What the controller goes by</h2>",
        f"<p>{html.escape(how_to_read)}</p>",
        _image(_png(figure), "output tokens/s and gain over running requests, crossovers marked"),
    )


def _scatter(comparison: Comparison) -> bytes:
    """Large: as tuned. Small: every other choice over the contest, where that was asked for."""
    figure = Figure(figsize=(9, 4.5), layout="constrained")
    axes = figure.subplots()
    names = list(dict.fromkeys(item.policy for item in comparison.outcomes))
    for number, name in enumerate(names):
        mine = [item for item in comparison.outcomes if item.policy == name]
        others = [item.outcome for item in comparison.frontier if item.policy == name]
        marker = "*" if name.startswith(("crossover", "clairvoyant")) else "o"
        for group, size, label in ((others, 9, None), (mine, 110 if marker == "*" else 40, name)):
            axes.scatter(
                [item.gpu_hours for item in group],
                [max(100 * (1 - item.attainment), LEAST_MISSED) for item in group],
                label=label,
                marker=marker,
                s=size,
                color=COLOURS[number % len(COLOURS)],
                alpha=0.85,
            )
    axes.set(xlabel="GPU-hours", ylabel="requests that missed a target, %", xscale="log", yscale="log")
    axes.invert_yaxis()
    axes.grid(alpha=0.3, which="both")
    figure.legend(loc="outside right upper", fontsize=8)
    return _png(figure)


def _timeline(item: Outcome) -> bytes:
    figure = Figure(figsize=(9, 7), layout="constrained")
    axes = figure.subplots(len(ROWS), 1, sharex=True)
    hours = [second / 3600 for second in item.series.seconds]
    for place, (name, title) in zip(axes, ROWS, strict=True):
        place.plot(hours, getattr(item.series, name), linewidth=0.9)
        place.set_ylabel(title, fontsize=7)
        place.grid(alpha=0.3)
        place.set_ylim(bottom=0)
    axes[-1].set_xlabel("hours")
    figure.suptitle(f"{item.policy}, seed {item.seed}", fontsize=10)
    return _png(figure)


def _png(figure: Figure) -> bytes:
    target = io.BytesIO()
    figure.savefig(target, format="png", dpi=90)
    return target.getvalue()
