"""etcd, kube-apiserver and kube-controller-manager, started in seconds and stopped cleanly."""

from __future__ import annotations

import json
import secrets
import shutil
import ssl
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import yaml
from hack.assets import assets

from tests.api_server.processes import Process, free_ports

START_SECONDS = 60.0

AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata"}],
}


class ControlPlane:
    """One control plane in one scratch folder.

    ``audit``: write an audit log of every request (`audit_events()` reads it).
    ``controllers``: start kube-controller-manager too.
    The folder with logs and credentials is removed on a clean exit and kept, with its path printed, on a failure.
    """

    def __init__(self, *, audit: bool = False, controllers: bool = True) -> None:
        self._audit, self._controllers = audit, controllers
        self.folder = Path(tempfile.mkdtemp(prefix="crossover-control-plane-"))
        self.assets = assets()
        self._token = secrets.token_urlsafe(32)
        self._etcd_port, self._peer_port, self._api_port, self._manager_port = free_ports(4)
        self._processes: list[Process] = []
        self.start_seconds: float | None = None
        """What the start took, from nothing to controllers working."""

    # -- life ---------------------------------------------------------------------------------------------------------

    def __enter__(self) -> ControlPlane:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop(keep_logs=error is not None)

    def start(self) -> ControlPlane:
        """Start everything and wait until it works. On failure the logs are kept and their end is in the error."""
        began = time.monotonic()
        try:
            self._write_credentials()
            self._start_etcd()
            self._start_api_server()
            if self._controllers:
                self._start_controller_manager()
        except BaseException:
            self.stop(keep_logs=True)
            raise
        self.start_seconds = time.monotonic() - began
        return self

    def stop(self, *, keep_logs: bool = False) -> None:
        for process in reversed(self._processes):
            process.stop()
        self._processes.clear()
        if keep_logs:
            print(f"control plane: logs kept in {self.folder}", flush=True)
        else:
            shutil.rmtree(self.folder, ignore_errors=True)

    def restart_api_server(self, *, down_seconds: float = 0.0) -> None:
        """Take the API server away and bring it back on the same port, as in an upgrade."""
        server = self._process("kube-apiserver")
        server.stop()
        self._processes.remove(server)
        time.sleep(down_seconds)
        self._start_api_server()

    def stop_api_server(self) -> None:
        server = self._process("kube-apiserver")
        server.stop()
        self._processes.remove(server)

    def start_api_server(self) -> None:
        self._start_api_server()

    # -- use ----------------------------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self._api_port}"

    @property
    def kubeconfig(self) -> Path:
        """Cluster administrator."""
        return self._kubeconfig("admin", self._token)

    def service_account_kubeconfig(self, namespace: str, name: str, *, seconds: int = 7200) -> Path:
        """A kubeconfig with a real token of that ServiceAccount (TokenRequest API): exactly its rights."""
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": seconds},
        }
        answer = self.request("POST", f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token", body)
        return self._kubeconfig(f"{namespace}-{name}", answer["status"]["token"])

    def request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        content_type: str = "application/json",
    ) -> Any:
        """One request as administrator; the decoded answer. Raises urllib.error.HTTPError."""
        request = urllib.request.Request(
            self.url + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {self._token}", "Content-Type": content_type},
        )
        with urllib.request.urlopen(request, context=self._tls(), timeout=30) as answer:
            return json.loads(answer.read() or b"null")

    def get(self, path: str) -> Any:
        return self.request("GET", path)

    def kubectl(self, *arguments: str, stdin: str | None = None, check: bool = True) -> str:
        """kubectl as administrator; its output. Raises RuntimeError with what it said."""
        command = [str(self.assets / "kubectl"), f"--kubeconfig={self.kubeconfig}", *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False, timeout=120)
        if check and done.returncode != 0:
            raise RuntimeError(f"kubectl {' '.join(arguments)}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout + ("" if check else done.stderr)

    def apply(self, *manifests: Mapping[str, Any]) -> None:
        """Server-side apply as administrator, in one kubectl call."""
        text = "\n---\n".join(json.dumps(manifest) for manifest in manifests)
        self.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=text)

    def create_namespace(self, name: str) -> None:
        """A namespace with its default ServiceAccount, ready for pods."""
        self.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        self.wait_for(lambda: self._exists(f"/api/v1/namespaces/{name}/serviceaccounts/default"), f"namespace {name}")

    def audit_events(self) -> list[dict[str, Any]]:
        """Every request answered so far, oldest first (needs ``audit=True``)."""
        path = self.folder / "audit.log"
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def wait_for(self, check: Callable[[], object], what: str, *, seconds: float = START_SECONDS) -> Any:
        """Poll until ``check`` returns something true; returns it. Raises TimeoutError naming ``what``."""
        deadline = time.monotonic() + seconds
        while True:
            result = check()
            if result:
                return result
            self._fail_if_dead()
            if time.monotonic() > deadline:
                raise TimeoutError(f"{what}: not within {seconds:.0f} s")
            time.sleep(0.05)

    # -- parts --------------------------------------------------------------------------------------------------------

    def _write_credentials(self) -> None:
        (self.folder / "tokens.csv").write_text(f'{self._token},admin,admin,"system:masters"\n')
        key = self.folder / "service-account.key"
        subprocess.run(["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True)
        (self.folder / "audit-policy.yaml").write_text(yaml.safe_dump(AUDIT_POLICY))

    def _start_etcd(self) -> None:
        client, peer = f"http://127.0.0.1:{self._etcd_port}", f"http://127.0.0.1:{self._peer_port}"
        self._run(
            "etcd",
            f"--data-dir={self.folder / 'etcd'}",
            "--unsafe-no-fsync",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--log-level=warn",
        )

    def _start_api_server(self) -> None:
        key = self.folder / "service-account.key"
        self._run(
            "kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:{self._etcd_port}",
            f"--secure-port={self._api_port}",
            "--bind-address=127.0.0.1",
            "--advertise-address=198.18.0.1",
            "--endpoint-reconciler-type=none",
            f"--cert-dir={self.folder / 'certificates'}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            "--service-cluster-ip-range=198.19.0.0/24",
            "--authorization-mode=RBAC,Node",
            f"--token-auth-file={self.folder / 'tokens.csv'}",
            "--allow-privileged=true",
            "--watch-cache=true",
            "--v=1",
            *self._audit_flags(),
        )
        self.wait_for(self._ready, "kube-apiserver /readyz")

    def _audit_flags(self) -> Sequence[str]:
        if not self._audit:
            return ()
        return (
            f"--audit-policy-file={self.folder / 'audit-policy.yaml'}",
            f"--audit-log-path={self.folder / 'audit.log'}",
            "--audit-log-mode=blocking",
        )

    def _start_controller_manager(self) -> None:
        self._run(
            "kube-controller-manager",
            f"--kubeconfig={self.kubeconfig}",
            f"--authentication-kubeconfig={self.kubeconfig}",
            f"--authorization-kubeconfig={self.kubeconfig}",
            f"--service-account-private-key-file={self.folder / 'service-account.key'}",
            f"--root-ca-file={self.folder / 'certificates' / 'apiserver.crt'}",
            "--leader-elect=false",
            "--use-service-account-credentials=true",
            f"--secure-port={self._manager_port}",
            "--bind-address=127.0.0.1",
            f"--cert-dir={self.folder / 'manager-certificates'}",
            "--controllers=*,-node-lifecycle-controller,-node-ipam-controller",
            "--v=1",
        )
        self.wait_for(lambda: self._exists("/api/v1/namespaces/default/serviceaccounts/default"), "controllers")

    def _run(self, binary: str, *flags: str) -> None:
        self._processes.append(
            Process(binary, [str(self.assets / binary), *flags], self.folder / f"{binary}.log", cwd=self.folder)
        )

    def _process(self, name: str) -> Process:
        return next(process for process in self._processes if process.name == name)

    def _fail_if_dead(self) -> None:
        for process in self._processes:
            if process.returncode is not None:
                raise RuntimeError(f"{process.name} ended with {process.returncode}:\n{process.tail()}")

    def _ready(self) -> bool:
        try:
            request = urllib.request.Request(f"{self.url}/readyz", headers={"Authorization": f"Bearer {self._token}"})
            with urllib.request.urlopen(request, context=self._tls(), timeout=5) as answer:
                return bool(answer.status == 200)
        except (OSError, urllib.error.URLError):
            return False

    def _exists(self, path: str) -> bool:
        try:
            self.get(path)
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return False
            raise
        return True

    def _tls(self) -> ssl.SSLContext:
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context

    def _kubeconfig(self, name: str, token: str) -> Path:
        path = self.folder / f"{name}.kubeconfig"
        if not path.exists() or token not in path.read_text():
            config = {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "test", "cluster": {"server": self.url, "insecure-skip-tls-verify": True}}],
                "users": [{"name": name, "user": {"token": token}}],
                "contexts": [{"name": "test", "context": {"cluster": "test", "user": name}}],
                "current-context": "test",
            }
            path.write_text(yaml.safe_dump(config))
            path.chmod(0o600)
        return path
