"""kopf's part: the watches on our own resources. Decorators and wiring only.

Low-level event handlers write nothing to the objects (no finalizer, no annotation) and feed our own queue; kopf's timers
and indexes fail in ways that a fleet cannot afford (docs/design/0001).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import kopf

from crossover.api.resources import GROUP, VERSION

PLURAL = "modelautoscalers"
CALIBRATIONS = "calibrations"

Callback = Callable[[Mapping[str, Any]], None]


def registry(callbacks: Mapping[str, tuple[Callback, Callback]]) -> kopf.OperatorRegistry:
    """Handlers that pass every object on: plural -> (seen, gone). Callbacks must be quick."""
    handlers = kopf.OperatorRegistry()

    kopf.on.login(registry=handlers)(kopf.login_with_service_account)
    kopf.on.login(registry=handlers)(kopf.login_with_kubeconfig)

    for plural, (seen, gone) in callbacks.items():
        kopf.on.event(GROUP, VERSION, plural, registry=handlers, id=plural)(_handler(seen, gone))
    return handlers


def _handler(seen: Callback, gone: Callback) -> Any:
    async def changed(event: Mapping[str, Any], **_: Any) -> None:
        body = dict(event["object"])
        if event["type"] == "DELETED":
            gone(body)
        else:
            seen(body)

    return changed


def operator_settings() -> kopf.OperatorSettings:
    """kopf's own settings, with the reasons in docs/design/0001."""
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.peering.standalone = True
    settings.watching.server_timeout = 600
    settings.watching.client_timeout = 660
    settings.watching.connect_timeout = 10
    settings.watching.reconnect_backoff = 1.0
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 10
    settings.queueing.error_delays = (1, 2, 5, 10, 30, 60)
    settings.persistence.finalizer = f"{GROUP}/kopf"
    settings.process.ultimate_exiting_timeout = 20
    return settings
