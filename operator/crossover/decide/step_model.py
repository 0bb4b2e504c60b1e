"""Step time of one model on one tensor-parallel group, speculating or not.

    t_gemm(n) = ((P w / (B m))^p + (2 P n / (F f))^p)^(1/p)      n = running requests x verified tokens per request
    t_step    = t_gemm(n) + KV bytes in use / (0.8 B) + overhead
    t_draft   = steps x (t_gemm of the draft at n = running requests + its KV + 0.25 ms)
    extra     = o_req x running requests, while speculating

Roofline with a smooth maximum: weights are read once a step whether one token or K + 1 are verified; past the knee
n* = F f w / (2 B m) verification competes with decoding. Fitted to published kernel timings within 2-5 % (docs/design/0002,
tests/decide/test_step_model.py). Optional and outside of those fits: experts (MoESD, arXiv:2505.19645), padding to captured
sizes, a cliff. Prior of the profile, engine of the emulators and of the fleet model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

KV_BANDWIDTH_SHARE = 0.8
DRAFT_STEP_OVERHEAD_SECONDS = 0.25e-3


@dataclass(frozen=True, slots=True)
class Hardware:
    """One GPU. Datasheet peak, and what kernels reach of it."""

    name: str
    bandwidth_bytes_per_second: float
    flops_per_second: float
    bandwidth_share: float
    """m: model bandwidth utilisation."""
    flops_share: float
    """f: model FLOP utilisation."""
    sharpness: float = 2.0
    """p of the smooth maximum."""


@dataclass(frozen=True, slots=True)
class Experts:
    """Mixture of experts: n tokens touch E (1 - ((E - k) / E)^n) of the experts, each computed for its own tokens only."""

    count: int
    per_token: int
    parameter_share: float
    """Of all parameters, those in experts."""

    def read_share(self, tokens: float) -> float:
        """Of all parameters, those that a step of ``tokens`` reads."""
        missed = float((1 - self.per_token / self.count) ** tokens)
        return 1 - self.parameter_share * missed

    @property
    def active_share(self) -> float:
        """Of all parameters, those that compute for one token."""
        return 1 - self.parameter_share * (1 - self.per_token / self.count)


@dataclass(frozen=True, slots=True)
class Model:
    """One target model with its draft."""

    name: str
    parameters: float
    tensor_parallel: int
    kv_bytes_per_token: float
    draft_parameters: float
    overhead_seconds: float
    speculation_seconds_per_request: float
    """o_req: sampling, tree building and bookkeeping of a speculating engine, per request and step. Differs by build."""
    bytes_per_parameter: float = 2.0
    kv_capacity_tokens: int = 400_000
    draft_kv_bytes_per_token: float = 0.0
    """The draft's own KV, read in each of its steps. `with_draft_kv` sets it; the presets leave it out."""
    experts: Experts | None = None
    layers: int = 32

    def with_draft_kv(self) -> Model:
        """The draft is an EAGLE head of one layer, so its KV is one layer's of the target."""
        return replace(self, draft_kv_bytes_per_token=self.kv_bytes_per_token / self.layers)


H100 = Hardware("H100", 3.35e12, 989e12, 0.78, 0.75)
H200 = Hardware("H200", 4.8e12, 989e12, 0.71, 0.82)
A100 = Hardware("A100", 2.04e12, 312e12, 0.70, 0.63)
MODEL_8B = Model("8B", 7.5e9, 1, 131_072, 0.8e9, 1.3e-3, 40e-6)
MODEL_70B = Model("70B TP4", 69.5e9, 4, 327_680, 2.0e9, 3.0e-3, 88e-6, layers=80)
MODEL_57B_MOE = Model("57B MoE TP4", 57e9, 4, 57_344, 0.9e9, 3.0e-3, 88e-6, experts=Experts(64, 8, 0.86), layers=28)
"""The shape of Qwen2-57B-A14B (64 experts, 8 a token, 14 of 57 billion active), as in MoESD. Not validated."""


