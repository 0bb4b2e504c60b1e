"""TensorRT-LLM in all its servers: every fixture reads as its README says, every trap is a test by its name."""

import json
import re
from pathlib import Path

import pytest

from crossover.api.fleet import ScrapeFault
from crossover.engines import detect
from crossover.engines.contract import Answer
from crossover.engines.tensorrt_llm import ENGINE, PROMETHEUS, WANTED

METRICS = Path(__file__).parents[1] / "fixtures" / "metrics"


def body(name):
    found = [path for path in METRICS.glob(f"trtllm-{name}.*") if path.suffix in (".prom", ".json")]
    return found[0].read_bytes()


def read(*bodies, path=PROMETHEUS):
    previous = None
    for position, content in enumerate(bodies):
        previous = ENGINE.read([Answer(path, 200, content)], 10.0 * position, previous)
    return previous


def traps(reading):
    return {trap.code for trap in reading.traps}


@pytest.mark.parametrize(
    ("name", "running", "waiting", "limit", "kv"),
    [
        ("1.3-serve-b64-spec", 64, 0, 256, 0.2938),
        ("1.3-serve-b64-nospec", 64, 0, 256, 0.2938),
        ("1.3-serve-b192-sched0", 192, 0, 256, 0.8205),
        ("1.3-serve-queueing", 247, 41, 256, None),
        ("1.3-serve-queueing-hidden", 256, 0, 256, 0.9554),
        ("1.3-serve-idle-fresh", 0, None, None, None),
        ("1.3-serve-idle-stale", 0, 0, 256, 0.0128),
        ("dynamo-1.6-b64-spec", 64, 0, 256, None),
        ("dynamo-1.6-idle-nopublish", 0, None, None, 0.0),
        ("nim-1.x-b64", 64, 0, 256, 0.294),
        ("nim-1.x-idle", 0, 0, 256, None),
        ("triton-classic-b64-spec", 64, 0, 512, 0.2938),
        ("triton-classic-idle", 0, 0, 512, None),
    ],
)
def test_every_fixture_reads_as_its_readme_says(name, running, waiting, limit, kv):
    reading = read(body(name))
    assert reading.fault is None
    (scheduler,) = reading.schedulers
    assert (scheduler.running_requests, scheduler.waiting_requests, scheduler.max_running_requests) == (
        running,
        waiting,
        limit,
    )
    if kv is not None:
        assert scheduler.kv_usage == pytest.approx(kv, abs=1e-4)


@pytest.mark.parametrize("path", sorted(METRICS.glob("trtllm-*-serve-metrics-*.json")), ids=lambda path: path.stem)
def test_the_newest_record_of_the_json_is_read(path):
    records = json.loads(path.read_text())
    (scheduler,) = read(path.read_bytes()).schedulers
    if records:
        last = records[-1]
        assert scheduler.running_requests == last["numActiveRequests"]
        assert scheduler.waiting_requests == last.get("numQueuedRequests")
        assert scheduler.max_running_requests == last["maxNumActiveRequests"]


@pytest.mark.parametrize(
    ("name", "running", "waiting", "limit"),
    [
        ("1.3-serve-metrics-b64-spec", 63, 0, 256),
        ("1.3-serve-metrics-b192-sched0", 192, 0, 256),
        ("1.3-serve-metrics-queueing", 256, 38, 256),
        ("1.2-serve-metrics-b64-nospec", 64, 0, 256),
        ("1.0rc4-serve-metrics-trtbackend-published", 1, None, None),
    ],
)
def test_every_json_fixture_reads_as_its_newest_iteration(name, running, waiting, limit):
    """Around batch 64, at 192, and 256 of 256 with a queue, as their README says; the last record is the present."""
    (scheduler,) = read(body(name)).schedulers
    assert (scheduler.running_requests, scheduler.waiting_requests) == (running, waiting)
    assert limit is None or scheduler.max_running_requests == limit


def test_the_servers_own_limit_is_read_from_its_description():
    info = Answer("/server_info", 200, body("1.3-serve-server_info"))
    told = ENGINE.capability(info, None)
    assert told is not None
    assert told.max_running_requests == 256


def test_static_batch_limits_of_0_are_unknown_not_a_limit():
    assert read(body("1.3-serve-b64-nospec")).schedulers[0].max_running_requests == 256
    assert "StaticLimitsAreZero" in traps(read(body("1.3-serve-metrics-b64-spec")))


def test_the_running_gauge_goes_stale_at_idle():
    reading = read(body("1.3-serve-idle-stale"))
    assert reading.schedulers[0].running_requests == 0
    assert "IdleGaugesStale" in traps(reading)


