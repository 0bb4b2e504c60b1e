"""The operator as a user runs it: the chart's RBAC, its ServiceAccount, `crossover run` as a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.api_server.control_plane import ControlPlane
from tests.api_server.processes import Process, free_ports

ROOT = Path(__file__).parents[2]
NAMESPACE = "crossover-system"
SERVICE_ACCOUNT = "crossover"


def install_chart(plane: ControlPlane) -> None:
    """`helm install` of the chart with its Deployment at 0 replicas: the process is started here instead of a pod."""
    helm = [str(plane.assets / "helm"), f"--kubeconfig={plane.kubeconfig}"]
    command = [
        *helm,
        "upgrade",
        "--install",
        "crossover",
        str(ROOT / "charts" / "crossover"),
        f"--namespace={NAMESPACE}",
        "--create-namespace",
        "--set=replicaCount=0",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    if done.returncode != 0:
        raise RuntimeError(f"helm: {done.stderr.strip()}")
    plane.wait_for(
        lambda: "modelautoscalers" in plane.kubectl("api-resources", "--api-group=crossover.dev", check=False),
        "the CRDs",
    )


class Operator:
    """One operator process. ``stop`` is a clean SIGTERM, ``kill`` a crash; ``start`` brings a new one up."""

    def __init__(self, plane: ControlPlane, folder: Path, **environment: str) -> None:
        self._plane, self._folder = plane, folder
        (self.port,) = free_ports(1)
        self._environment = environment
        self._process: Process | None = None
        self._starts = 0

    def start(self) -> Operator:
        self._starts += 1
        log = self._folder / f"operator-{self._starts}.log"
        env = {
            **os.environ,
            "KUBECONFIG": str(self._plane.service_account_kubeconfig(NAMESPACE, SERVICE_ACCOUNT)),
            "CROSSOVER_LEASE_NAMESPACE": NAMESPACE,
            "CROSSOVER_METRICS_ADDRESS": "127.0.0.1",
            "CROSSOVER_METRICS_PORT": str(self.port),
            "PYTHONPATH": os.pathsep.join([str(ROOT / "operator"), os.environ.get("PYTHONPATH", "")]),
            **self._environment,
        }
        self._process = Process("operator", [sys.executable, "-m", "crossover", "run"], log, env=env)
        return self

    def stop(self) -> None:
        if self._process is not None:
            self._process.stop()

    def kill(self) -> None:
        if self._process is not None:
            self._process.signal(9)
            self._process.stop()

    @property
    def log(self) -> str:
        return "\n".join(path.read_text(errors="replace") for path in sorted(self._folder.glob("operator-*.log")))

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.returncode is None


class Fleets:
    """ModelAutoscalers of one namespace, as a test looks at them."""

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        self.plane, self.namespace = plane, namespace

    def _path(self, name: str) -> str:
        return f"/apis/crossover.dev/v1alpha1/namespaces/{self.namespace}/modelautoscalers/{name}"

    def get(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.plane.get(self._path(name))
        return found

    def status(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.get(name).get("status", {})
        return found

    def condition(self, name: str, kind: str) -> dict[str, Any]:
        return next((item for item in self.status(name).get("conditions", []) if item["type"] == kind), {})

    def wait_condition(self, name: str, kind: str, status: str, reason: str | None = None) -> dict[str, Any]:
        def check() -> dict[str, Any] | None:
            found = self.condition(name, kind)
            good = found.get("status") == status and (reason is None or found.get("reason") == reason)
            return found if good else None

        try:
            found: dict[str, Any] = self.plane.wait_for(check, f"{name}: {kind}={status} {reason or ''}", seconds=40)
        except TimeoutError as error:
            shown = yaml.safe_dump(self.status(name))
            raise TimeoutError(f"{error}; status is:\n{shown}") from None
        return found

    def wait(self, name: str, check: Callable[[dict[str, Any]], object], what: str, *, seconds: float = 40) -> Any:
        try:
            return self.plane.wait_for(lambda: check(self.status(name)), f"{name}: {what}", seconds=seconds)
        except TimeoutError as error:
            raise TimeoutError(f"{error}; status is:\n{yaml.safe_dump(self.status(name))}") from None

    def deployment(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.plane.get(f"/apis/apps/v1/namespaces/{self.namespace}/deployments/{name}")
        return found

    def replicas(self, name: str) -> int:
        return int(self.deployment(name)["spec"]["replicas"])

    def events(self, name: str) -> list[dict[str, Any]]:
        listed = self.plane.get(f"/apis/events.k8s.io/v1/namespaces/{self.namespace}/events")["items"]
        return [item for item in listed if item["regarding"]["name"] == name]

    def patch_spec(self, name: str, spec: Mapping[str, Any]) -> None:
        self.plane.request("PATCH", self._path(name), {"spec": spec}, content_type="application/merge-patch+json")
