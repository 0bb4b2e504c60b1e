"""`/emulator/truth`: what is really going on, for witnesses. Crossover never reads it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from crossover.emulate.server import EmulatedServer, Rank


def account(server: EmulatedServer) -> dict[str, Any]:
    """One server, all its schedulers. Times are unix times."""
    options = server.options
    return {
        "engine": options.engine,
        "version": options.version_text,
        "state": str(server.state),
        "faults": sorted(server.faults),
        "model": options.model,
        "acceptance": list(options.acceptance),
        "speculates": any(core.drafts.speculates for core in server.cores),
        "ranks": [_of_rank(rank) for rank in server.ranks],
    }


def _of_rank(rank: Rank) -> dict[str, Any]:
    now, wall = time.monotonic(), time.time()

    def at(seconds: float) -> float:
        return wall - (now - seconds)

    core, counters = rank.core, rank.core.counters
    return {
        "running": len(core.running),
        "waiting": len(core.waiting),
        "running_limit": core.max_running_requests,
        "kv_tokens": core.kv_tokens,
        "draft_tokens": core.draft_in_force if core.drafts.speculates else 0,
        "gate_closed": getattr(core.drafts, "closed", False),
        "output_tokens_total": counters.output_tokens,
        "drafts_total": counters.drafts,
        "accepted_tokens_total": counters.accepted_tokens,
        "request_steps_total": counters.request_steps,
        "finished_total": counters.finished,
        "aborted_total": counters.aborted,
        "retractions_total": counters.retractions,
        "moves": [[at(move.at_seconds), move.draft_tokens] for move in core.moves],
        "batches_at_moves": [move.batch for move in core.moves],
        "crossings": [
            {"at": at(seconds), "key": key, "above": above, "batch": batch}
            for seconds, key, above, batch in rank.crossings
        ],
    }