def without(content, *names):
    for name in names:
        content = re.sub(rf"(?m)^trtllm_{name}.*\n".encode(), b"", content)
    return content


def still(content, *seconds):
    """The same page at several times; the last reading."""
    previous = None
    for at in seconds:
        previous = ENGINE.read([Answer(PROMETHEUS, 200, content)], at, previous)
    return previous


def test_without_the_cheap_gauge_silence_becomes_idle_only_after_several_request_lifetimes():
    """Nothing moves during one long answer either. Requests that lived 4.4 s each: a minute decides; 100 s each: 300 s."""
    content = without(body("1.3-serve-idle-stale"), "scheduled_batch_size")
    first = read(content)
    assert first.schedulers[0].running_requests > 0
    assert "GaugesMoveWhenRequestsEnd" in traps(first)
    assert still(content, 0, 10, 50).schedulers[0].running_requests > 0
    idle = still(content, 0, 10, 50, 65)
    assert idle.schedulers[0].running_requests == 0
    assert "IdleGaugesStale" in traps(idle)
    slow = re.sub(rb"(?m)^(trtllm_e2e_request_latency_seconds_sum{.*}) .*$", rb"\1 921900", content)
    assert still(slow, 0, 65, 200).schedulers[0].running_requests > 0
    assert still(slow, 0, 65, 200, 301).schedulers[0].running_requests == 0


def test_a_request_that_ends_begins_the_wait_again():
    content = without(body("1.3-serve-idle-stale"), "scheduled_batch_size")
    moved = re.sub(rb"(?m)^(trtllm_generation_tokens_total{.*}) .*$", rb"\1 2e6", content)
    first = ENGINE.read([Answer(PROMETHEUS, 200, content)], 0, None)
    second = ENGINE.read([Answer(PROMETHEUS, 200, moved)], 50, first)
    assert ENGINE.read([Answer(PROMETHEUS, 200, moved)], 70, second).schedulers[0].running_requests > 0


def test_a_dynamo_worker_with_nothing_in_flight_is_idle_whatever_the_engines_gauge_says():
    content = re.sub(rb"(?m)^(dynamo_component_inflight_requests{.*}) 64$", rb"\1 0", body("dynamo-1.6-b64-spec"))
    reading = read(content)
    assert reading.schedulers[0].running_requests == 0
    assert "IdleGaugesStale" in traps(reading)


def test_a_pid_of_a_dead_worker_is_noticed():
    extra = b'trtllm_num_requests_running{engine_type="pytorch",model_name="Qwen3-32B",pid="9"} 3.0\n'
    reading = read(body("1.3-serve-b64-spec") + extra)
    assert "ProcessesDisagree" in traps(reading)


def test_attention_dp_ranks_have_batches_of_their_own():
    content = body("1.3-serve-b64-spec").replace(b'pid="119",rank="1"} 64.0', b'pid="119",rank="1"} 12.0')
    reading = read(content)
    assert reading.schedulers[0].running_requests == 64
    assert "AttentionDPRanks" in traps(reading)


def test_with_pipeline_parallelism_the_scheduled_batch_is_one_micro_batch():
    content = body("1.3-serve-b64-spec").replace(b'pipeline_parallel_size="1"', b'pipeline_parallel_size="2"')
    content = re.sub(rb"(?m)^(trtllm_scheduled_batch_size{.*}) 64.0$", rb"\1 31.0", content)
    reading = read(content)
    assert reading.schedulers[0].running_requests == 64
    assert "PipelineMicroBatch" in traps(reading)


def test_misleading_fields_are_never_read():
    """iterLatencyMS spans two loops under overlap; avgNumDecodedTokensPerIter is 0 on PyTorch; Triton's queue time stays 0."""
    for name in (
        "trtllm_iteration_latency_seconds",
        "nv_inference_pending_request_count",
        "trtllm_max_batch_size_static",
    ):
        assert name not in WANTED
    records = json.loads(body("1.3-serve-metrics-b64-spec"))
    for record in records:
        record |= {"iterLatencyMS": 1e9, "avgNumDecodedTokensPerIter": 7}
    assert read(json.dumps(records).encode()).schedulers == read(body("1.3-serve-metrics-b64-spec")).schedulers


def test_counters_that_have_not_been_incremented_yet_do_not_exist_and_are_unknown():
    (scheduler,) = read(body("1.3-serve-idle-fresh")).schedulers
    assert scheduler.output_tokens_total is None


