"""Calibration points in files: CSV tables, JSON, Calibration objects. What one command writes, every other one reads."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from crossover.api.invalid import explain
from crossover.api.points import CalibrationPoint
from crossover.api.resources import GROUP, VERSION
from crossover.api.resources.calibration import PointSpec
from crossover.calibrate.result import from_csv, from_json, to_csv, to_json
from crossover.decide.tables import TableError

MOST_BYTES = 20_000_000
OBJECTS = (".json", ".yaml", ".yml")
MANIFEST = (".yaml", ".yml")


def read(path: Path) -> list[CalibrationPoint]:
    """By its suffix: JSON or YAML (a list of points, what `crossover calibrate --json` prints, a Calibration), else CSV.
    Raises `TableError` with what is wrong where, `OSError`."""
    text = text_of(path)
    return _of_document(text) if path.suffix.lower() in OBJECTS else from_csv(text)


def text_of(path: Path) -> str:
    """Raises `TableError` for what is not text of a sensible size, `OSError`."""
    if path.stat().st_size > MOST_BYTES:
        raise TableError(f"larger than {MOST_BYTES} bytes: this is not a table of measurements")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise TableError("is not UTF-8 text: export the table as CSV") from None


def write(path: Path, points: Sequence[CalibrationPoint]) -> None:
    """By its suffix: ``.json``, ``.yaml`` (a Calibration with these points, named like the file), else CSV. Raises
    `OSError`."""
    suffix = path.suffix.lower()
    if suffix in MANIFEST:
        text = yaml.safe_dump(manifest(path.stem, points), sort_keys=False)
    elif suffix == ".json":
        text = json.dumps({"points": to_json(points)}, indent=2) + "\n"
    else:
        text = to_csv(points)
    path.write_text(text, encoding="utf-8")


def manifest(name: str, points: Sequence[CalibrationPoint]) -> dict[str, Any]:
    """What `kubectl apply` takes: nothing is measured then."""
    given = [PointSpec.of_point(point).model_dump(by_alias=True, exclude_none=True) for point in points]
    named = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "calibration"
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": "Calibration",
        "metadata": {"name": named},
        "spec": {"points": given},
    }


def _of_document(text: str) -> list[CalibrationPoint]:
    try:
        document = yaml.safe_load(text)  # JSON is YAML
    except yaml.YAMLError:
        raise TableError("is neither JSON nor YAML") from None
    if isinstance(document, dict) and str(document.get("kind", "")).endswith("List"):
        items = [item for item in document.get("items") or [] if isinstance(item, dict)]
        found = [item for item in items if item.get("kind") == "Calibration"]
        if len(found) != 1:
            raise TableError(f"holds {len(found)} Calibrations, needs exactly one: kubectl get cal NAME -o yaml")
        document = found[0]
    if isinstance(document, dict) and document.get("kind") == "Calibration":
        return _of_object(document)
    points = document.get("points") if isinstance(document, dict) else document
    if not isinstance(points, list) or not points or not all(isinstance(item, dict) for item in points):
        raise TableError("holds no points: a list of them, an object with the key points, or a Calibration")
    try:
        found_points = from_json(points)
        for point in found_points:
            PointSpec.of_point(point)
    except ValidationError as error:
        raise TableError(f"points: {explain(error)[0]}") from None
    except (ValueError, TypeError) as error:
        raise TableError(f"points: {error}") from None
    return found_points


def _of_object(body: Mapping[str, Any]) -> list[CalibrationPoint]:
    """Given in spec, else measured in status."""
    for place in ("spec", "status"):
        part = body.get(place)
        points = part.get("points") if isinstance(part, dict) else None
        if not points:
            continue
        try:
            return [PointSpec.model_validate(point).to_point() for point in points]
        except (ValidationError, TypeError) as error:
            told = explain(error)[0] if isinstance(error, ValidationError) else error
            raise TableError(f"{place}.points: {told}") from None
    raise TableError("this Calibration has no points yet: see its status.progress")
