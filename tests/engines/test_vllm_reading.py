"""vLLM: every fixture reads as its README says, the counter arithmetic holds, every trap is a test by its name."""

import re
from pathlib import Path

import pytest

from crossover.api.fleet import ScrapeFault
from crossover.engines import detect
from crossover.engines.contract import Answer
from crossover.engines.vllm import ENGINE

METRICS = Path(__file__).parents[1] / "fixtures" / "metrics"


def body(name):
    return (METRICS / f"vllm-{name}.prom").read_bytes()


def read(*bodies, seconds=10.0):
    """Several scrapes in a row; the last reading."""
    previous = None
    for position, content in enumerate(bodies):
        previous = ENGINE.read([Answer("/metrics", 200, content)], seconds * position, previous)
    return previous


def traps(reading):
    return {trap.code for trap in reading.traps}


@pytest.mark.parametrize(
    ("name", "running", "waiting", "kv"),
    [
        ("0.10.2-b64-spec", 64, 5, 0.41),
        ("0.20.2-b64-spec", 64, 5, 0.41),
        ("0.33.0-b64-spec", 64, 5, 0.41),
        ("0.33.0-b64-nospec", 64, 5, 0.41),
        ("0.33.0-b192-dynk0", 192, 11, 0.93),
        ("0.33.0-b64-spec-2apiservers", 64, 5, 0.41),
        ("0.33.0-idle", 0, 0, 0.0),
    ],
)
def test_every_fixture_reads_as_its_readme_says(name, running, waiting, kv):
    (scheduler,) = read(body(name)).schedulers
    assert (scheduler.running_requests, scheduler.waiting_requests, scheduler.kv_usage) == (running, waiting, kv)
    assert scheduler.max_running_requests is None
    assert "max-num-seqs" in scheduler.unknown["max_running_requests"]


def test_data_parallel_engines_are_schedulers_of_their_own():
    reading = read(body("0.33.0-dp2"))
    assert [(s.name, s.running_requests) for s in reading.schedulers] == [("engine0", 40), ("engine1", 24)]
    assert "DataParallelRanks" in traps(reading)


def test_the_engine_label_is_the_global_rank_and_is_not_hard_coded():
    moved = re.sub(rb'engine="0"', b'engine="5"', body("0.33.0-b64-spec"))
    assert [scheduler.name for scheduler in read(moved).schedulers] == ["engine5"]


def test_a_process_without_speculation_has_no_series_and_that_means_off():
    (scheduler,) = read(body("0.33.0-b64-nospec")).schedulers
    assert (scheduler.draft_tokens, scheduler.acceptance_length, scheduler.speculated_share) == (0.0, 1.0, 0.0)


def test_the_draft_length_needs_two_readings():
    (scheduler,) = read(body("0.33.0-b64-spec")).schedulers
    assert scheduler.draft_tokens is None
    assert "two readings" in scheduler.unknown["draft_tokens"]


def scaled(content, name, value):
    return re.sub(rf"^(vllm:{name}{{.*?}}) .*$".encode(), rb"\1 " + str(value).encode(), content, flags=re.M)


def test_counter_arithmetic_from_idle_to_busy():
    """400 steps of 64 requests at K = 3: drafts 25,600, tokens 76,800, accepted 35,821 (the fixture's README)."""
    (scheduler,) = read(body("0.33.0-idle"), body("0.33.0-b64-spec")).schedulers
    assert scheduler.draft_tokens == 3.0
    assert scheduler.acceptance_length == pytest.approx(1 + 35821 / 25600)
    assert scheduler.speculated_share == 1.0
    assert scheduler.accepted_tokens_by_position_total == (18513, 11161, 6147)
    assert scheduler.request_steps_total / scheduler.engine_steps_total == 64


def test_a_scheduled_length_of_0_freezes_the_speculation_counters_while_tokens_move():
    reading = read(body("0.33.0-b64-spec"), body("0.33.0-b192-dynk0"))
    (scheduler,) = reading.schedulers
    assert (scheduler.draft_tokens, scheduler.acceptance_length) == (0.0, 1.0)
    assert "DraftOffBySchedule" in traps(reading)
    assert scheduler.output_tokens_total - 61421 == 76800


