"""Who may act, and until when. Everything on a fake clock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crossover.api.faults import Unavailable
from crossover.cluster.client import Client
from crossover.cluster.lease import Elector, LeaseTimes, micro_time
from tests.cluster.fakes import FakeClock, LeaseClient, LeaseServer, settle


class Candidate:
    """One operator process: its way to the API server, its elector, its task."""

    def __init__(self, server: LeaseServer, clock: FakeClock, identity: str) -> None:
        self.client: LeaseClient = server.client(clock)
        self.lost = 0
        self.elector = Elector(
            cast("Client", self.client),
            namespace="crossover-system",
            name="crossover",
            identity=identity,
            clock=clock,
            on_lost=self._lose,
        )
        self.task = asyncio.create_task(self.elector.run())

    def _lose(self) -> None:
        self.lost += 1

    @property
    def leads(self) -> bool:
        return self.elector.is_leader


class Election:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.server = LeaseServer()
        self.candidates: list[Candidate] = []

    async def join(self, identity: str) -> Candidate:
        candidate = Candidate(self.server, self.clock, identity)
        self.candidates.append(candidate)
        await settle()
        return candidate

    async def advance(self, seconds: float) -> None:
        await self.clock.advance(seconds, check=self.never_two)

    def never_two(self) -> None:
        assert sum(candidate.leads for candidate in self.candidates) <= 1

    @property
    def spec(self) -> dict[str, Any]:
        return dict(self.server.leases["crossover"]["spec"])


@pytest.fixture
async def election() -> AsyncIterator[Election]:
    made = Election()
    yield made
    for candidate in made.candidates:
        candidate.task.cancel()
    await asyncio.gather(*(candidate.task for candidate in made.candidates), return_exceptions=True)


async def test_the_first_creates_the_lease_and_keeps_it(election: Election) -> None:
    first = await election.join("a")
    assert first.leads
    second = await election.join("b")
    await election.advance(300)
    assert first.leads
    assert not second.leads
    assert election.spec["holderIdentity"] == "a"
    assert election.spec["leaseTransitions"] == 0


@pytest.mark.parametrize(
    "fault", [Unavailable("GET", "/x"), OSError("reset"), ValueError("no JSON"), RuntimeError("a bug")]
)
async def test_lost_lease_any_exception_stops_acting_before_the_other_may_start(
    election: Election, fault: Exception
) -> None:
    first, second = await election.join("a"), await election.join("b")
    await election.advance(20)
    first.client.fault = fault
    await election.advance(11)
    assert not first.leads
    assert not second.leads
    assert first.lost == 1
    await election.advance(10)
    assert second.leads
    assert election.spec["leaseTransitions"] == 1
    assert first.task.done()


async def test_an_api_server_that_never_answers_counts_as_failed(election: Election) -> None:
    first, second = await election.join("a"), await election.join("b")
    await election.advance(20)
    first.client.hang = True
    await election.advance(10.1)
    assert not first.leads
    assert first.lost == 1
    await election.advance(15)
    assert second.leads


async def test_acting_ends_by_the_clock_even_if_no_task_runs(election: Election) -> None:
    """A process that was stopped for a while (SIGSTOP, a paused VM) finds itself without leadership at once."""
    first = await election.join("a")
    assert first.leads
    first.task.cancel()
    await election.advance(9.9)
    assert first.leads
    await election.advance(0.2)
    assert not first.leads


async def test_an_outage_shorter_than_the_deadline_is_survived(election: Election) -> None:
    first, second = await election.join("a"), await election.join("b")
    await election.advance(20)
    first.client.fault = second.client.fault = Unavailable("GET", "/x")
    await election.advance(7)
    first.client.fault = second.client.fault = None
    await election.advance(60)
    assert first.leads
    assert first.lost == 0


async def test_writes_that_happen_but_whose_answers_are_lost_do_not_count(election: Election) -> None:
    first, second = await election.join("a"), await election.join("b")
    first.client.lose_answers = True
    await election.advance(60)
    assert first.lost == 1
    assert second.leads


async def test_release_hands_over_at_once(election: Election) -> None:
    first, second = await election.join("a"), await election.join("b")
    await election.advance(20)
    first.task.cancel()
    await asyncio.gather(first.task, return_exceptions=True)
    await first.elector.release()
    assert not first.leads
    await election.advance(2.1)
    assert second.leads
    assert first.lost == 0


async def test_release_never_raises_and_never_takes_from_another(election: Election) -> None:
    first, second = await election.join("a"), await election.join("b")
    first.client.fault = OSError("gone")
    await election.advance(40)
    assert second.leads
    await first.elector.release()
    await election.advance(10)
    assert second.leads


async def test_a_foreign_clock_does_not_matter(election: Election) -> None:
    """renewTime of a holder whose clock is years behind, or ahead: only changes of the object count."""
    first = await election.join("a")
    lease = election.server.leases["crossover"]
    second = await election.join("b")
    for year in ("1999", "2199"):
        lease = election.server.leases["crossover"]
        lease["spec"]["renewTime"] = f"{year}-01-01T00:00:00.000000Z"
        await election.advance(6)
        assert first.leads
        assert not second.leads


async def test_a_lease_deleted_by_hand_is_made_again(election: Election) -> None:
    first = await election.join("a")
    election.server.leases.clear()
    await election.advance(5)
    assert first.leads
    assert election.spec["holderIdentity"] == "a"


async def test_taken_by_force_ends_leadership_at_the_next_look(election: Election) -> None:
    first = await election.join("a")
    await election.advance(4)
    lease = election.server.leases["crossover"]
    lease["spec"]["holderIdentity"] = "somebody"
    lease["metadata"]["resourceVersion"] = "999"
    await election.advance(2.1)
    assert not first.leads
    assert first.lost == 1


TROUBLE = ("fine", "fault", "hang", "lose_answers", "slow_there", "slow_back")


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from(TROUBLE), st.floats(0.5, 20.0), st.floats(0.5, 30.0)),
        max_size=12,
    )
)
def test_never_two_whatever_the_network_does_and_one_again_afterwards(
    story: list[tuple[int, str, float, float]],
) -> None:
    async def play() -> None:
        election = Election()
        for identity in ("a", "b", "c"):
            await election.join(identity)
        for which, trouble, delay, seconds in story:
            candidate = election.candidates[which]
            make_trouble(candidate.client, trouble, delay)
            await election.advance(seconds)
            if candidate.task.done():  # its process has exited and was started again
                election.candidates[which] = Candidate(election.server, election.clock, candidate.elector.identity)
                await settle()
        for candidate in election.candidates:
            make_trouble(candidate.client, "fine", 0)
        await election.advance(60)
        survivors = [candidate for candidate in election.candidates if not candidate.task.done()]
        assert not survivors or sum(candidate.leads for candidate in survivors) == 1
        for candidate in election.candidates:
            candidate.task.cancel()
        await asyncio.gather(*(candidate.task for candidate in election.candidates), return_exceptions=True)

    asyncio.run(play())


def make_trouble(client: LeaseClient, trouble: str, delay: float) -> None:
    client.fault = Unavailable("GET", "/x") if trouble == "fault" else None
    client.hang = trouble == "hang"
    client.lose_answers = trouble == "lose_answers"
    client.to_server_seconds = delay if trouble == "slow_there" else 0.0
    client.to_client_seconds = delay if trouble == "slow_back" else 0.0


def test_times_that_cannot_be_safe_are_refused() -> None:
    with pytest.raises(ValueError, match="retry < renew < lease"):
        LeaseTimes(lease_seconds=10, renew_seconds=10)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "1970-01-01T00:00:00.000000Z"), (1796119200.25, "2026-12-01T10:00:00.250000Z")],
)
def test_micro_time_has_six_digits(seconds: float, text: str) -> None:
    assert micro_time(seconds) == text
