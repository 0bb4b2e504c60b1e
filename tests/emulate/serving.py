"""Emulated servers in the test's own process, and their pages compared with those of the real ones."""

import asyncio
import re
from collections import defaultdict
from contextlib import asynccontextmanager

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from crossover.emulate.options import options_of
from crossover.emulate.servers import SERVERS
from crossover.engines.contract import Answer

ADDRESS = "127.9.0.1"


def make(engine, command, environ=None, **options):
    given = {"address": ADDRESS, "engine": engine, "port": 0, **options}
    return SERVERS[engine](options_of(given), command, environ or {})


class Client:
    """What a test asks of a server."""

    def __init__(self, server, base, session):
        self.server, self.base, self.session = server, base, session

    async def get(self, path, **more):
        async with self.session.get(path, **more) as answer:
            return answer.status, await answer.text()

    async def post(self, path, body=None, **more):
        async with self.session.post(path, json=body, **more) as answer:
            return answer.status, await answer.text()

    async def answers(self, *paths):
        found = []
        for path in paths:
            async with self.session.get(path) as answer:
                found.append(Answer(path, answer.status, await answer.read()))
        return found

    async def events(self, path, body):
        """Server-sent events, as they stand."""
        async with self.session.post(path, json=body) as answer:
            assert answer.status == 200
            return [line[6:] for line in (await answer.text()).splitlines() if line.startswith("data: ")]


@asynccontextmanager
async def serving(server, *, ready=True):
    async with server.serving(ready=ready) as base, aiohttp.ClientSession(base) as session:
        yield Client(server, base, session)


async def until(check):
    for _ in range(4000):
        if check():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("did not happen")


def shape(text):
    """Sample name -> (type of its family, sets of label names), as prometheus-client reads the page."""
    types, labels = {}, defaultdict(set)
    declared = dict(re.findall(r"^# TYPE (\S+) (\S+)", text, re.M))
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            name = sample.name
            own = name if name in declared else re.sub(r"_(bucket|sum|count)$", "", name)
            types[name] = declared.get(own, family.type)
            labels[name].add(frozenset(sample.labels))
    return {name: (types[name], labels[name]) for name in types}


def bounds(text):
    """Histogram -> its bucket bounds."""
    found = defaultdict(set)
    for name, le in re.findall(r'^(\S+)_bucket\{.*le="([^"]+)"', text, re.M):
        found[name].add(float(le))
    return dict(found)


def assert_subset(page, *references, but=()):
    """Every series of ``page`` stands in a reference, with the same type, label names and buckets."""
    real, real_bounds = defaultdict(lambda: (set(), set())), {}
    for text in references:
        for name, (kind, labels) in shape(text).items():
            real[name][0].add(kind)
            real[name][1].update(labels)
        real_bounds |= bounds(text)
    for name, (kind, labels) in shape(page).items():
        if name in but:
            continue
        assert name in real, f"{name} is no series of the real server"
        assert kind in real[name][0], name
        assert labels <= real[name][1], (name, labels - real[name][1])
    for name, found in bounds(page).items():
        if name not in but:
            assert found == real_bounds[name], name
