"""One thin JSON client for the Kubernetes API: plain dicts in and out, typed errors (`crossover.api.faults`).

Requests are retried with jittered backoff where that is safe, and as long as the API server asks for (Retry-After).
Why not the generated client: docs/design/0050-kubernetes-edge.md.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import aiohttp
import msgspec

from crossover.api.faults import ClusterError, Unavailable, fault_for
from crossover.cluster.login import Login, login

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"

REQUEST_SECONDS = 15.0
CONNECT_SECONDS = 5.0
MAX_RETRIES = 3
BACKOFF_SECONDS = 0.25
MAX_WAIT_SECONDS = 8.0
"""Longest wait between two attempts, also where the API server asks for more."""
MAX_ERROR_BYTES = 65536

SAFE_TO_REPEAT = frozenset({"GET", "PUT", "PATCH", "DELETE"})
"""POST is repeated only when the API server said that it did not take it (429)."""


class _Status(msgspec.Struct):
    """The part of a metav1.Status that we pass on."""

    kind: str = ""
    reason: str | None = ""
    message: str | None = ""


class Client:
    """A connection pool to one API server. Use as an async context manager, or `close` it.

    ``sleep`` and ``rng`` are injected so that tests neither wait nor guess.
    """

    def __init__(
        self,
        way: Login,
        *,
        user_agent: str = "crossover",
        request_seconds: float = REQUEST_SECONDS,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        rng: random.Random | None = None,
    ) -> None:
        self.login = way
        self._user_agent = user_agent
        self._request_seconds = request_seconds
        self._sleep = sleep
        self._rng = rng or random.Random()
        self._session: aiohttp.ClientSession | None = None

    @classmethod
    async def connect(cls, *, kubeconfig: str | Path | None = None, user_agent: str = "crossover") -> Client:
        """Log in as `login` finds it. Raises `LoginError`."""
        return cls(await login(kubeconfig=kubeconfig), user_agent=user_agent)

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def get(self, path: str, *, params: Mapping[str, str] | None = None) -> Any:
        return await self.request("GET", path, params=params)

    async def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        params: Mapping[str, str] | None = None,
        content_type: str = JSON,
        retries: int = MAX_RETRIES,
        timeout_seconds: float | None = None,
    ) -> Any:
        """The decoded answer. Raises a `ClusterError`; `Unavailable` only after ``retries`` further attempts."""
        return msgspec.json.decode(
            await self.request_bytes(
                method,
                path,
                body,
                params=params,
                content_type=content_type,
                retries=retries,
                timeout_seconds=timeout_seconds,
            )
        )

    async def request_bytes(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        params: Mapping[str, str] | None = None,
        content_type: str = JSON,
        retries: int = MAX_RETRIES,
        timeout_seconds: float | None = None,
    ) -> bytes:
        """As `request`, the answer not decoded: for callers with a msgspec type of their own."""
        options: dict[str, Any] = {
            "params": dict(params or {}),
            "timeout": _limit(timeout_seconds or self._request_seconds),
        }
        if body is not None:
            options |= {"data": msgspec.json.encode(body), "headers": {"Content-Type": content_type}}
        renewed = False
        attempt = 0
        while True:
            try:
                return await self._once(method, path, options)
            except _Retry as fault:
                if fault.error.status == 401 and not renewed:
                    renewed = True
                    await self.login.renew()
                    continue
                if attempt >= retries or not (fault.safe or method in SAFE_TO_REPEAT):
                    raise fault.error from None
                await self._sleep(self._pause(attempt, fault.after_seconds))
                attempt += 1

    @asynccontextmanager
    async def stream(
        self, path: str, *, params: Mapping[str, str], silence_seconds: float
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """An open answer to read piece by piece; silence longer than that raises `Unavailable` from the reader.

        Raises `ClusterError` when the answer is no 200.
        """
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=silence_seconds)
        try:
            how = await self._how({"params": dict(params), "timeout": timeout})
            async with self._open().request("GET", self._url(path), **how) as answer:
                if answer.status != 200:
                    raise (await self._fault("GET", path, answer)).error
                yield answer
        except _NETWORK as error:
            raise Unavailable("GET", path, reason=type(error).__name__) from error

    async def _once(self, method: str, path: str, options: Mapping[str, Any]) -> bytes:
        how = await self._how(options)
        try:
            async with self._open().request(method, self._url(path), **how) as answer:
                if 200 <= answer.status < 300:
                    return await answer.read()
                raise await self._fault(method, path, answer)
        except aiohttp.ClientConnectorError as error:  # never sent, so safe to send again
            raise _Retry(Unavailable(method, path, reason=type(error).__name__), safe=True) from error
        except _NETWORK as error:
            raise _Retry(Unavailable(method, path, reason=type(error).__name__)) from error

    async def _fault(self, method: str, path: str, answer: aiohttp.ClientResponse) -> _Retry:
        """A retry for 401, 429 and 5xx; raises every other error at once. Only a Status object's words are kept."""
        reason = detail = ""
        try:
            status = msgspec.json.decode(await answer.content.read(MAX_ERROR_BYTES), type=_Status)
            if status.kind == "Status":
                reason, detail = status.reason or "", status.message or ""
        except (msgspec.MsgspecError, *_NETWORK):
            pass
        error = fault_for(method, path, answer.status, reason, detail)
        if answer.status == 401 or isinstance(error, Unavailable):
            return _Retry(error, safe=answer.status == 429, after_seconds=_retry_after(answer))
        raise error

    def _pause(self, attempt: int, after_seconds: float | None) -> float:
        """Full jitter on an exponential base; never earlier than the API server asks for."""
        base = min(MAX_WAIT_SECONDS, BACKOFF_SECONDS * 2.0**attempt)
        asked = 0.0 if after_seconds is None else min(MAX_WAIT_SECONDS, after_seconds)
        return asked + self._rng.uniform(0.1, 1.0) * base

    async def _how(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """aiohttp's arguments: the caller's, and what every request to this API server needs."""
        headers = {"User-Agent": self._user_agent, "Accept": JSON, **options.get("headers", {})}
        token = await self.login.authorization()
        if token is not None:
            headers["Authorization"] = token
        return {
            **options,
            "headers": headers,
            "ssl": self.login.ssl_context or True,
            "server_hostname": self.login.server_hostname,
            "proxy": self.login.proxy,
            # A redirect would carry the token to a host that nobody named.
            "allow_redirects": False,
        }

    def _url(self, path: str) -> str:
        return self.login.host + path

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=0, ttl_dns_cache=30)
            self._session = aiohttp.ClientSession(connector=connector, trust_env=True, auto_decompress=True)
        return self._session


_NETWORK = (aiohttp.ClientError, TimeoutError, OSError)


def _limit(seconds: float) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=seconds, sock_connect=CONNECT_SECONDS)


class _Retry(Exception):  # noqa: N818 - never leaves this module
    def __init__(self, error: ClusterError, *, safe: bool = False, after_seconds: float | None = None) -> None:
        super().__init__(str(error))
        self.error, self.safe, self.after_seconds = error, safe, after_seconds


def _retry_after(answer: aiohttp.ClientResponse) -> float | None:
    """Seconds; the HTTP date form is not used by Kubernetes and counts as absent."""
    text = answer.headers.get("Retry-After", "").strip()
    return float(text) if text.isdigit() else None