def test_counters_fall_at_a_restart_and_give_no_negative_draft_length():
    now = body("1.3-serve-b64-spec")
    fell = re.sub(rb"(?m)^(trtllm_spec_decode_num_draft_tokens_total{.*?}) .*$", rb"\1 30", now)
    assert read(now, fell).schedulers[0].draft_tokens is None


def test_nim_2_wraps_another_engine_and_is_read_as_that():
    vllm = (METRICS / "vllm-0.33.0-idle.prom").read_bytes()
    assert detect([Answer("/v1/metrics", 200, vllm)]).type == "VLLM"


def test_kv_blocks_of_triton_are_a_share_and_tokens():
    (scheduler,) = read(body("triton-classic-b64-spec"), path="/metrics").schedulers
    assert scheduler.kv_usage == pytest.approx(1833 / 6239)
    assert scheduler.kv_capacity_tokens == 6239 * 64


def test_occupancy_falls_back_from_step_to_generation_to_running():
    content = body("1.3-serve-b64-spec")
    assert read(without(content, "scheduled_batch_size")).schedulers[0].running_requests == 64
    last = without(content, "scheduled_batch_size", "num_generation_requests", "num_context_requests")
    assert read(last).schedulers[0].running_requests == 64


def test_tensor_parallel_ranks_repeat_the_batch():
    assert "TensorParallelDuplicates" in traps(read(body("1.3-serve-b64-spec")))


def test_a_full_server_that_shows_no_queue_says_that_the_gauge_under_reports():
    assert "QueueUnderReports" in traps(read(body("1.3-serve-queueing-hidden")))
    assert "QueueUnderReports" not in traps(read(body("1.3-serve-queueing")))


def test_no_speculative_config_means_off():
    (scheduler,) = read(body("1.3-serve-b64-nospec")).schedulers
    assert (scheduler.draft_tokens, scheduler.acceptance_length) == (0.0, 1.0)


def test_an_acceptance_length_of_0_is_off_by_schedule_not_a_bad_draft():
    for name in ("1.3-serve-b192-sched0", "1.3-serve-metrics-b192-sched0"):
        reading = read(body(name))
        assert "DraftOffBySchedule" in traps(reading)
        assert (reading.schedulers[0].draft_tokens, reading.schedulers[0].acceptance_length) == (0.0, 1.0)


def test_config_info_does_not_follow_the_schedule():
    assert "ConfigInfoDoesNotFollow" in traps(read(body("1.3-serve-b192-sched0")))


def test_the_draft_length_comes_from_counters_over_two_readings():
    now = body("1.3-serve-b64-spec")
    (first,) = read(now).schedulers
    assert first.draft_tokens is None
    assert first.acceptance_length == pytest.approx(2.629032258)
    drafted, accepted = first.draft_tokens_total, first.accepted_tokens_total
    # 1,000 more requests drafted for, 3 tokens each, 1.629... accepted.
    later = re.sub(rb"(?m)^(trtllm_spec_decode_num_draft_tokens_total{.*?}) .*$", rb"\1 %d" % (drafted + 3000), now)
    later = re.sub(
        rb"(?m)^(trtllm_spec_decode_num_accepted_tokens_total{.*?}) .*$", rb"\1 %f" % (accepted + 1629.032258), later
    )
    assert read(now, later).schedulers[0].draft_tokens == pytest.approx(3.0)


def test_counters_by_position_tell_what_one_iteration_cannot():
    """1,000 more requests drafted for, 3 tokens each, 1,600 accepted; the newest iteration happened to accept all."""
    now = body("1.3-serve-b64-spec")
    grown = {"drafted": (1000, 1000, 1000), "accepted": (800, 500, 300)}
    later = re.sub(rb"(?m)^(trtllm_spec_decode_acceptance_length{.*?}) .*$", rb"\1 4.0", now)
    for kind, more in grown.items():
        name = f"trtllm_spec_decode_num_{'draft' if kind == 'drafted' else kind}_tokens_total".encode()
        later = add(later, name, rb"", sum(more))
        for position, value in enumerate(more):
            label = b'token_position="%d"' % position
            later = add(later, f"trtllm_spec_decode_{kind}_tokens_total".encode(), label, value)
    (scheduler,) = read(now, later).schedulers
    assert scheduler.draft_tokens == pytest.approx(3.0)
    assert scheduler.acceptance_length == pytest.approx(2.6)


def add(content, name, label, value):
    """A sample of a counter grows."""
    row = re.compile(rb"(?m)^(" + name + rb"{[^}]*" + label + rb"[^}]*}) (.*)$")
    return row.sub(lambda found: b"%s %f" % (found[1], float(found[2]) + value), content)


