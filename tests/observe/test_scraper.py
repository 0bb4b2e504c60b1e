"""The scraper against a real server that misbehaves: bounded in time and size, never follows, never quotes."""

import asyncio
import gzip

import pytest
from aiohttp import web

from crossover.api.fleet import EngineType, PodFacts, PodPhase, ScrapeFault
from crossover.observe.observer import Observer, Target
from crossover.observe.scraper import MAX_BODY_BYTES, Scraper, Unusable

ADDRESS = "127.9.1.1"
SECRET = "REMOTE-TEXT"


@pytest.fixture
async def remote():
    """One server with a route per misbehaviour; yields its port."""

    async def hang(_):
        await asyncio.sleep(30)

    async def redirect(_):
        raise web.HTTPFound(f"http://{ADDRESS}:1/{SECRET}")

    async def huge(request):
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(60):
            await response.write(b"x" * 1_000_000)
        return response

    async def close(request):
        request.transport.close()
        return web.Response()

    async def half(request):
        response = web.StreamResponse(headers={"Content-Length": "1000"})
        await response.prepare(request)
        await response.write(SECRET.encode())
        request.transport.close()
        return response

    async def status(request):
        return web.Response(status=int(request.match_info["code"]), text=SECRET)

    async def fine(_):
        return web.Response(text="a 1\n")

    async def packed(_):
        return web.Response(body=gzip.compress(b"a 1\n"), headers={"Content-Encoding": "gzip"})

    app = web.Application()
    for path, handler in {
        "/hang": hang,
        "/redirect": redirect,
        "/huge": huge,
        "/close": close,
        "/half": half,
        "/status/{code}": status,
        "/fine": fine,
        "/packed": packed,
    }.items():
        app.router.add_get(path, handler)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, ADDRESS, 0)
    await site.start()
    yield runner.addresses[0][1]
    await runner.cleanup()


@pytest.mark.parametrize(
    ("path", "fault"),
    [
        ("/hang", ScrapeFault.TIMED_OUT),
        ("/redirect", ScrapeFault.REDIRECTED),
        ("/huge", ScrapeFault.TOO_LARGE),
        ("/close", ScrapeFault.UNREACHABLE),
        ("/half", ScrapeFault.UNREACHABLE),
    ],
)
async def test_every_misbehaviour_is_a_fault_without_remote_text(remote, path, fault):
    async with Scraper(timeout_seconds=1.0) as scraper:
        with pytest.raises(Unusable) as unusable:
            await scraper.fetch(ADDRESS, remote, path)
    assert unusable.value.fault is fault
    assert SECRET not in str(unusable.value)


async def test_nobody_listens(remote):
    async with Scraper() as scraper:
        with pytest.raises(Unusable) as unusable:
            await scraper.fetch("127.9.1.77", 9, "/metrics")
    assert unusable.value.fault is ScrapeFault.UNREACHABLE


async def test_an_error_status_is_an_answer(remote):
    async with Scraper() as scraper:
        assert (await scraper.fetch(ADDRESS, remote, "/status/404")).status == 404


async def test_gzip_is_passed_on_packed_so_that_its_size_stays_bounded(remote):
    async with Scraper() as scraper:
        answer = await scraper.fetch(ADDRESS, remote, "/packed")
    assert gzip.decompress(answer.body) == b"a 1\n"
    assert len(answer.body) < MAX_BODY_BYTES


async def test_the_first_group_that_answers_is_read_whole_and_a_failing_bonus_is_left_out(remote):
    async with Scraper(timeout_seconds=0.5) as scraper:
        answers = await scraper.first_group(ADDRESS, remote, (("/status/404", "/fine"), ("/fine", "/hang", "/packed")))
    assert [answer.path for answer in answers] == ["/fine", "/packed"]


async def test_a_slow_pod_does_not_delay_the_others(remote):
    async with Scraper(timeout_seconds=2.0) as scraper:
        slow = asyncio.ensure_future(scraper.fetch(ADDRESS, remote, "/hang"))
        for _ in range(20):
            await scraper.fetch(ADDRESS, remote, "/fine")
        assert not slow.done()
        with pytest.raises(Unusable):
            await slow


async def test_proxy_variables_are_ignored(remote, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", f"http://{ADDRESS}:1")
    async with Scraper() as scraper:
        assert (await scraper.fetch(ADDRESS, remote, "/fine")).status == 200


def facts(name, address, phase=PodPhase.READY, restarts=0):
    return PodFacts("ns", name, name, {}, address, phase, "h", 0.0, 1.0, restarts)


async def test_a_fault_keeps_the_last_good_reading_and_its_age_grows():
    calls = {"n": 0}

    async def loads(_):
        calls["n"] += 1
        if calls["n"] > 1:
            return web.Response(status=500, text=SECRET)
        load = {"dp_rank": 0, "num_running_reqs": 7, "num_waiting_reqs": 0}
        return web.json_response({"version": "0.5.23", "loads": [load]})

    app = web.Application()
    app.router.add_get("/v1/loads", loads)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.9.1.2", 0)
    await site.start()
    target = Target(EngineType.SGLANG, runner.addresses[0][1])
    try:
        async with Scraper(timeout_seconds=1.0) as scraper:
            observer = Observer(scraper)
            pod = facts("a", "127.9.1.2")
            (first,) = await observer.look("f", target, [pod], 100.0)
            (second,) = await observer.look("f", target, [pod], 110.0)
            assert first.reading is not None
            assert (second.reading, second.reading_age_seconds) == (first.reading, 10.0)
            assert second.fault is ScrapeFault.HTTP_STATUS
            (restarted,) = await observer.look("f", target, [facts("a", "127.9.1.2", restarts=1)], 111.0)
            assert restarted.reading is None
    finally:
        await runner.cleanup()


async def test_pods_that_cannot_answer_yet_are_not_asked():
    async with Scraper(timeout_seconds=0.2) as scraper:
        pods = [facts("a", None), facts("b", "127.9.1.99", PodPhase.PENDING)]
        seen = await Observer(scraper).look("f", Target(EngineType.SGLANG, 9), pods, 1.0)
    assert [pod.fault for pod in seen] == [None, None]
