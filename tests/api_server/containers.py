"""From a pod's container to a process on this machine: command line, environment, ConfigMap files."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Pod = Mapping[str, Any]
Container = Mapping[str, Any]

EMULATED = (("emulated-sglang", "sglang"), ("emulated-vllm", "vllm"), ("emulated-trtllm", "trtllm"))


@dataclass(frozen=True)
class Launch:
    """What to start for a container; ``argv`` None = no process, the pod is simply Ready."""

    argv: Sequence[str] | None
    env: Mapping[str, str]


Launcher = Callable[[Pod, Container, str, Path], Launch]
"""(pod, container, pod address, folder that stands for the container's root) -> Launch."""


def emulated(pod: Pod, container: Container, address: str, root: Path) -> Launch:
    """Images named `.../emulated-ENGINE:*` become the emulator, given the unmodified container command line."""
    env = environment(pod, container, address)
    command = [expand(word, env) for word in (*container.get("command", ()), *container.get("args", ()))]
    image = str(container["image"])
    for part, engine in EMULATED:
        if part in image:
            flags = ["--address", address, "--root", str(root)]
            argv = [sys.executable, "-m", "crossover", "emulate", engine, *flags, "--", *command]
            return Launch(argv, {**os.environ, **env})
    return Launch(command or None, {**os.environ, **env})


def idle(pod: Pod, container: Container, address: str, root: Path) -> Launch:
    """No process at all: for tests with thousands of pods."""
    return Launch(None, {})


def environment(pod: Pod, container: Container, address: str) -> dict[str, str]:
    """The container's own variables; fieldRef for the few fields that servers use."""
    fields = {
        "metadata.name": pod["metadata"]["name"],
        "metadata.namespace": pod["metadata"]["namespace"],
        "metadata.uid": pod["metadata"]["uid"],
        "status.podIP": address,
    }
    env: dict[str, str] = {}
    for item in container.get("env", ()):
        if "value" in item:
            env[item["name"]] = expand(item["value"], env)
        else:
            path = item.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
            if path in fields:
                env[item["name"]] = fields[path]
    return env


def expand(text: str, env: Mapping[str, str]) -> str:
    """`$(VAR)` as the kubelet does: unknown names stay, `$$` is an escape."""
    return re.sub(
        r"\$\$|\$\(([A-Za-z_][A-Za-z0-9_.-]*)\)",
        lambda match: "$" if match[0] == "$$" else env.get(match[1], match[0]),
        text,
    )


def write_files(pod: Pod, container: Container, config_maps: Mapping[str, Mapping[str, str]], root: Path) -> None:
    """ConfigMap mounts of the container below ``root``."""
    volumes = {volume["name"]: volume for volume in pod["spec"].get("volumes", ())}
    for mount in container.get("volumeMounts", ()):
        source = volumes.get(mount["name"], {}).get("configMap")
        if source is None:
            continue
        content = config_maps[source["name"]]
        place = root / str(mount["mountPath"]).lstrip("/")
        items = source.get("items") or [{"key": key, "path": key} for key in content]
        if mount.get("subPath"):
            chosen = next(item for item in items if item["path"] == mount["subPath"])
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(content[chosen["key"]])
            continue
        place.mkdir(parents=True, exist_ok=True)
        for item in items:
            (place / item["path"]).write_text(content[item["key"]])


def config_map_names(pod: Pod) -> list[str]:
    return [volume["configMap"]["name"] for volume in pod["spec"].get("volumes", ()) if "configMap" in volume]
