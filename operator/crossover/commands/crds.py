"""`crossover crds`: the CustomResourceDefinitions, generated from the models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from crossover.api.crd import custom_resource_definitions
from crossover.api.reference import reference_pages

app = typer.Typer()

HEADER = "# Generated from the models in crossover.api.resources by `make crds`. Do not edit.\n"
CHART_HEAD = (
    "{{- if .Values.crds.enabled }}\n"
    "# Generated from the models in crossover.api.resources by `make crds`. Do not edit.\n"
)


@app.command()
def crds(
    directory: Annotated[Path | None, typer.Option("--dir", help="Write the files into this folder.")] = None,
    chart: Annotated[Path | None, typer.Option("--chart", help="Also write the chart's templates here.")] = None,
    docs: Annotated[Path | None, typer.Option("--docs", help="Write the reference pages into this folder.")] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Exit 1 when crds/ or the chart differ from the models.")
    ] = False,
) -> None:
    """Print the CustomResourceDefinitions (without options), write them, or check the committed ones for drift."""
    if check:
        _check()
        return
    if directory is None and chart is None and docs is None:
        typer.echo("---\n".join(rendered().values()), nl=False)
    for folder, files in ((directory, rendered()), (chart, chart_templates()), (docs, reference_pages())):
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            for name, text in files.items():
                (folder / name).write_text(text)


def rendered() -> dict[str, str]:
    """File name -> YAML as committed in crds/."""
    return {name: HEADER + _dump(crd) for name, crd in custom_resource_definitions().items()}


def chart_templates() -> dict[str, str]:
    """File name -> Helm template: kept on uninstall, so that nobody's ModelAutoscalers vanish with the operator."""
    templates = {}
    for name, crd in custom_resource_definitions().items():
        kept = {**crd, "metadata": {**crd["metadata"], "annotations": {"helm.sh/resource-policy": "keep"}}}
        body = _dump(kept).replace("{{", "{{ `{{` }}")
        templates[f"crd-{name.partition('_')[2]}"] = f"{CHART_HEAD}{body}{{{{- end }}}}\n"
    return templates


def _dump(document: dict[str, Any]) -> str:
    return yaml.safe_dump(document, sort_keys=False, width=120, allow_unicode=True)


def _check() -> None:
    wanted = {Path("crds") / name: text for name, text in rendered().items()}
    wanted |= {Path("charts/crossover/templates") / name: text for name, text in chart_templates().items()}
    wanted |= {Path("docs/reference") / name: text for name, text in reference_pages().items()}
    stale = [path for path, text in wanted.items() if not path.exists() or path.read_text() != text]
    for path in stale:
        typer.echo(f"{path} differs from the models: run make crds docs", err=True)
    if stale:
        raise typer.Exit(1)
    typer.echo("crds: crds/, the chart and docs/reference agree with the models")