def test_several_api_servers_count_each_step_so_the_step_counter_is_not_read():
    reading = read(body("0.33.0-b64-spec-2apiservers"))
    assert reading.schedulers[0].engine_steps_total is None
    assert "SeveralAPIServers" in traps(reading)
    assert read(body("0.33.0-b64-spec")).schedulers[0].engine_steps_total == 400


def test_a_value_once_for_each_process_is_read_once():
    doubled = (
        body("0.10.2-b64-spec").replace(
            b'vllm:kv_cache_usage_perc{engine="0",', b'vllm:kv_cache_usage_perc{pid="7",engine="0",'
        )
        + b'vllm:kv_cache_usage_perc{engine="0",pid="8",model_name="x"} 0.2\n'
    )
    reading = read(doubled)
    assert reading.schedulers[0].kv_usage == 0.41
    assert "ProcessDuplicates" in traps(reading)


def test_the_old_kv_name_is_read_where_the_new_one_is_missing():
    old = body("0.10.2-b64-spec").replace(b"vllm:kv_cache_usage_perc", b"vllm:something_else")
    assert read(old).schedulers[0].kv_usage == 0.41


def test_tpot_is_per_request_and_never_inter_token_latency():
    assert read(body("0.33.0-b64-spec")).schedulers[0].time_per_output_token_count == 100
    assert read(body("0.10.2-b64-spec")).schedulers[0].time_per_output_token_count is None
    assert read(body("0.10.2-b64-spec")).schedulers[0].request_steps_total == 25600
    assert "LatencyIsPerStep" in traps(read(body("0.10.2-b64-spec")))
    assert "LatencyIsPerStep" not in traps(read(body("0.33.0-b64-spec")))


def test_kv_capacity_comes_from_the_labels_of_cache_config_info():
    assert read(body("0.33.0-b64-spec")).schedulers[0].kv_capacity_tokens == 442368
    assert read(body("0.20.2-b64-spec")).schedulers[0].kv_capacity_tokens == 27648 * 16


def test_the_rust_front_end_has_no_cache_config_info():
    without = re.sub(
        rb"(?m)^vllm:(cache_config_info|engine_sleep_state|admission_rejections).*\n", b"", body("0.33.0-b64-spec")
    )
    (scheduler,) = read(without).schedulers
    assert scheduler.kv_capacity_tokens is None
    assert scheduler.running_requests == 64


def test_deferred_requests_do_not_wait_for_room():
    content = re.sub(rb'(reason="deferred"}) 0.0', rb"\1 9.0", body("0.33.0-b64-spec"))
    reading = read(content)
    assert reading.schedulers[0].waiting_requests == 5
    assert "DeferredRequests" in traps(reading)


def test_lora_requests_info_is_never_a_number_of_requests():
    content = b'vllm:lora_requests_info{running_lora_adapters="a"} 1.7e9\n' + body("0.33.0-b64-spec")
    assert read(content) == read(body("0.33.0-b64-spec"))


def test_statistics_off_is_unknown_not_idle():
    """--disable-log-stats removes every vllm series; process and HTTP series stay."""
    rest = b"\n".join(line for line in body("0.33.0-idle").split(b"\n") if b"vllm:" not in line)
    assert read(rest + b"\n").fault is ScrapeFault.METRICS_OFF


def test_gauges_that_stay_up_with_no_counter_moving_are_stale_after_three_readings():
    busy = body("0.33.0-b64-spec")
    assert traps(read(busy, busy)) >= {"NoProgress"}
    reading = read(busy, busy, busy)
    assert reading.schedulers[0].running_requests is None
    assert "StaleGauges" in traps(reading)
    assert read(busy, busy, busy, body("0.33.0-b192-dynk0")).schedulers[0].running_requests == 192


def test_counters_that_fall_are_a_restart_or_an_elastic_scale_up_and_no_negative_rate():
    (scheduler,) = read(body("0.33.0-b192-dynk0"), body("0.33.0-b64-spec")).schedulers
    assert scheduler.draft_tokens is None


