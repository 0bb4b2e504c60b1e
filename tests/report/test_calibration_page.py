"""Every reason that a Calibration can show is explained to who looks it up."""

import re
from pathlib import Path

from crossover.report.calibration import Why

DOCS = Path(__file__).parents[2] / "docs"
SOURCES = Path(__file__).parents[2] / "operator" / "crossover"


def test_every_reason_of_a_calibration_stands_in_troubleshooting():
    _, section = (DOCS / "troubleshooting.md").read_text().split("## Why has my Calibration no result?")
    rows = [line for line in section.splitlines() if line.startswith("| ")]
    explained = {word.strip() for row in rows for word in row.split("|")[2].split(",")}
    assert {str(reason) for reason in Why} - explained == set()
    refused = {code for path in SOURCES.rglob("*.py") for code in re.findall(r'Refusal\(\s*"(\w+)"', path.read_text())}
    assert explained - {str(reason) for reason in Why} - refused == {"reason"}, "and none that does not exist"


def test_the_page_is_linked_from_where_users_start():
    for page in ("README.md", "troubleshooting.md"):
        assert "(calibration-resource.md)" in (DOCS / page).read_text()
    assert "docs/calibration-resource.md" in (DOCS.parent / "README.md").read_text()
