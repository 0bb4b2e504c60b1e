"""`crossover calibrate` against emulated servers in processes of their own, and its options."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager

import pytest
from typer.testing import CliRunner

from crossover.calibrate.result import from_csv
from crossover.commands.calibrate import app
from crossover.decide.step_model import PRESETS, acceptance_length

ADDRESS = "127.0.0.1"
SPECULATION = [
    *("--speculative-algorithm", "EAGLE", "--speculative-draft-model-path", "d"),
    *("--speculative-num-steps", "7", "--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "8"),
]
ACCEPTANCE = 0.5


def free_port():
    with socket.socket() as probe:
        probe.bind((ADDRESS, 0))
        return probe.getsockname()[1]


@contextmanager
def servers(*commands, engine="sglang", scale=3):
    """Emulated servers, ready; stopped at the end."""
    ports = [free_port() for _ in commands]
    flags = ["--time-scale", str(scale), "--startup-seconds", "0.1", "--model", "70b-a100-tp4"]
    flags += ["--acceptance", str(ACCEPTANCE), "--acceptance-spread", "0"]
    emulator = [sys.executable, "-m", "crossover", "emulate", engine, "--address", ADDRESS, *flags]
    started = [
        subprocess.Popen(
            [*emulator, "--", *command, "--port", str(port)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for port, command in zip(ports, commands, strict=True)
    ]
    urls = [f"http://{ADDRESS}:{port}" for port in ports]
    try:
        for url in urls:
            wait_until_up(url)
        yield urls
    finally:
        for process in started:
            process.kill()
            process.wait()


def wait_until_up(url):
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            with urllib.request.urlopen(f"{url}/v1/models", timeout=2) as answer:
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(0.1)
    raise AssertionError(f"{url} did not come up")


def sglang(*more):
    return ["python3", "-m", "sglang.launch_server", "--model-path", "m", "--enable-metrics", *more]


def calibrate(*arguments, **more):
    command = [sys.executable, "-m", "crossover", "calibrate", *arguments]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=_interruptible, **more
    )


def _interruptible():
    """A shell starts background jobs with SIGINT ignored, and their children inherit it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def hidden_crossover(context):
    """Of drafts of 7 against off, by brute force."""
    model, running = PRESETS["70b-a100-tp4"], 1.0
    length = acceptance_length(ACCEPTANCE, 7)
    while True:
        kv = running * context
        if length * model.step_seconds(running, 0, kv, off=True) < model.step_seconds(running, 7, kv):
            return running
        running *= 1.001


def test_the_crossover_of_two_emulated_servers(tmp_path):
    """Through sockets and real time: a ladder of four loads is enough to be near the hidden crossover, the schedule is
    rendered for this engine, and the points are in the file."""
    out = tmp_path / "points.csv"
    options = ["--running", "8,20,32,48", "--input-tokens", "32", "--output-tokens", "96", "--json"]
    with servers(sglang(), sglang(*SPECULATION)) as urls:
        for _ in range(3):  # points that the generator was too busy for are left out: the same file is completed
            run = calibrate(*urls, *options, "--precision", "1", "--minutes", "0.5", "--out", str(out))
            stdout, stderr = run.communicate(timeout=120)
            if stdout and len(json.loads(stdout)["points"]) >= 7:
                break
    assert run.returncode == 0, stderr
    document = json.loads(stdout)
    assert {item["variant"] for item in document["servers"]} == {"off", "draft-7"}
    assert document["environment"] == {"engine": "SGLang", "version": "0.5.23", "model": "m"}
    (crossover,) = document["crossovers"]
    (crossing,) = crossover["crossings"]
    expected = hidden_crossover(document["context_tokens"])
    assert crossing["running_requests"] == pytest.approx(expected, rel=0.2)
    assert '"candidate_steps"' in document["rendered"]
    assert document["verdict"].startswith("Draft 7 pays up to ")
    assert len(from_csv(out.read_text())) == len(document["points"]) >= 7
    assert "points" in stderr, "a progress bar"


def test_interrupted_it_leaves_nothing_running_and_keeps_what_was_measured(tmp_path):
    out = tmp_path / "points.csv"
    with servers(sglang()) as urls:
        run = calibrate(
            *urls,
            "--running",
            "4,8,12,16",
            "--output-tokens",
            "32",
            "--minutes",
            "0.4",
            "--precision",
            "5",
            "--out",
            str(out),
        )
        end = time.monotonic() + 60
        while not out.exists() and time.monotonic() < end:
            time.sleep(0.05)
        os.kill(run.pid, signal.SIGINT)
        stdout, _ = run.communicate(timeout=60)
        assert run.returncode == 130
        assert "nothing to compare" in stdout
        measured = from_csv(out.read_text())
        assert measured
        with urllib.request.urlopen(f"{urls[0]}/emulator/truth", timeout=5) as answer:
            (rank,) = json.load(answer)["ranks"]
        assert rank["running"] + rank["waiting"] == 0


# -- options and servers that cannot be used ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["ftp://x"], "give http://HOST:PORT"),
        (["http://x/v1"], "without a path"),
        (["http://user:word@x"], "--token-file"),
        (["http://x", "--running", "64-1"], "--running '64-1'"),
        (["http://x", "--running", "1,a"], "--running '1,a'"),
        (["http://x", "--draft", "3", "--draft", "off"], "2 times for 1 URLs"),
        (["http://x", "--draft", "zero"], "--draft 'zero'"),
        (["http://x", "--engine", "triton"], "--engine 'triton'"),
        (["http://x", "--trace", "/nowhere.csv"], "nowhere.csv"),
    ],
)
def test_an_option_that_cannot_be_used_is_named_with_its_value_and_the_fix(arguments, says):
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 2
    assert says in done.output
    assert "word@" not in done.output


def test_a_server_that_is_not_there():
    done = CliRunner().invoke(app, [f"http://{ADDRESS}:{free_port()}"])
    assert done.exit_code == 2
    assert "does not answer" in done.output
