"""Acceptance by workload class, from the published acceptance lengths."""

import csv
from pathlib import Path
from statistics import median

import pytest
from scipy.optimize import brentq

from crossover.decide.step_model import acceptance_length
from crossover.simulate.plant import ACCEPTANCE

PUBLISHED = Path(__file__).parents[1] / "fixtures" / "published" / "acceptance-specforge.csv"
CLASSES = {
    "chat": {"mtbench"},
    "code": {"humaneval", "livecodebench"},
    "math": {"gsm8k", "math500"},
    "science": {"gpqa"},
    "finance": {"financeqa"},
}


@pytest.mark.parametrize("name", CLASSES)
def test_the_acceptance_of_a_class_is_the_median_of_its_published_chains(name):
    rows = list(csv.DictReader(PUBLISHED.open()))
    chains = [row for row in rows if row["dataset"] in CLASSES[name] and row["topk"] == "1"]
    found = [
        brentq(lambda a, row=row: acceptance_length(a, int(row["steps"])) - float(row["accept_len"]), 0.0, 0.9999)
        for row in chains
    ]
    assert len(found) >= 36
    assert ACCEPTANCE[name] == pytest.approx(median(found), abs=0.005)


def test_every_class_has_a_source():
    assert set(ACCEPTANCE) == set(CLASSES)
