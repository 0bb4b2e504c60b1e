"""How to reach the API server and as whom.

The official client's own loaders read kubeconfigs (tokens, token files, client certificates, exec plugins, OIDC) and
the in-cluster ServiceAccount; what they find ends up in its `Configuration`. Only the request layer is ours.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.config.config_exception import ConfigException
from kubernetes.aio.config.incluster_config import InClusterConfigLoader
from kubernetes.aio.config.kube_config import load_kube_config

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
DEFAULT_KUBECONFIG = Path.home() / ".kube" / "config"


class LoginError(Exception):
    """No way to the API server was found, or the one named cannot be used. Says which, and what to do."""


@dataclass(frozen=True, slots=True)
class Login:
    """One way to the API server.

    ``authorization``: the header's value for the next request, None = no header. ``renew``: called after a 401, reads
    everything again. Both read files; the token itself is never logged.
    """

    host: str
    ssl_context: ssl.SSLContext | None
    server_hostname: str | None
    proxy: str | None
    authorization: Callable[[], Awaitable[str | None]]
    renew: Callable[[], Awaitable[None]]
    namespace: str | None = None
    """The pod's own namespace when in the cluster."""


async def login(
    *, kubeconfig: str | Path | None = None, environ: Mapping[str, str] | None = None, folder: Path = SERVICE_ACCOUNT
) -> Login:
    """The kubeconfig given, else ``KUBECONFIG``, else the pod's ServiceAccount, else ``~/.kube/config``.

    Raises `LoginError` naming what was looked for.
    """
    environment = os.environ if environ is None else environ
    named = kubeconfig or environment.get("KUBECONFIG") or None
    if named is not None:
        return await _from_kubeconfig(str(named))
    if environment.get("KUBERNETES_SERVICE_HOST") and (folder / "token").exists():
        return _from_service_account(environment, folder)
    if DEFAULT_KUBECONFIG.exists():
        return await _from_kubeconfig(str(DEFAULT_KUBECONFIG))
    raise LoginError(
        f"KUBECONFIG is not set, {folder / 'token'} and {DEFAULT_KUBECONFIG} do not exist: "
        "set KUBECONFIG, or run in a pod with a ServiceAccount token"
    )


async def _from_kubeconfig(path: str) -> Login:
    configuration = Configuration()

    async def read() -> None:
        try:
            await load_kube_config(config_file=path, client_configuration=configuration, persist_config=False)
        except (ConfigException, OSError, ValueError, TypeError, KeyError) as error:
            raise LoginError(f"KUBECONFIG={path}: cannot be used ({type(error).__name__}): correct the file") from error

    await read()
    return _login(configuration, read, None)


def _from_service_account(environ: Mapping[str, str], folder: Path) -> Login:
    configuration = Configuration()
    loader = InClusterConfigLoader(str(folder / "token"), str(folder / "ca.crt"), environ=environ)

    def load() -> None:
        try:
            loader.load_and_set(configuration)
        except (ConfigException, OSError) as error:
            raise LoginError(f"{folder}: the ServiceAccount token cannot be read ({error})") from error

    async def read() -> None:
        load()

    load()
    own = folder / "namespace"
    return _login(configuration, read, own.read_text().strip() if own.exists() else None)


def _login(configuration: Any, renew: Callable[[], Awaitable[None]], namespace: str | None) -> Login:
    async def authorization() -> str | None:
        key = await configuration.get_api_key_with_prefix("BearerToken")
        return None if key is None else str(key).strip()

    return Login(
        host=str(configuration.host).rstrip("/"),
        ssl_context=_ssl_context(configuration) if str(configuration.host).startswith("https") else None,
        server_hostname=configuration.tls_server_name,
        proxy=configuration.proxy,
        authorization=authorization,
        renew=renew,
        namespace=namespace,
    )


def _ssl_context(configuration: Any) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # Python 3.13 asks for extensions that many clusters' own certificate authorities leave out; client-go does not.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if configuration.cert_file:
        context.load_cert_chain(configuration.cert_file, configuration.key_file)
    if not configuration.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
