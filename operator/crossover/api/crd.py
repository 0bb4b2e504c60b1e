"""From the pydantic models to CustomResourceDefinitions with structural schemas.

What pydantic's JSON schema says and a CRD cannot take is translated here: references are inlined, ``null`` alternatives
become "not required", titles and ``additionalProperties: false`` go (pruning does that), list types and CEL rules come.
"""

from __future__ import annotations

from typing import Any, get_args

from pydantic import BaseModel

from crossover.api.resources import GROUP, VERSION, Calibration, ModelAutoscaler
from crossover.api.resources.base import Resource

Schema = dict[str, Any]

_KEPT = (
    "type",
    "description",
    "enum",
    "pattern",
    "format",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "maxItems",
    "minItems",
    "default",
)
Column = tuple[str, str, str, int]
"""Name, type, JSON path, priority (1 = only with -o wide)."""

AUTOSCALER_COLUMNS: tuple[Column, ...] = (
    ("Target", "string", ".spec.scaleTargetRef.name", 0),
    ("Engine", "string", ".status.fleet.engine", 0),
    ("Replicas", "integer", ".status.replicas", 0),
    ("Running", "string", ".status.fleet.meanRunningRequests", 0),
    ("Crossover", "string", ".status.crossover.runningRequests", 0),
    ("Draft", "string", ".status.fleet.draftTokens", 0),
    ("Mode", "string", ".spec.mode", 0),
    ("Ready", "string", '.status.conditions[?(@.type=="Ready")].status', 0),
    ("Age", "date", ".metadata.creationTimestamp", 0),
    ("Waiting", "integer", ".status.fleet.waitingRequests", 1),
    ("TPOT ms", "integer", ".status.fleet.timePerOutputTokenMilliseconds", 1),
    ("Reason", "string", '.status.conditions[?(@.type=="Ready")].reason', 1),
)
CALIBRATION_COLUMNS: tuple[Column, ...] = (
    ("Target", "string", ".spec.targetRef.name", 0),
    ("Engine", "string", ".status.environment.engine", 0),
    ("Crossover", "string", ".status.crossover", 0),
    ("Progress", "string", ".status.progress", 0),
    ("Ready", "string", '.status.conditions[?(@.type=="Ready")].status', 0),
    ("Age", "date", ".metadata.creationTimestamp", 0),
    ("Schedule", "string", ".status.schedule", 1),
    ("Reason", "string", '.status.conditions[?(@.type=="Ready")].reason', 1),
)

SCALE = {
    "specReplicasPath": ".spec.replicas.min",
    "statusReplicasPath": ".status.replicas",
    "labelSelectorPath": ".status.selector",
}
"""`kubectl scale mas NAME --replicas=N` sets the floor: the count itself is the operator's to decide."""


def custom_resource_definitions() -> dict[str, dict[str, Any]]:
    """File name -> CRD, for every kind of the group."""
    autoscaler = _crd(ModelAutoscaler, "modelautoscaler", "mas", AUTOSCALER_COLUMNS, {"scale": SCALE})
    calibration = _crd(Calibration, "calibration", "cal", CALIBRATION_COLUMNS, {})
    return {f"{GROUP}_{crd['spec']['names']['plural']}.yaml": crd for crd in (calibration, autoscaler)}


def _crd(
    model: type[Resource], singular: str, short: str, columns: tuple[Column, ...], subresources: Schema
) -> dict[str, Any]:
    schema = structural(model)
    properties = schema["properties"]
    top = {"apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": {"type": "object"}}
    schema["properties"] = {**top, "spec": properties["spec"], "status": properties["status"]}
    schema["required"] = ["spec"]
    kind, plural = model.__name__, f"{singular}s"
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": plural,
                "singular": singular,
                "shortNames": [short],
                "categories": ["crossover"],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema},
                    "subresources": {"status": {}, **subresources},
                    "additionalPrinterColumns": [
                        {"name": name, "type": type_, "jsonPath": path, "priority": priority}
                        for name, type_, path, priority in columns
                    ],
                }
            ],
        },
    }


def structural(model: type[BaseModel]) -> Schema:
    """The structural schema of one model. Raises ValueError for what a CRD cannot express."""
    raw = model.model_json_schema(by_alias=True, mode="validation")
    return _with_rules(_convert(raw, raw.get("$defs", {})), model)


def _convert(node: Schema, definitions: dict[str, Schema]) -> Schema:
    if "$ref" in node:
        target = definitions[node["$ref"].rsplit("/", 1)[-1]]
        return _convert({**target, **{key: value for key, value in node.items() if key != "$ref"}}, definitions)
    if "anyOf" in node:
        choices = [choice for choice in node["anyOf"] if choice.get("type") != "null"]
        if len(choices) != 1:
            raise ValueError("a CRD field has one type")
        rest = {
            key: value for key, value in node.items() if key != "anyOf" and not (key == "default" and value is None)
        }
        return _convert({**choices[0], **rest}, definitions)
    if "const" in node:
        node = {**node, "enum": [node["const"]], "type": "string"}
    schema = {key: node[key] for key in _KEPT if key in node and not (key == "default" and node[key] is None)}
    schema |= {key: value for key, value in node.items() if key.startswith("x-kubernetes-")}
    if node.get("type") == "object":
        schema |= _object(node, definitions)
    if node.get("type") == "array":
        schema["items"] = _convert(node["items"], definitions)
        schema["x-kubernetes-list-type"] = "map" if "x-kubernetes-list-map-keys" in node else "atomic"
    if node.get("type") == "integer":
        schema["format"] = "int64"
    return schema


def _object(node: Schema, definitions: dict[str, Schema]) -> Schema:
    properties = {name: _convert(value, definitions) for name, value in node.get("properties", {}).items()}
    required = [name for name in node.get("required", ()) if name in properties]
    return {"properties": properties, **({"required": required} if required else {})}


def _with_rules(schema: Schema, model: type[BaseModel]) -> Schema:
    """CEL rules beside the object they speak of, found by walking the models along the schema."""
    rules = getattr(model, "cel_rules", ())
    if rules:
        schema["x-kubernetes-validations"] = [rule.as_validation() for rule in rules]
    for name, field in model.model_fields.items():
        inner = _resource_in(field.annotation)
        place = schema["properties"].get(field.alias or name)
        if inner is None or place is None:
            continue
        _with_rules(place["items"] if place.get("type") == "array" else place, inner)
    return schema


def _resource_in(annotation: Any) -> type[Resource] | None:
    if isinstance(annotation, type) and issubclass(annotation, Resource):
        return annotation
    for part in get_args(annotation):
        found = _resource_in(part)
        if found is not None:
            return found
    return None
