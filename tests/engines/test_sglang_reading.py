"""SGLang: every fixture reads as its README says, every trap of the engine is recognised by its name."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from crossover.api.fleet import EngineType, ScrapeFault
from crossover.engines import detect
from crossover.engines.contract import Answer
from crossover.engines.sglang import ENGINE, WANTED

METRICS = Path(__file__).parents[1] / "fixtures" / "metrics"


def metrics(name, status=200):
    return Answer("/metrics", status, (METRICS / f"sglang-{name}.prom").read_bytes(), "text/plain")


def text(*lines):
    return Answer("/metrics", 200, ("\n".join(lines) + "\n").encode())


def loads(**changed):
    body = json.loads((METRICS / "sglang-0.5.23-v1_loads-busy64-ngram.json").read_text())
    body["loads"][0].update(changed)
    return Answer("/v1/loads?include=core", 200, json.dumps(body).encode())


def read(*answers):
    return ENGINE.read(answers, 100.0, None)


def traps(reading):
    return {trap.code for trap in reading.traps}


@pytest.mark.parametrize(
    ("name", "running", "waiting", "draft", "acceptance"),
    [
        ("0.4.6-busy64", 64, 7, None, 2.9),
        ("0.4.6-idle", 0, 0, None, None),
        ("0.5.3-busy64", 64, 7, None, 2.9),
        ("0.5.3-idle", 0, 0, None, None),
        ("0.5.23-busy-nospec", 12, 0, 0, 1.0),
        ("0.5.23-busy64-eagle-adaptive-steps0", 64, 0, 0, 1.0),
        ("0.5.23-busy64-ngram-spec", 64, 0, 3, 4.0),
        ("0.5.23-ngram-busy", 16, 0, 3, 4.0),
        ("0.5.23-idle-fresh", 0, 0, None, None),
        ("0.5.23-idle-after-spec-stale-gauges", 0, 0, None, None),
    ],
)
def test_every_fixture_reads_as_its_readme_says(name, running, waiting, draft, acceptance):
    (scheduler,) = read(metrics(name)).schedulers
    assert (scheduler.running_requests, scheduler.waiting_requests) == (running, waiting)
    assert (scheduler.draft_tokens, scheduler.acceptance_length) == (draft, acceptance)


def test_every_unknown_value_has_its_reason():
    for path in METRICS.glob("sglang-*.prom"):
        for scheduler in read(Answer("/metrics", 200, path.read_bytes())).schedulers:
            for field in ("running_requests", "waiting_requests", "max_running_requests", "draft_tokens"):
                assert getattr(scheduler, field) is not None or field in scheduler.unknown


def test_stale_speculation_gauges_at_idle_are_ignored():
    reading = read(metrics("0.5.23-idle-after-spec-stale-gauges"))
    assert "StaleSpeculationGauges" in traps(reading)
    assert reading.schedulers[0].unknown["draft_tokens"].startswith("stale")


def test_draft_length_0_by_schedule_is_off_and_not_a_broken_draft():
    assert "DraftOffBySchedule" in traps(read(metrics("0.5.23-busy64-eagle-adaptive-steps0")))


def test_data_parallel_ranks_stay_apart_and_priorities_are_not_added_up():
    reading = read(metrics("0.5.23-dp2-priority-extra-label"))
    assert [(s.name, s.running_requests, s.waiting_requests) for s in reading.schedulers] == [
        ("dp0", 8, 12),
        ("dp1", 8, 13),
    ]
    assert "PriorityDuplicates" in traps(reading)


def test_counters_of_the_ranks_are_the_decode_tokens():
    reading = read(metrics("0.5.23-dp2-priority-extra-label"))
    assert [scheduler.output_tokens_total for scheduler in reading.schedulers] == [16768, 16879]


def test_tensor_parallel_ranks_repeat_the_batch():
    reading = read(
        text(*(f'sglang:num_running_reqs{{tp_rank="{rank}",pp_rank="0"}} 20.0' for rank in range(4))),
    )
    assert [scheduler.running_requests for scheduler in reading.schedulers] == [20.0]
    assert "TensorParallelDuplicates" in traps(reading)


def test_constants_of_other_ranks_are_no_schedulers():
    reading = read(
        text(
            'sglang:num_running_reqs{dp_rank="0",tp_rank="0"} 5.0',
            'sglang:max_total_num_tokens{dp_rank="0",tp_rank="0"} 100.0',
            'sglang:max_total_num_tokens{dp_rank="1",tp_rank="0"} 100.0',
        )
    )
    assert [scheduler.name for scheduler in reading.schedulers] == ["dp0"]


def test_pipeline_ranks_make_the_batch_unknown_without_loads():
    lines = [f'sglang:num_running_reqs{{pp_rank="{rank}",tp_rank="0"}} {rank + 3}.0' for rank in range(2)]
    reading = read(text(*lines))
    assert reading.schedulers[0].running_requests is None
    assert "PipelineRanks" in traps(reading)
    assert read(loads(), text(*lines)).schedulers[0].running_requests == 64


def test_absent_before_the_first_report_is_unknown_not_zero():
    reading = read(text('sglang:max_total_num_tokens{tp_rank="0"} 100.0'))
    assert reading.fault is None
    assert reading.schedulers[0].running_requests is None
    assert reading.schedulers[0].unknown["running_requests"].startswith("absent")


def test_dead_utilization_is_never_read():
    reading = read(text("sglang:utilization 0.9", 'sglang:num_running_reqs{tp_rank="0"} 1.0'))
    assert "utilization" not in str(reading)


def test_loads_are_fresher_than_the_gauges():
    reading = read(loads(num_running_reqs=21), metrics("0.5.23-ngram-busy"))
    assert reading.schedulers[0].running_requests == 21
    assert reading.source == "/v1/loads"
    assert "GaugesLagBehindLoads" in traps(reading)
    assert reading.schedulers[0].draft_tokens == 3


def test_loads_alone_know_the_batch_and_its_limit_but_not_the_draft_length():
    (scheduler,) = read(loads()).schedulers
    assert (scheduler.running_requests, scheduler.max_running_requests, scheduler.kv_usage) == (64, 96, 0.3527)
    assert scheduler.draft_tokens is None
    assert "/metrics is off" in scheduler.unknown["draft_tokens"]
    assert "LifetimeAcceptance" in traps(read(loads()))


def test_a_gauge_that_says_busy_while_loads_say_idle_is_stale():
    (scheduler,) = read(loads(num_running_reqs=0), metrics("0.5.23-ngram-busy")).schedulers
    assert scheduler.draft_tokens is None
    assert scheduler.unknown["draft_tokens"].startswith("stale")


def test_a_deep_queue_without_a_batch_is_stuck_not_idle():
    assert "QueueWithoutBatch" in traps(read(loads(num_running_reqs=0, num_waiting_reqs=50)))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "12", None, -1, True])
def test_a_load_that_is_no_number_is_a_fault(value):
    assert read(loads(num_running_reqs=value)).fault is ScrapeFault.INVALID_VALUES


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        (Answer("/metrics", 404, b"nothing here"), ScrapeFault.METRICS_OFF),
        (Answer("/metrics", 503, b"starting"), ScrapeFault.HTTP_STATUS),
        (Answer("/metrics", 401, b"key"), ScrapeFault.UNAUTHORIZED),
        (Answer("/metrics", 200, b"<html></html>"), ScrapeFault.NOT_METRICS),
        (Answer("/metrics", 200, b""), ScrapeFault.METRICS_OFF),
        (Answer("/metrics", 200, b'vllm:num_requests_running{engine="0"} 3\n'), ScrapeFault.WRONG_ENGINE),
        (Answer("/v1/loads", 200, b"{}"), ScrapeFault.NOT_METRICS),
        (Answer("/metrics", 200, b'sglang:num_running_reqs{tp_rank="0"} NaN\n'), ScrapeFault.INVALID_VALUES),
    ],
)
def test_every_wrong_answer_has_its_fault(answer, fault):
    assert read(answer).fault is fault


def test_the_server_describes_itself_and_its_keys_never_leave():
    info = json.loads((METRICS / "sglang-0.5.23-server_info-eagle-adaptive.subset.json").read_text())
    info["api_key"] = info["internal_states"][0]["admin_api_key"] = "very-secret"
    capability = ENGINE.capability(Answer("/server_info", 200, json.dumps(info).encode()), None)
    assert capability is not None
    assert (capability.version, capability.speculative_algorithm) == ("0.5.23", "EAGLE")
    assert capability.follows_schedule
    assert capability.zero_is_safe
    assert capability.max_running_requests == 128
    assert "very-secret" not in repr(capability)


@pytest.mark.parametrize(
    ("changed", "state", "words"),
    [
        ({"speculative_algorithm": "NGRAM"}, {}, "not NGRAM"),
        ({"speculative_eagle_topk": 4}, {}, "topk 1"),
        ({"enable_dp_attention": True}, {}, "DP attention"),
        ({"enable_multi_layer_eagle": True}, {}, "multi-layer"),
        ({"version": "0.5.12"}, {}, "0.5.13"),
        ({"speculative_algorithm": None}, {}, "without speculation"),
    ],
)
def test_a_server_that_cannot_follow_a_schedule_says_why_in_the_engines_own_terms(changed, state, words):
    info = json.loads((METRICS / "sglang-0.5.23-server_info-eagle-adaptive.subset.json").read_text())
    info.update(changed)
    capability = ENGINE.capability(Answer("/server_info", 200, json.dumps(info).encode()), None)
    assert capability is not None
    assert capability.schedule_dialect is None
    assert words in capability.schedule_refusal


def test_the_flag_alone_is_not_believed_the_live_state_is():
    """An unsupported combination makes the engine warn and fall back to a fixed length."""
    info = json.loads((METRICS / "sglang-0.5.23-server_info-eagle-adaptive.subset.json").read_text())
    info["internal_states"][0]["speculative_adaptive"] = False
    capability = ENGINE.capability(Answer("/server_info", 200, json.dumps(info).encode()), None)
    assert capability is not None
    assert not capability.follows_schedule


def test_adaptive_without_a_file_adapts_by_itself():
    info = json.loads((METRICS / "sglang-0.5.23-server_info-eagle-adaptive.subset.json").read_text())
    info["speculative_adaptive_config"] = None
    capability = ENGINE.capability(Answer("/server_info", 200, json.dumps(info).encode()), None)
    assert capability is not None
    assert capability.adapts_by_itself
    assert not capability.follows_schedule


def test_zero_steps_need_0_5_14():
    info = json.loads((METRICS / "sglang-0.5.23-server_info-eagle-adaptive.subset.json").read_text())
    info["version"] = "0.5.13"
    capability = ENGINE.capability(Answer("/server_info", 200, json.dumps(info).encode()), None)
    assert capability is not None
    assert capability.zero_is_safe is False


# -- traps that need more than one reading, or another role ---------------------------------------------------------------


def in_a_row(*bodies, seconds=10.0):
    previous = None
    for position, lines in enumerate(bodies):
        previous = ENGINE.read([text(*lines)], seconds * position, previous)
    return previous


def busy(tokens, running=5):
    return (
        f'sglang:num_running_reqs{{tp_rank="0"}} {running}.0',
        f'sglang:realtime_tokens_total{{mode="decode",tp_rank="0"}} {tokens}.0',
        'sglang:gen_throughput{tp_rank="0"} 70.0',
    )


def test_up_to_0_5_15_the_running_gauge_stays_up_for_30_seconds_after_the_last_request():
    busy_then_still = [busy(100), *[busy(500)] * 5]
    young = in_a_row(*busy_then_still[:3])
    assert young.schedulers[0].running_requests == 5
    assert "NoProgress" in traps(young)
    reading = in_a_row(*busy_then_still)
    assert reading.schedulers[0].running_requests is None
    assert reading.schedulers[0].unknown["running_requests"].startswith("stale")
    assert "StaleGauges" in traps(reading)
    again = in_a_row(*busy_then_still, busy(600))
    assert again.schedulers[0].running_requests == 5
    assert again.still_since_seconds is None


def test_the_first_throughput_after_idle_is_divided_by_the_idle_time_too_and_is_not_used():
    idle = ('sglang:num_running_reqs{tp_rank="0"} 0.0', 'sglang:gen_throughput{tp_rank="0"} 0.0')
    first = ('sglang:num_running_reqs{tp_rank="0"} 9.0', 'sglang:gen_throughput{tp_rank="0"} 3.0')
    reading = in_a_row(idle, first)
    assert reading.schedulers[0].output_tokens_per_second is None
    assert "ThroughputAfterIdle" in traps(reading)
    assert in_a_row(idle, first, first).schedulers[0].output_tokens_per_second == 3.0


@pytest.mark.parametrize("name", ["num_prefill_bootstrap_queue_reqs", "num_prefill_prealloc_queue_reqs"])
def test_a_prefill_server_says_its_role_and_its_queue_under_both_names(name):
    labels = 'engine_type="prefill",tp_rank="0"'
    reading = read(
        text(
            f"sglang:num_running_reqs{{{labels}}} 3.0",
            f"sglang:num_queue_reqs{{{labels}}} 1.0",
            f"sglang:{name}{{{labels}}} 4.0",
            f"sglang:utilization{{{labels}}} -1.0",
        )
    )
    assert {"PrefillRole", "DisaggregationQueues"} <= traps(reading)
    assert reading.schedulers[0].waiting_requests == 5


def test_a_prefill_server_never_decodes_and_is_not_taken_for_stale():
    labels = 'engine_type="prefill",tp_rank="0"'
    lines = (
        f"sglang:num_running_reqs{{{labels}}} 3.0",
        f'sglang:realtime_tokens_total{{{labels},mode="decode"}} 7.0',
    )
    assert in_a_row(*[lines] * 8).schedulers[0].running_requests == 3


def test_a_decode_servers_transfer_queues_are_waiting_requests():
    labels = 'engine_type="decode",tp_rank="0"'
    lines = [f"sglang:num_running_reqs{{{labels}}} 24.0", f"sglang:num_queue_reqs{{{labels}}} 0.0"]
    lines += [f"sglang:num_decode_{name}_queue_reqs{{{labels}}} 2.0" for name in ("prealloc", "transfer")]
    reading = read(text(*lines))
    assert reading.schedulers[0].waiting_requests == 4
    assert "PrefillRole" not in traps(reading)


def test_loads_count_the_queues_of_disaggregation_already():
    role = {"mode": "prefill", "prefill_bootstrap_queue_reqs": 4}
    reading = read(loads(num_waiting_reqs=6, disaggregation=role))
    assert reading.schedulers[0].waiting_requests == 6
    assert "PrefillRole" in traps(reading)


def test_a_decode_server_just_after_its_start_has_constants_only():
    reading = read(text('sglang:max_total_num_tokens{engine_type="decode",tp_rank="0"} 65536.0'))
    assert reading.schedulers[0].running_requests is None
    assert "AbsentBeforeFirstReport" in traps(reading)


def test_engines_that_share_a_metrics_folder_mix_their_series():
    reading = read(text(*(f'sglang:num_running_reqs{{model_name="{m}",tp_rank="0"}} 4.0' for m in "ab")))
    assert reading.schedulers[0].running_requests is None
    assert "SeveralModels" in traps(reading)


def test_accept_rate_changed_its_meaning_and_is_never_read():
    """0.5.6 to 0.5.10: drafts and bonus over draft tokens; from 0.5.11: drafts over draft tokens less one; also > 1."""
    assert not [name for name in WANTED if "accept_rate" in name]
    assert read(loads(speculative={"accept_length": 2.0, "accept_rate": 7.0})).schedulers[0].acceptance_length is None


def test_inter_token_latency_dead_gauges_and_the_offline_batch_are_never_read():
    for name in ("inter_token_latency_seconds_sum", "utilization", "max_running_requests_under_SLO"):
        assert f"sglang:{name}" not in WANTED
    assert "sglang:num_running_reqs_offline_batch" not in WANTED


def test_tpot_is_per_request():
    (scheduler,) = read(metrics("0.5.23-busy64-ngram-spec")).schedulers
    assert scheduler.time_per_output_token_count == 1
    (older,) = read(metrics("0.4.6-busy64")).schedulers
    assert older.time_per_output_token_count is None


def test_the_aggregate_of_0_5_8_to_0_5_12_makes_no_difference():
    body = json.loads(loads().body)
    with_aggregate = Answer("/v1/loads", 200, json.dumps({**body, "aggregate": {"total_running_reqs": 64}}).encode())
    assert read(with_aggregate).schedulers == read(loads()).schedulers


def test_loads_in_the_prometheus_format_have_other_names_and_are_not_taken_for_metrics():
    assert read(text("sglang_num_running_reqs 5")).fault is ScrapeFault.WRONG_ENGINE


def test_extra_labels_of_the_user_change_nothing():
    lines = ['sglang:num_running_reqs{pool="blue",tp_rank="0"} 7.0']
    assert read(text(*lines)).schedulers[0].running_requests == 7


def test_kv_use_and_capacity_are_read():
    (scheduler,) = read(metrics("0.5.3-busy64")).schedulers
    assert (scheduler.kv_tokens, scheduler.kv_usage) == (100000, 0.41)


def test_a_null_state_of_the_first_rank_does_not_break_the_description():
    info = json.loads((METRICS / "sglang-0.5.23-server_info-eagle-adaptive.subset.json").read_text())
    info["internal_states"] = [None, info["internal_states"][0]]
    capability = ENGINE.capability(Answer("/server_info", 200, json.dumps(info).encode()), None)
    assert capability is not None
    assert capability.live_running_cap is None


def test_the_description_tells_the_live_cap():
    info = (METRICS / "sglang-0.5.23-server_info-eagle-adaptive.subset.json").read_bytes()
    capability = ENGINE.capability(Answer("/server_info", 200, info), None)
    assert capability is not None
    assert capability.live_running_cap == "pp_max_micro_batch_size"
    assert (capability.running_cap, capability.running_cap_at_start) == (128, 128)


def test_0_4_6_flattens_the_state_of_its_scheduler():
    info = {"version": "0.4.6", "speculative_algorithm": "EAGLE", "speculative_num_draft_tokens": 4}
    capability = ENGINE.capability(Answer("/get_server_info", 200, json.dumps(info).encode()), None)
    assert capability is not None
    assert (capability.version, capability.max_draft_tokens, capability.live_running_cap) == ("0.4.6", 3, None)


def test_it_is_told_from_other_engines():
    assert detect([metrics("0.5.23-ngram-busy")]) is ENGINE
    assert detect([loads()]) is ENGINE
    other = Answer("/metrics", 200, (METRICS / "vllm-0.33.0-idle.prom").read_bytes())
    assert not ENGINE.recognises(other)
    assert ENGINE.type is EngineType.SGLANG


def test_reading_is_pure():
    answers = (loads(), metrics("0.5.23-ngram-busy"))
    first, second = ENGINE.read(answers, 1.0, None), ENGINE.read(answers, 2.0, None)
    assert replace(first, observed_at_seconds=2.0) == second
