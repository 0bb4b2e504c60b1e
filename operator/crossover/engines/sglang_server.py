"""SGLang: what a running server says of itself (`/server_info`), and the one thing that can be changed while it runs.

`/server_info` holds API keys in clear text: only the fields named here are looked at, the body goes no further.

The live cap on the running batch is `POST /set_internal_state {"server_args": {"pp_max_micro_batch_size": N}}`, from 0.5.3
on, where it is called `max_micro_batch_size`. A batch above a new cap is not evicted: newcomers wait until it has shrunk.
Before 0.5.15 the answer is true even when the key was ignored, so only `/server_info` tells whether it is in force. Lost at
a restart.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from crossover.api.fleet import Capability, EngineType, ScheduleDialect
from crossover.engines import sglang_settings as settings
from crossover.engines.contract import Answer, CapState
from crossover.engines.values import count, document, mapping

KNOBS = ("pp_max_micro_batch_size", "max_micro_batch_size")
"""Newest name first."""


class SGLangRunningCap:
    """`RunningCap` for SGLang. Stateless."""

    state_paths: tuple[str, ...] = ("/server_info", "/get_server_info")
    """Since 0.5.6; and the name before."""

    def state(self, answer: Answer) -> CapState | None:
        return state_of(mapping(document(answer.body)))

    def request(self, state: CapState, cap: int) -> tuple[str, bytes]:
        return "/set_internal_state", json.dumps({"server_args": {state.knob: cap}}).encode()


def state_of(info: Mapping[str, Any]) -> CapState | None:
    """From /server_info: its internal states show the cap in force, its top level what the process started with.
    ``max_running_requests`` of /v1/loads does not show a cap."""
    states = info.get("internal_states")
    if not isinstance(states, list) or not states or not all(isinstance(state, dict) for state in states):
        return None
    knob = next((name for name in KNOBS if all(count(state.get(name)) for state in states)), None)
    if knob is None:
        return None
    most = _most(info, states)
    start = count(info.get(knob)) or most
    if most is None or start is None:
        return None
    return CapState(tuple(int(state[knob]) for state in states), min(start, most), most, knob)


def _most(info: Mapping[str, Any], states: list[Mapping[str, Any]]) -> int | None:
    """Range of the knob: 1 to max_running_requests // pp, per scheduler."""
    limits = [count(state.get("effective_max_running_requests_per_dp")) for state in states]
    known = [limit for limit in limits if limit is not None]
    limit = min(known) if known else count(info.get("max_running_requests"))
    return None if limit is None else max(1, limit // (count(info.get("pp_size")) or 1))


def capability_of_server(info: Mapping[str, Any]) -> Capability:
    """From /server_info: the state in force wins over the flags that the process was started with."""
    states = info.get("internal_states")
    state = states[0] if isinstance(states, list) and states and isinstance(states[0], dict) else {}
    version = settings.version_of(info.get("version"))
    algorithm = _text(info.get("speculative_algorithm"))
    tokens = count(info.get("speculative_num_draft_tokens"))
    adaptive = bool(state.get("speculative_adaptive", info.get("speculative_adaptive")))
    own_file = bool(info.get("speculative_adaptive_config"))
    refusal = settings.schedule_refusal(
        version,
        algorithm,
        topk=info.get("speculative_eagle_topk"),
        dp_attention=bool(info.get("enable_dp_attention")),
        multi_layer=bool(info.get("enable_multi_layer_eagle")),
        two_batch_overlap=bool(info.get("enable_two_batch_overlap")),
        pdmux=bool(info.get("enable_pdmux")),
    )
    padding = state.get("decode_cuda_graph_bs")
    limit = count(state.get("effective_max_running_requests_per_dp", info.get("max_running_requests")))
    cap = state_of(info)
    return Capability(
        EngineType.SGLANG,
        settings.version_text(version),
        algorithm,
        max_draft_tokens=tokens - 1 if tokens is not None else None,
        schedule_dialect=ScheduleDialect.SGLANG_ADAPTIVE if refusal is None else None,
        schedule_refusal=refusal,
        follows_schedule=adaptive and own_file,
        adapts_by_itself=adaptive and not own_file,
        zero_is_safe=None if version is None else version >= settings.ZERO_STEPS,
        batch_padding=tuple(sorted(size for size in padding if count(size))) if isinstance(padding, list) else (),
        live_running_cap=cap.knob if cap is not None else None,
        running_cap=min(cap.in_force) if cap is not None else None,
        running_cap_at_start=cap.at_start if cap is not None else None,
        max_running_requests=limit,
    )


def _text(value: object) -> str | None:
    return value[:64] if isinstance(value, str) and value else None
