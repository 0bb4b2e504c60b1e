"""Step time of a dense model on one tensor-parallel group, speculating or not.

    t_gemm(n) = ((P w / (B m))^p + (2 P n / (F f))^p)^(1/p)      n = running requests x verified tokens per request
    t_step    = t_gemm(n) + KV bytes in use / (0.8 B) + overhead
    t_draft   = steps x (t_gemm of the draft at n = running requests + 0.25 ms)

Roofline with a smooth maximum: weights are read once a step whether one token or K + 1 are verified; past the knee
n* = F f w / (2 B m) verification competes with decoding. Fitted to published kernel timings within 2-5 % (docs/design/0002);
MoE and 4-bit models are outside of it. Prior of the profile, engine of the emulators and of the fleet model.
"""

from __future__ import annotations

from dataclasses import dataclass

KV_BANDWIDTH_SHARE = 0.8
DRAFT_STEP_OVERHEAD_SECONDS = 0.25e-3


@dataclass(frozen=True, slots=True)
class Hardware:
    """One GPU. Datasheet peak, and what kernels reach of it."""

    name: str
    bandwidth_bytes_per_second: float
    flops_per_second: float
    bandwidth_share: float
    flops_share: float
    sharpness: float = 2.0
    """p of the smooth maximum."""


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


H100 = Hardware("H100", 3.35e12, 989e12, 0.78, 0.75)
H200 = Hardware("H200", 4.8e12, 989e12, 0.71, 0.82)
A100 = Hardware("A100", 2.04e12, 312e12, 0.70, 0.63)
MODEL_8B = Model("8B", 7.5e9, 1, 131_072, 0.8e9, 1.3e-3, 40e-6)
MODEL_70B = Model("70B TP4", 69.5e9, 4, 327_680, 2.0e9, 3.0e-3, 88e-6)


@dataclass(frozen=True, slots=True)
class StepModel:
    """Times in seconds."""

    hardware: Hardware
    model: Model

    def gemm_seconds(self, parameters: float, tokens: float) -> float:
        """Linear layers over ``tokens`` tokens."""
        share = parameters / self.model.tensor_parallel
        hardware, power = self.hardware, self.hardware.sharpness
        reading = (
            share * self.model.bytes_per_parameter / (hardware.bandwidth_bytes_per_second * hardware.bandwidth_share)
        )
        computing = 2 * share * tokens / (hardware.flops_per_second * hardware.flops_share)
        return float((reading**power + computing**power) ** (1 / power))

    def kv_seconds(self, kv_tokens: float) -> float:
        """Reading the KV cache once, whatever the number of queries."""
        bandwidth = KV_BANDWIDTH_SHARE * self.hardware.bandwidth_bytes_per_second * self.model.tensor_parallel
        return self.model.kv_bytes_per_token * kv_tokens / bandwidth

    def step_seconds(
        self,
        running_requests: float,
        draft_tokens: int,
        kv_tokens: float,
        *,
        off: bool = False,
        drafts_free: bool = False,
        verified_tokens: int | None = None,
    ) -> float:
        """One decode step.

        ``off``: the process was started without speculation; with ``draft_tokens`` 0 and not off, the engine is gated:
        the draft still extends once a step. ``drafts_free``: n-gram drafts, which need no model. ``verified_tokens``:
        per request, where it is not draft_tokens + 1 (trees).
        """
        verified = 1 if off else (verified_tokens if verified_tokens is not None else draft_tokens + 1)
        target = self.gemm_seconds(self.model.parameters, running_requests * verified)
        time = target + self.kv_seconds(kv_tokens) + self.model.overhead_seconds
        if off:
            return time
        if not drafts_free:
            time += max(draft_tokens, 1) * self._draft_step_seconds(running_requests)
        if draft_tokens:
            time += self.model.speculation_seconds_per_request * running_requests
        return time

    def prefill_seconds(self, tokens: float) -> float:
        return self.gemm_seconds(self.model.parameters, tokens) + self.model.overhead_seconds

    def _draft_step_seconds(self, running_requests: float) -> float:
        return self.gemm_seconds(self.model.draft_parameters, running_requests) + DRAFT_STEP_OVERHEAD_SECONDS


PRESETS: dict[str, StepModel] = {
    "8b-a100": StepModel(A100, MODEL_8B),
    "8b-h100": StepModel(H100, MODEL_8B),
    "8b-h200": StepModel(H200, MODEL_8B),
    "70b-a100-tp4": StepModel(A100, MODEL_70B),
    "70b-h100-tp4": StepModel(H100, MODEL_70B),
    "70b-h200-tp4": StepModel(H200, MODEL_70B),
}


def acceptance_length(acceptance: float, draft_tokens: int) -> float:
    """Expected tokens per request and step with independent positions: (1 - a^(K+1)) / (1 - a) (arXiv:2211.17192)."""
    if acceptance >= 1:
        return draft_tokens + 1.0
    return (1 - acceptance ** (draft_tokens + 1)) / (1 - acceptance)
