"""What is asked of a server: input and output lengths from fixed values, quantiles or a trace, and texts to send."""

from __future__ import annotations

import csv
import random
from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO
from itertools import pairwise
from statistics import fmean

INPUT_COLUMNS = ("input_tokens", "input_length", "request tokens", "contexttokens", "num_prefill_tokens")
OUTPUT_COLUMNS = ("output_tokens", "output_length", "response tokens", "generatedtokens", "num_decode_tokens")
MOST_PAIRS = 20_000
QUANTILE_PAIRS = 512


class WorkloadError(ValueError):
    """Lengths that cannot be used: which, and what would do."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests to draw from. Lengths in tokens; output lengths are enforced (end of text is ignored)."""

    pairs: tuple[tuple[int, int], ...]
    """(input tokens, output tokens), equally likely."""
    prompts: tuple[str, ...] = ()
    """Texts to send instead of ours: acceptance depends on what is written. They decide the input length."""

    def __post_init__(self) -> None:
        if not self.pairs:
            raise WorkloadError("workload: no requests in it")
        for given, wanted in self.pairs:
            if given < 1 or wanted < 2:
                raise WorkloadError(
                    f"workload: {given} input and {wanted} output tokens: at least 1 and 2 are needed to measure decoding"
                )

    @classmethod
    def fixed(cls, input_tokens: int, output_tokens: int, prompts: Sequence[str] = ()) -> Workload:
        return cls(((input_tokens, output_tokens),), tuple(prompts))

    @classmethod
    def of_quantiles(
        cls,
        inputs: Sequence[tuple[float, float]],
        outputs: Sequence[tuple[float, float]],
        prompts: Sequence[str] = (),
        *,
        seed: int = 1,
    ) -> Workload:
        """Independent lengths with these (quantile 0..1, tokens), straight lines between them. Raises `WorkloadError`."""
        for name, given in (("input", inputs), ("output", outputs)):
            _rising(name, given)
        draw = random.Random(seed)
        shares = [(place + 0.5) / QUANTILE_PAIRS for place in range(QUANTILE_PAIRS)]
        ins, outs = [_quantile(inputs, share) for share in shares], [_quantile(outputs, share) for share in shares]
        draw.shuffle(ins)
        draw.shuffle(outs)
        return cls(tuple((max(1, i), max(2, o)) for i, o in zip(ins, outs, strict=True)), tuple(prompts))

    @classmethod
    def of_trace(cls, text: str) -> Workload:
        """CSV with a column of input and one of output tokens, under the names that public traces use."""
        rows = csv.DictReader(StringIO(text))
        columns = {name.strip().lower(): name for name in rows.fieldnames or ()}
        given = next((columns[name] for name in INPUT_COLUMNS if name in columns), None)
        wanted = next((columns[name] for name in OUTPUT_COLUMNS if name in columns), None)
        if given is None or wanted is None:
            raise WorkloadError("trace: needs the columns input_tokens and output_tokens in its first line")
        pairs = []
        for line, row in enumerate(rows, start=2):
            try:
                pair = (int(float(row[given] or "")), int(float(row[wanted] or "")))
            except (TypeError, ValueError):
                raise WorkloadError(f"trace, line {line}: input or output tokens are not a number") from None
            if pair[0] >= 1 and pair[1] >= 2:
                pairs.append(pair)
            if len(pairs) >= MOST_PAIRS:
                break
        return cls(tuple(pairs))

    def draw(self, random_: random.Random) -> tuple[int, int]:
        return random_.choice(self.pairs)

    @property
    def mean_output_tokens(self) -> float:
        return fmean(wanted for _, wanted in self.pairs)

    @property
    def context_tokens(self) -> float:
        """Mean KV tokens of a running request in steady state: requests count by the time they run, so long answers
        count more: E[(in + out/2) out] / E[out]."""
        return sum((given + wanted / 2) * wanted for given, wanted in self.pairs) / sum(w for _, w in self.pairs)


def _rising(name: str, given: Sequence[tuple[float, float]]) -> None:
    ordered = sorted(given)
    if any(not 0 <= share <= 1 for share, _ in given):
        raise WorkloadError(f"workload: {name} percentiles lie between 0 and 100")
    if any(later < earlier for (_, earlier), (_, later) in pairwise(ordered)):
        raise WorkloadError(f"workload: {name} tokens must not fall from one percentile to a higher one")


def _quantile(given: Sequence[tuple[float, float]], share: float) -> int:
    points = sorted(given)
    if not points:
        raise WorkloadError("workload: no quantiles in it")
    if share <= points[0][0]:
        return round(points[0][1])
    for (low, before), (high, after) in pairwise(points):
        if share <= high:
            return round(before + (after - before) * (share - low) / (high - low)) if high > low else round(after)
    return round(points[-1][1])