@dataclass(frozen=True, slots=True)
class StepModel:
    """Times in seconds."""

    hardware: Hardware
    model: Model
    padding_tokens: int = 1
    """Tokens are padded up to a multiple of this (CUDA-graph sizes, tiles): curves become stairs."""
    cliff_above_running_requests: int | None = None
    cliff_factor: float = 1.0
    """Beyond that many requests (for instance outside of captured graphs) a step takes this many times as long."""

    def gemm_seconds(self, parameters: float, tokens: float, *, experts: Experts | None = None) -> float:
        """Linear layers over ``tokens`` tokens."""
        share = parameters / self.model.tensor_parallel
        hardware, power = self.hardware, self.hardware.sharpness
        if self.padding_tokens > 1:
            tokens = -(-tokens // self.padding_tokens) * self.padding_tokens
        read = share * (experts.read_share(tokens) if experts else 1.0)
        computed = share * (experts.active_share if experts else 1.0)
        reading = (
            read * self.model.bytes_per_parameter / (hardware.bandwidth_bytes_per_second * hardware.bandwidth_share)
        )
        computing = 2 * computed * tokens / (hardware.flops_per_second * hardware.flops_share)
        return float((reading**power + computing**power) ** (1 / power))

    def kv_seconds(self, kv_tokens: float, bytes_per_token: float | None = None) -> float:
        """Reading the KV cache once, whatever the number of queries. The target's, unless told otherwise."""
        per_token = self.model.kv_bytes_per_token if bytes_per_token is None else bytes_per_token
        bandwidth = KV_BANDWIDTH_SHARE * self.hardware.bandwidth_bytes_per_second * self.model.tensor_parallel
        return per_token * kv_tokens / bandwidth

    def step_seconds(
        self,
        running_requests: float,
        draft_tokens: int,
        kv_tokens: float,
        *,
        off: bool = False,
        drafts_free: bool = False,
        verified_tokens: int | None = None,
        prefill_tokens: int = 0,
    ) -> float:
        """One decode step.

        ``off``: the process was started without speculation; with ``draft_tokens`` 0 and not off, the engine is gated:
        the draft still extends once a step. ``drafts_free``: n-gram drafts, which need no model. ``verified_tokens``:
        per request, where it is not draft_tokens + 1 (trees). ``prefill_tokens``: prompt tokens in the same batch.
        """
        verified = 1 if off else (verified_tokens if verified_tokens is not None else draft_tokens + 1)
        tokens = running_requests * verified + prefill_tokens
        target = self.gemm_seconds(self.model.parameters, tokens, experts=self.model.experts)
        time = target + self.kv_seconds(kv_tokens) + self.model.overhead_seconds
        if not off and not drafts_free:
            time += max(draft_tokens, 1) * self._draft_step_seconds(running_requests, kv_tokens)
        if not off and draft_tokens:
            time += self.model.speculation_seconds_per_request * running_requests
        cliff = self.cliff_above_running_requests
        return time * self.cliff_factor if cliff is not None and running_requests > cliff else time

    def prefill_seconds(self, tokens: float) -> float:
        """A step of prompt tokens only."""
        return (
            self.gemm_seconds(self.model.parameters, tokens, experts=self.model.experts) + self.model.overhead_seconds
        )

    def _draft_step_seconds(self, running_requests: float, kv_tokens: float) -> float:
        own_kv = self.kv_seconds(kv_tokens, self.model.draft_kv_bytes_per_token)
        return self.gemm_seconds(self.model.draft_parameters, running_requests) + own_kv + DRAFT_STEP_OVERHEAD_SECONDS


PRESETS: dict[str, StepModel] = {
    "8b-a100": StepModel(A100, MODEL_8B),
    "8b-h100": StepModel(H100, MODEL_8B),
    "8b-h200": StepModel(H200, MODEL_8B),
    "70b-a100-tp4": StepModel(A100, MODEL_70B),
    "70b-h100-tp4": StepModel(H100, MODEL_70B),
    "70b-h200-tp4": StepModel(H200, MODEL_70B),
}
UNVALIDATED: dict[str, StepModel] = {"57b-moe-h100-tp4": StepModel(H100, MODEL_57B_MOE)}
"""For emulators and what-if only: no published step times stand behind it."""


def acceptance_length(acceptance: float, draft_tokens: int) -> float:
    """Expected tokens per request and step with independent positions: (1 - a^(K+1)) / (1 - a) (arXiv:2211.17192)."""
    if acceptance >= 1:
        return draft_tokens + 1.0
    return (1 - acceptance ** (draft_tokens + 1)) / (1 - acceptance)


def acceptance_length_of(marginals: Sequence[float]) -> float:
    """Expected tokens per request and step from measured marginals: 1 + the sum of P(position i is accepted). Any tree."""
    return 1.0 + sum(marginals)
