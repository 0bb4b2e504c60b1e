"""Acceptance forced in each engine's own spelling. The values are those of InferenceX, golden_al_distribution/README.md
(843c6254): for a golden acceptance length of 3.24 SGLang gets 3.24, for 3.5 TensorRT-LLM gets 2.5."""

import json

import pytest
from tests.engines import test_tensorrt_llm_settings as trtllm
from tests.engines import test_vllm_settings as vllm

from crossover.api.fleet import Capability, EngineType
from crossover.engines import ENGINES, vllm_settings
from crossover.engines.contract import Refusal, WantedSpeculation

SGLANG_ARGS = ["--speculative-algorithm=EAGLE", "--speculative-num-steps=3", "--speculative-num-draft-tokens=4"]


def edited(kind, container, wanted, files=None, version=None):
    return ENGINES[kind].edit(container, files or {}, wanted, Capability(kind, version, None), {})


def test_sglang_is_told_the_length_with_its_bonus_token():
    container = {"name": "s", "args": [*SGLANG_ARGS, "--speculative-eagle-topk=1"]}
    change = edited(EngineType.SGLANG, container, WantedSpeculation(True, 3, forced_acceptance_length=3.24))
    assert change.env == {
        "SGLANG_SIMULATE_ACC_LEN": "3.24",
        "SGLANG_SIMULATE_ACC_METHOD": "match-expected",
        "SGLANG_SIMULATE_ACC_TOKEN_MODE": "real-draft-token",
    }


@pytest.mark.parametrize("form", trtllm.FORMS)
def test_tensorrt_llm_is_told_it_without_the_bonus_token(form):
    wanted = WantedSpeculation(True, forced_acceptance_length=3.5)
    change = edited(EngineType.TENSORRT_LLM, trtllm.FORMS[form], wanted, trtllm.FILES)
    assert change.env["TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS"] == "2.5"


def test_vllm_is_told_it_in_its_configuration():
    given = {"method": "eagle3", "model": "d", "num_speculative_tokens": 4, "synthetic_acceptance_rates": [0.9] * 4}
    container = {"name": "v", "args": ["--model=m", "--speculative-config", json.dumps(given)]}
    wanted = WantedSpeculation(True, 4, forced_acceptance_length=3.24)
    change = edited(EngineType.VLLM, container, wanted, version="0.33.0")
    assert json.loads(change.args[-1]) == {
        "method": "eagle3",
        "model": "d",
        "num_speculative_tokens": 4,
        "rejection_sample_method": "synthetic",
        "synthetic_acceptance_length": 3.24,
    }


def test_an_older_vllm_would_not_start_with_it():
    container = {"name": "v", "args": ["--speculative-config", '{"method": "ngram", "num_speculative_tokens": 3}']}
    with pytest.raises(Refusal) as refused:
        edited(EngineType.VLLM, container, WantedSpeculation(True, 3, forced_acceptance_length=2.0), version="0.20.2")
    assert refused.value.field == "spec.forcedAcceptance"


@pytest.mark.parametrize("form", vllm.FORMS)
def test_serving_pods_keep_their_own_acceptance(form):
    """What a fleet is started with never holds a forced acceptance."""
    item = vllm.FORMS[form]
    change = vllm_settings.edit(item, {}, WantedSpeculation(True, draft_tokens=2), vllm.able(item=item), {})
    assert "synthetic" not in str(change)
