"""The generated CRDs: as committed, structural, bounded."""

from pathlib import Path

import yaml

from crossover.api.crd import custom_resource_definitions
from crossover.commands.crds import chart_templates, rendered

ROOT = Path(__file__).parents[2]


def test_committed_files_are_what_the_models_say():
    for name, text in rendered().items():
        assert (ROOT / "crds" / name).read_text() == text
    for name, text in chart_templates().items():
        assert (ROOT / "charts/crossover/templates" / name).read_text() == text


def walk(schema, path=""):
    yield path, schema
    for name, inner in schema.get("properties", {}).items():
        yield from walk(inner, f"{path}.{name}")
    if "items" in schema:
        yield from walk(schema["items"], f"{path}[]")


def test_every_list_string_and_integer_is_bounded_and_described_lists_have_a_type():
    for crd in custom_resource_definitions().values():
        schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        for path, node in walk(schema):
            if not path.startswith((".spec", ".status")):
                continue
            if node["type"] == "array":
                assert {"maxItems", "x-kubernetes-list-type"} <= set(node), path
            if node["type"] == "string":
                assert "maxLength" in node or "enum" in node, path
            if node["type"] == "integer" and path.startswith(".spec"):
                assert {"minimum", "maximum"} <= set(node), path
            if path.startswith(".spec") and node["type"] != "object":
                assert node.get("description") or path.endswith("[]"), path


def test_nothing_that_a_crd_cannot_say_is_left():
    text = yaml.safe_dump(custom_resource_definitions())
    for word in ("$ref", "anyOf", "additionalProperties", "title:", "const:", "$defs"):
        assert word not in text
