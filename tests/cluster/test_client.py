"""The JSON client: which answers are tried again, which become which fault, and what never leaks."""

from __future__ import annotations

import json

import pytest

from crossover.api.faults import (
    AlreadyExists,
    ClusterError,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    NotFound,
    Unauthorized,
    Unavailable,
)
from tests.cluster.http_server import ok, serving, status, stream, text

SECRET = "s3cret-in-a-body"


@pytest.mark.parametrize(
    ("code", "reason", "kind"),
    [
        (400, "BadRequest", Invalid),
        (403, "Forbidden", Forbidden),
        (404, "NotFound", NotFound),
        (409, "Conflict", Conflict),
        (409, "AlreadyExists", AlreadyExists),
        (410, "Expired", Gone),
        (422, "Invalid", Invalid),
    ],
)
async def test_an_error_that_will_not_change_is_raised_at_once(
    code: int, reason: str, kind: type[ClusterError]
) -> None:
    async with serving(status(code, reason, "the reason")) as rig:
        with pytest.raises(ClusterError) as caught:
            await rig.client.get("/api/v1/pods")
        assert type(caught.value) is kind
        assert (caught.value.status, caught.value.reason, caught.value.detail) == (code, reason, "the reason")
        assert len(rig.script.requests) == 1
        assert rig.sleeps.seconds == []


@pytest.mark.parametrize("method", ["GET", "PATCH", "PUT", "DELETE"])
async def test_a_server_error_is_tried_again(method: str) -> None:
    async with serving(status(500), status(503), ok({"fine": True})) as rig:
        assert await rig.client.request(method, "/x", {"a": 1} if method != "GET" else None) == {"fine": True}
        assert len(rig.script.requests) == 3


async def test_a_create_is_not_repeated_after_a_server_error_but_after_429() -> None:
    async with serving(status(500), ok()) as rig:
        with pytest.raises(Unavailable):
            await rig.client.request("POST", "/x", {})
        assert len(rig.script.requests) == 1
    async with serving(status(429, "TooManyRequests"), ok({"made": True})) as rig:
        assert await rig.client.request("POST", "/x", {}) == {"made": True}


async def test_retry_after_is_obeyed_and_bounded() -> None:
    async with serving(status(429, Retry_After="3"), status(429, Retry_After="4000"), ok()) as rig:
        await rig.client.get("/x")
        first, second = rig.sleeps.seconds
        assert 3.0 <= first <= 3.5
        assert 8.0 <= second <= 9.0


async def test_gives_up_after_the_retries_asked_for() -> None:
    async with serving(status(503)) as rig:
        with pytest.raises(Unavailable):
            await rig.client.request("GET", "/x", retries=2)
        assert len(rig.script.requests) == 3


async def test_no_server_at_all() -> None:
    async with serving(ok()) as rig:
        host = rig.client.login.host
    async with serving(ok()) as rig:
        object.__setattr__(rig.client.login, "host", host)
        with pytest.raises(Unavailable):
            await rig.client.request("POST", "/x", {})
        assert len(rig.sleeps.seconds) == 3  # nothing was sent, so even a create may be tried again


async def test_a_server_that_never_answers() -> None:
    async with serving(stream(b"{", then="hang"), request_seconds=0.2) as rig:
        with pytest.raises(Unavailable):
            await rig.client.request("GET", "/x", retries=0)


async def test_401_reads_the_token_again_once() -> None:
    async with serving(status(401, "Unauthorized"), ok({"fine": True})) as rig:
        assert await rig.client.get("/x") == {"fine": True}
        assert [request.headers["Authorization"] for request in rig.script.requests] == [
            "Bearer old-token",
            "Bearer new-token",
        ]
    async with serving(status(401, "Unauthorized")) as rig:
        with pytest.raises(Unauthorized):
            await rig.client.get("/x")
        assert len(rig.script.requests) == 5


async def test_a_redirect_is_not_followed() -> None:
    async with serving(text(302, "", Location="http://127.0.0.2/steal"), ok()) as rig:
        with pytest.raises(ClusterError):
            await rig.client.request("GET", "/x", retries=0)
        assert len(rig.script.requests) == 1


@pytest.mark.parametrize(
    "answer",
    [
        text(502, f"<html>{SECRET}</html>"),
        text(404, SECRET),
        text(500, json.dumps({"message": SECRET, "reason": SECRET})),
        text(503, SECRET * 100_000),
    ],
)
async def test_a_body_that_is_no_status_never_reaches_the_error(answer: object) -> None:
    async with serving(answer) as rig:  # type: ignore[arg-type]
        with pytest.raises(ClusterError) as caught:
            await rig.client.request("GET", "/x", retries=0)
        assert SECRET not in str(caught.value)
        assert SECRET not in repr(vars(caught.value))


async def test_a_long_status_message_is_cut() -> None:
    async with serving(status(422, "Invalid", "very long " * 1000)) as rig:
        with pytest.raises(Invalid) as caught:
            await rig.client.get("/x")
        assert len(str(caught.value)) < 400


async def test_a_stream_answers_errors_as_faults() -> None:
    async with serving(status(410, "Expired")) as rig:
        with pytest.raises(Gone):
            async with rig.client.stream("/x", params={}, silence_seconds=1):
                pass
