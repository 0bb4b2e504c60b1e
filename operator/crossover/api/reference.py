"""The reference page of a resource, from its schema: one row a field."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from crossover.api.crd import custom_resource_definitions

Row = tuple[str, str, str, str]


def reference_pages() -> dict[str, str]:
    """File name -> Markdown."""
    pages = {}
    for crd in custom_resource_definitions().values():
        kind = crd["spec"]["names"]["kind"]
        schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        lines = [
            f"# {kind}",
            "",
            f"{schema['description']} Group `{crd['spec']['group']}`, version `{crd['spec']['versions'][0]['name']}`, short name "
            f"`{crd['spec']['names']['shortNames'][0]}`. Generated from the models by `make docs`.",
        ]
        for part in ("spec", "status"):
            lines += ["", f"## {part}", "", "| field | type | default | meaning |", "|---|---|---|---|"]
            lines += [
                f"| `{name}` | {kind_} | {default} | {text} |" for name, kind_, default, text in _rows(schema, part)
            ]
            lines += _rules(schema["properties"][part], part)
        pages[f"{kind.lower()}.md"] = "\n".join([*lines, ""])
    return pages


def _rows(schema: dict[str, Any], name: str) -> Iterator[Row]:
    yield from _walk(schema["properties"][name], "", set())


def _walk(node: dict[str, Any], path: str, required: set[str]) -> Iterator[Row]:
    for name, inner in node.get("properties", {}).items():
        here = f"{path}{name}"
        needed = name in node.get("required", ())
        default = "required" if needed else (f"`{inner['default']}`" if _plain(inner.get("default")) else "")
        yield here, _type(inner), default, str(inner.get("description", "")).replace("|", "\\|").replace("\n", " ")
        yield from _walk(inner, f"{here}.", required)
        if "items" in inner:
            yield from _walk(inner["items"], f"{here}[].", required)


def _plain(value: Any) -> bool:
    return value is not None and not isinstance(value, dict)


def _type(node: dict[str, Any]) -> str:
    if "enum" in node:
        return ", ".join(f"`{choice}`" for choice in node["enum"])
    kind = str(node["type"])
    low, high = node.get("minimum"), node.get("maximum")
    if low is not None and high is not None and high < 2**31 - 1:
        return f"{kind}, {low} to {high}"
    return f"list, at most {node['maxItems']}" if kind == "array" else kind


def _rules(node: dict[str, Any], path: str) -> list[str]:
    """What holds across fields."""
    found = list(_collect(node, path))
    return ["", "Rules across fields:", "", *(f"- `{where}`: {text}" for where, text in found)] if found else []


def _collect(node: dict[str, Any], path: str) -> Iterator[tuple[str, str]]:
    for rule in node.get("x-kubernetes-validations", ()):
        yield f"{path}{rule['fieldPath']}", rule["message"]
    for name, inner in node.get("properties", {}).items():
        yield from _collect(inner, f"{path}.{name}")
