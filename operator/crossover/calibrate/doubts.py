"""What speaks against a number, or has to be known about it: the two sides compared. Pure; every sentence stands here."""

from __future__ import annotations

from collections.abc import Iterator

from crossover.calibrate.client_side import ClientSide
from crossover.calibrate.contract import Caveat, CaveatCode, Described
from crossover.calibrate.counters import ServerSide

AGREE = 0.05
"""Server's and clients' rates may differ by this share."""
FOREIGN = 0.08
"""More tokens than the clients got, by this share, are somebody else's."""
ELSEWHERE = 0.2
"""Fewer, by this share: other servers answered."""
BUSY, LATE = 0.85, 0.05
"""Share of a core; share of the time that the event loop came late."""
STEPS_AGREE = 0.15


def doubts(
    described: Described,
    in_flight: int,
    client: ClientSide,
    server: ServerSide,
    *,
    relative_error: float,
    wanted_error: float,
    refused: int,
    busy_share: float,
    late_share: float,
    server_counts_late: bool = False,
) -> tuple[Caveat, ...]:
    return tuple(
        caveat
        for caveat in (
            *_of_rates(in_flight, client, server, server_counts_late or client.counts_ends),
            _generator(busy_share, late_share),
            _limit(in_flight, client, server),
            *_of_requests(client, refused),
            _draft(server),
            _precision(relative_error, wanted_error),
            _metrics(described),
        )
        if caveat is not None
    )


def _of_rates(in_flight: int, client: ClientSide, server: ServerSide, counts_ends: bool) -> Iterator[Caveat | None]:
    ours, theirs = client.tokens_per_second, server.tokens_per_second
    present = (server.running_requests or 0.0) + (server.waiting_requests or 0.0)
    if present > in_flight * (1 + AGREE) + 0.5:
        yield Caveat(
            CaveatCode.OTHER_TRAFFIC,
            f"{present:.1f} requests on the server, {in_flight} of them ours: measure a server that nobody else uses",
        )
    if ours is None or theirs is None:
        return
    ratio, slack = theirs / ours, 3 * client.ends_error if counts_ends else 0.0
    numbers = f"the server counts {theirs:.0f} tokens/s, the clients got {ours:.0f}"
    if ratio > 1 + FOREIGN + slack and present <= in_flight * (1 + AGREE) + 0.5:
        yield Caveat(CaveatCode.OTHER_TRAFFIC, f"{numbers}: the rest is somebody else's")
    elif ratio < 1 - ELSEWHERE - slack:
        yield Caveat(
            CaveatCode.SEVERAL_SERVERS, f"{numbers}: the address balances over several servers; give one server's own"
        )
    elif abs(ratio - 1) > AGREE + slack:
        yield Caveat(CaveatCode.CLOCKS_DISAGREE, numbers)
    if server.step_seconds is not None and client.running_requests and server.acceptance_length:
        steps = client.running_requests * server.acceptance_length / theirs
        if abs(server.step_seconds / steps - 1) > STEPS_AGREE:
            yield Caveat(
                CaveatCode.CLOCKS_DISAGREE,
                f"a step takes {1000 * server.step_seconds:.1f} ms by the server's count of steps, {1000 * steps:.1f} ms by "
                "tokens and batch",
            )


def _generator(busy_share: float, late_share: float) -> Caveat | None:
    if busy_share <= BUSY and late_share <= LATE:
        return None
    return Caveat(
        CaveatCode.GENERATOR_IS_BOTTLENECK,
        f"the load generator used {busy_share:.0%} of a core and came late for {late_share:.0%} of the time: the server could "
        "do more; run it on a faster or less busy machine, or with smaller loads",
    )


def _limit(in_flight: int, client: ClientSide, server: ServerSide) -> Caveat | None:
    waiting, running = server.waiting_requests or 0.0, client.running_requests or 0.0
    if waiting < 0.5 or running > 0.95 * in_flight:
        return None
    why = "its KV pool is full" if (server.kv_usage or 0.0) > 0.9 else "its limit on running requests"
    return Caveat(
        CaveatCode.LIMIT_MET, f"{running:.0f} of {in_flight} requests ran, {waiting:.0f} waited on average: {why}"
    )


def _of_requests(client: ClientSide, refused: int) -> Iterator[Caveat | None]:
    if client.short_share > 0.02:
        yield Caveat(
            CaveatCode.SHORT_ANSWERS,
            f"{client.short_share:.0%} of the answers ended before the length asked for: the load was not as even as wanted",
        )
    asked, got = client.asked_input_tokens, client.input_tokens
    if asked and got and abs(got / asked - 1) > 0.2:
        yield Caveat(CaveatCode.INPUT_LENGTH, f"prompts had {got:.0f} tokens on average, {asked:.0f} were asked for")
    if refused:
        yield Caveat(CaveatCode.RETRIED, f"{refused} requests were refused with HTTP 429 or 503 and sent again")


def _draft(server: ServerSide) -> Caveat | None:
    if not server.draft_changed:
        return None
    return Caveat(
        CaveatCode.DRAFT_CHANGED,
        "the draft length changed while it was measured: the engine adapts by itself; pin it, or measure other loads",
    )


def _precision(relative_error: float, wanted: float) -> Caveat | None:
    if relative_error <= 3 * wanted:
        return None
    return Caveat(
        CaveatCode.NO_STEADY_STATE,
        f"output tokens/s still varies by {relative_error:.1%} (standard error), {wanted:.1%} was wanted: allow more time",
    )


def _metrics(described: Described) -> Caveat | None:
    if described.metrics:
        return None
    return Caveat(
        CaveatCode.METRICS_OFF,
        "the server serves no metrics: measured by the clients' clock alone, other traffic cannot be seen",
    )