def test_an_iteration_of_prompts_only_is_not_off_by_schedule():
    content = re.sub(rb"(?m)^(trtllm_spec_decode_acceptance_length{.*?}) .*$", rb"\1 0.0", body("1.3-serve-b64-spec"))
    content = re.sub(rb"(?m)^(trtllm_num_generation_requests{.*?}) .*$", rb"\1 0.0", content)
    reading = read(content)
    assert "DraftOffBySchedule" not in traps(reading)
    assert (reading.schedulers[0].draft_tokens, reading.schedulers[0].acceptance_length) == (None, None)


def test_one_iteration_of_the_json_tells_draft_length_and_acceptance():
    first = json.loads(body("1.3-serve-metrics-b64-spec"))[:1]
    (scheduler,) = read(json.dumps(first).encode()).schedulers
    assert scheduler.draft_tokens == 3.0
    assert scheduler.acceptance_length == pytest.approx(1 + 101 / 62)


def test_older_json_has_no_speculation_object():
    (scheduler,) = read(body("1.2-serve-metrics-b64-nospec")).schedulers
    assert scheduler.draft_tokens == 0.0


def test_the_published_sample_is_read():
    reading = read(body("1.0rc4-serve-metrics-trtbackend-published"))
    assert reading.schedulers[0].running_requests is not None
    assert reading.schedulers[0].waiting_requests is None


def test_the_drained_json_says_that_it_steals_and_is_never_polled():
    assert "DrainedJSON" in traps(read(body("1.3-serve-metrics-b64-spec")))
    for group in ENGINE.load_paths(None):
        if "/metrics" in group:
            assert group[0] == "/live"


def test_an_empty_list_is_unknown_not_zero():
    reading = read(b"[]")
    assert reading.schedulers[0].running_requests is None
    assert "NoIterations" in traps(reading)


def test_attention_data_parallel_ranks_are_schedulers_of_their_own():
    (record,) = json.loads(body("1.2-serve-metrics-b64-nospec"))[:1]
    rows = [{**record, "attentionDpRank": rank, "numActiveRequests": 10 + rank} for rank in range(4)]
    for row in rows[1:]:
        row.pop("numQueuedRequests", None)
    reading = read(json.dumps(rows).encode())
    assert [s.running_requests for s in reading.schedulers] == [10, 11, 12, 13]
    assert [s.waiting_requests is None for s in reading.schedulers] == [False, True, True, True]


def test_a_dynamo_worker_that_does_not_publish_knows_only_requests_in_flight():
    reading = read(body("dynamo-1.6-idle-nopublish"))
    assert "PublishMetricsOff" in traps(reading)
    assert "--publish-metrics" in reading.schedulers[0].unknown["waiting_requests"]


def test_tritons_llm_api_backend_has_no_sensor_and_that_is_said():
    reading = read(body("triton-llmapi-b64-spec"), path="/metrics")
    assert reading.fault is ScrapeFault.METRICS_OFF
    assert "TritonLLMAPIHasNoSensor" in traps(reading)


def test_versions_1_0_and_1_1_serve_no_batch():
    content = (
        b'request_success_total{engine_type="undefined",model_name="undefined"} 5\n'
        b'request_queue_time_seconds_count{engine_type="undefined",model_name="undefined"} 5\n'
    )
    reading = read(content)
    assert "NoBatchGauge" in traps(reading)
    assert reading.schedulers[0].running_requests is None


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        (Answer(PROMETHEUS, 404, b""), ScrapeFault.METRICS_OFF),
        (Answer(PROMETHEUS, 503, b"starting"), ScrapeFault.HTTP_STATUS),
        (Answer(PROMETHEUS, 200, b"<html>"), ScrapeFault.NOT_METRICS),
        (Answer(PROMETHEUS, 200, b"other 1\n"), ScrapeFault.WRONG_ENGINE),
    ],
)
def test_every_wrong_answer_has_its_fault(answer, fault):
    assert ENGINE.read([answer], 0.0, None).fault is fault


@pytest.mark.parametrize(
    "name", ["1.3-serve-b64-spec", "nim-1.x-b64", "triton-classic-b64-spec", "dynamo-1.6-b64-spec"]
)
def test_it_is_told_from_other_engines(name):
    assert detect([Answer("/metrics", 200, body(name))]) is ENGINE


def test_other_engines_are_not_taken_for_it():
    for path in [*METRICS.glob("vllm-*.prom"), *METRICS.glob("sglang-*.prom")]:
        assert not ENGINE.recognises(Answer("/metrics", 200, path.read_bytes()))
