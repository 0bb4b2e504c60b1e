"""Which model a server is asked for, and what silence means."""

import httpx
import pytest

from crossover.api.fleet import EngineType
from crossover.calibrate.contract import FailureReason, MeasureFailure, Server
from crossover.calibrate.probe import model_of
from crossover.decide.variant import OFF


async def asked(handler, *, model=None):
    async with httpx.AsyncClient(transport=httpx.MockTransport(handler)) as http:
        return await model_of(Server("http://127.0.0.1:1", EngineType.SGLANG, model, OFF), http)


def refused(request):
    raise httpx.ConnectError("refused")


@pytest.mark.parametrize("handler", [refused, lambda _: httpx.Response(503)])
async def test_a_server_that_does_not_answer_has_no_wrong_model(handler):
    """Wrong names last until the user changes something; a server that is busy for a moment must not."""
    with pytest.raises(MeasureFailure) as failure:
        await asked(handler)
    assert failure.value.reason is FailureReason.UNREACHABLE
    assert failure.value.is_retriable


async def test_a_server_that_lists_none_needs_a_name():
    with pytest.raises(MeasureFailure) as failure:
        await asked(lambda _: httpx.Response(404))
    assert failure.value.reason is FailureReason.WRONG_MODEL
    assert await asked(lambda _: httpx.Response(404), model="m") == "m"


async def test_the_first_that_is_listed_is_asked_for():
    assert await asked(lambda _: httpx.Response(200, json={"data": [{"id": "m"}, {"id": "n"}]})) == "m"