def test_a_sleeping_engine_says_so():
    content = re.sub(rb'(sleep_state="discard_all"}) 0.0', rb"\1 1.0", body("0.33.0-idle"))
    assert "Asleep" in traps(read(content))


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        (Answer("/metrics", 503, b"scaling"), ScrapeFault.HTTP_STATUS),
        (Answer("/metrics", 500, b"network /tmp"), ScrapeFault.HTTP_STATUS),
        (Answer("/metrics", 404, b""), ScrapeFault.METRICS_OFF),
        (Answer("/metrics", 401, b""), ScrapeFault.UNAUTHORIZED),
        (Answer("/metrics", 200, b"<html>"), ScrapeFault.NOT_METRICS),
        (Answer("/metrics", 200, b'sglang:num_running_reqs{tp_rank="0"} 1\n'), ScrapeFault.WRONG_ENGINE),
        (Answer("/metrics", 200, b'vllm:num_requests_running{engine="0"} NaN\n'), ScrapeFault.INVALID_VALUES),
    ],
)
def test_every_wrong_answer_has_its_fault(answer, fault):
    assert ENGINE.read([answer], 0.0, None).fault is fault


def test_it_is_told_from_other_engines():
    assert detect([Answer("/metrics", 200, body("0.33.0-idle"))]) is ENGINE
    other = (METRICS / "sglang-0.5.23-ngram-busy.prom").read_bytes()
    assert not ENGINE.recognises(Answer("/metrics", 200, other))


def test_the_v0_engine_has_other_speculation_series_and_is_unknown_not_off():
    content = (
        b'vllm:num_requests_running{model_name="m"} 4\nvllm:num_requests_waiting{model_name="m"} 1\n'
        b'vllm:gpu_cache_usage_perc{model_name="m"} 0.5\nvllm:spec_decode_num_emitted_tokens_total{model_name="m"} 9\n'
        b'vllm:spec_decode_num_draft_tokens_total{model_name="m"} 9\n'
    )
    reading = read(content)
    (scheduler,) = reading.schedulers
    assert (scheduler.name, scheduler.running_requests, scheduler.kv_usage) == ("engine0", 4, 0.5)
    assert scheduler.draft_tokens is None
    assert "V0" in scheduler.unknown["draft_tokens"]
    assert "V0SpeculationSeries" in traps(reading)


def test_admission_rejections_mean_that_the_queue_shows_less_than_the_demand():
    content = body("0.33.0-b64-spec") + b'vllm:admission_rejections_total{model_name="m",reason="requests"} 3.0\n'
    assert "RejectsRequests" in traps(read(content))
    assert "RejectsRequests" not in traps(read(body("0.33.0-b64-spec")))


@pytest.mark.parametrize("kind", ["text/plain; version=1.0.0; charset=utf-8", "text/plain; version=0.0.4", ""])
def test_both_content_types_are_accepted(kind):
    reading = ENGINE.read([Answer("/metrics", 200, body("0.33.0-b64-spec"), kind)], 0.0, None)
    assert reading.schedulers[0].running_requests == 64


def test_waiting_by_reason_came_in_0_20_and_before_it_all_that_wait_count():
    assert b"num_requests_waiting_by_reason" not in body("0.10.2-b64-spec")
    assert b"num_requests_waiting_by_reason" in body("0.20.2-b64-spec")
    assert read(body("0.10.2-b64-spec")).schedulers[0].waiting_requests == 5


def test_the_mean_batch_of_a_window_from_counters():
    """b64 to b192: 400 steps of 192 requests, no drafts (the fixtures' README)."""
    before, after = (read(body(name)).schedulers[0] for name in ("0.33.0-b64-spec", "0.33.0-b192-dynk0"))
    steps = after.engine_steps_total - before.engine_steps_total
    assert (after.request_steps_total - before.request_steps_total) / steps == 192
    assert after.drafts_total == before.drafts_total


def test_kv_use_is_a_share_whatever_its_name_says():
    for path in METRICS.glob("vllm-*.prom"):
        for scheduler in read(path.read_bytes()).schedulers:
            assert 0 <= scheduler.kv_usage <= 1
