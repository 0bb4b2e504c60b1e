"""A Calibration on a real API server: scratch pods of emulated SGLang, measured, removed; and a fleet that goes by it."""

import copy

import pytest
from tests.api_server.kubelet import PRODUCT
from tests.controller.manifests import EAGLE, autoscaler, calibrated_autoscaler, calibration, deployment

pytestmark = pytest.mark.xdist_group("controller")

IMAGE = "crossover.dev/emulated-sglang:0.5.23"
FLAGS = "--startup-seconds 0.2 --drain-poll-seconds 0.2 --time-scale 4 --step-noise 0.01 --model 8b-a100"
LABEL = "crossover.dev/calibration"


def emulated(namespace, *, flags=FLAGS, replicas=0, **template):
    made = deployment(namespace, "llama", replicas=replicas, **template)
    (container,) = made["spec"]["template"]["spec"]["containers"]
    container["image"] = IMAGE
    container["args"] += ["--host=0.0.0.0", "--max-running-requests=64"]
    container["env"] = [{"name": "EMULATE_FLAGS", "value": flags}]
    return made


class Bench:
    """Calibrations of one namespace."""

    def __init__(self, space):
        self.space, self.plane, self.namespace = space, space.plane, space.namespace

    def path(self, name="cal"):
        return f"/apis/crossover.dev/v1alpha1/namespaces/{self.namespace}/calibrations/{name}"

    def status(self, name="cal"):
        return self.plane.get(self.path(name)).get("status", {})

    def condition(self, kind, name="cal"):
        return next((c for c in self.status(name).get("conditions", []) if c["type"] == kind), {})

    def wait(self, kind, status, reason=None, *, name="cal", seconds=60):
        def check():
            found = self.condition(kind, name)
            return found if found.get("status") == status and reason in (None, found.get("reason")) else None

        try:
            return self.plane.wait_for(check, f"{name}: {kind}={status} {reason}", seconds=seconds)
        except TimeoutError as error:
            raise TimeoutError(f"{error}\n{self.status(name)}\n{self.pods()}") from None

    def pods(self):
        items = self.plane.get(f"/api/v1/namespaces/{self.namespace}/pods")["items"]
        return [item for item in items if LABEL in item["metadata"].get("labels", {})]

    def wait_pods(self, count, seconds=20):
        self.plane.wait_for(lambda: len(self.pods()) == count, f"{count} scratch pods", seconds=seconds)
        return self.pods()

    def patch(self, spec, name="cal"):
        self.plane.request("PATCH", self.path(name), {"spec": spec}, content_type="application/merge-patch+json")

    def delete(self, name="cal"):
        self.plane.request("DELETE", self.path(name))


@pytest.fixture
def bench(space):
    return Bench(space)


def test_a_calibration_measures_on_pods_of_its_own_and_a_fleet_goes_by_it(bench, space):
    """No Service selects the scratch pods, the serving ones stay as they are, and nothing is left behind."""
    space.plane.apply(emulated(bench.namespace, replicas=1))
    space.plane.apply(calibration(bench.namespace))
    (pod,) = bench.wait_pods(1)
    assert "app" not in pod["metadata"]["labels"]
    assert pod["metadata"]["ownerReferences"][0]["kind"] == "Calibration"
    done = bench.wait("Ready", "True", "Complete", seconds=90)
    status = bench.status()
    bench.wait_pods(0)
    assert {(point["draftTokens"], point["off"]) for point in status["points"]} == {(3, False), (0, True)}
    assert len(status["points"]) == 4, status
    assert status["environment"]["engineVersion"] == "0.5.23"
    assert status["environment"]["image"] == IMAGE
    assert status["environment"]["imageDigest"].startswith("sha256:")
    assert status["environment"]["gpuProduct"] == PRODUCT
    assert status["environment"]["model"] == "/models/m"
    assert status["verdict"] in done["message"]
    assert status["schedule"]
    assert bench.condition("Stale")["status"] == "False"
    serving = space.deployment("llama")
    assert serving["metadata"]["generation"] == 1

    space.plane.apply(calibrated_autoscaler(bench.namespace))
    space.wait_condition("llama", "Calibrated", "True")
    space.wait(
        "llama", lambda s: "calibration cal" in s.get("crossover", {}).get("source", ""), "whose crossover it is"
    )

    changed = copy.deepcopy(space.deployment("llama"))
    spec = changed["spec"]["template"]["spec"]
    spec["containers"][0]["image"] = IMAGE.replace("0.5.23", "0.5.22")
    space.plane.apply(
        {key: changed[key] for key in ("apiVersion", "kind")}
        | {"metadata": {"name": "llama", "namespace": bench.namespace}, "spec": changed["spec"]}
    )
    stale = space.wait_condition("llama", "Calibrated", "False", "CalibrationStale")
    assert "the image" in stale["message"]


def test_points_given_by_hand_are_a_calibration(bench, space):
    points = [
        {"runningRequests": b, "draftTokens": k, "off": not k, "stepMilliseconds": step, "acceptanceLength": length}
        for b, k, step, length in ((1, 3, 9, 2.4), (64, 3, 40, 2.4), (1, 0, 7, 1), (64, 0, 12, 1))
    ]
    space.plane.apply(calibration(bench.namespace, targetRef=None, runningRequests=None, points=points))
    bench.wait("Ready", "True", "PointsGiven")
    assert "pays up to" in bench.status()["verdict"]
    assert bench.pods() == []


def test_suspend_and_delete_take_the_scratch_pods_away_and_keep_the_points(bench, space):
    space.plane.apply(emulated(bench.namespace))
    space.plane.apply(calibration(bench.namespace, runningRequests=[2, 4, 8, 16, 32]))
    space.plane.wait_for(lambda: bench.status().get("points"), "a first point", seconds=40)
    bench.patch({"suspend": True})
    bench.wait("Ready", "False", "Suspended")
    bench.wait_pods(0)
    kept = len(bench.status()["points"])
    assert kept >= 1
    bench.patch({"suspend": False})
    space.plane.wait_for(lambda: len(bench.status().get("points", [])) > kept, "more points", seconds=40)
    bench.delete()
    bench.wait_pods(0)


def test_scratch_pods_that_are_never_ready_are_given_up(bench, space):
    space.plane.apply(emulated(bench.namespace, flags="--startup-seconds 600"))
    space.plane.apply(calibration(bench.namespace, startupDeadlineSeconds=5))
    found = bench.wait("Failed", "True", "ScratchPodNeverReady")
    assert "spec.startupDeadlineSeconds" in found["message"]
    bench.wait_pods(0)


def test_out_of_accelerators_is_told_and_waited_for(bench, space):
    space.plane.apply(emulated(bench.namespace, nodeSelector={"nowhere": "true"}))
    space.plane.apply(calibration(bench.namespace))
    found = bench.wait("Running", "True", "ScratchPodNotScheduled")
    assert "no node has room" in found["message"]
    bench.delete()
    bench.wait_pods(0)


def test_out_of_quota_is_told_and_tried_again(bench, space):
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "none", "namespace": bench.namespace},
        "spec": {"hard": {"pods": "0"}},
    }
    space.plane.apply(quota)
    space.plane.apply(emulated(bench.namespace))
    found = None
    space.plane.wait_for(
        lambda: (
            space.plane.get(f"/api/v1/namespaces/{bench.namespace}/resourcequotas/none").get("status", {}).get("hard")
        ),
        "the quota in force",
    )
    space.plane.apply(calibration(bench.namespace))
    found = bench.wait("Ready", "False", "QuotaExceeded")
    assert "quota" in found["message"]
    assert bench.pods() == []


def test_an_engine_that_crashes_twice_is_given_up(bench, space):
    made = emulated(bench.namespace)
    made["spec"]["template"]["spec"]["containers"][0]["image"] = "crossover.dev/no-such-server:1"
    space.plane.apply(made)
    space.plane.apply(calibration(bench.namespace))
    found = bench.wait("Failed", "True", "ScratchPodCrashed")
    assert "2 times" in found["message"]
    bench.wait_pods(0)


def test_an_engine_that_crashes_in_mid_sweep_is_started_again(bench, space, rig):
    space.plane.apply(emulated(bench.namespace))
    space.plane.apply(calibration(bench.namespace, runningRequests=[2, 4, 8, 16], includeOff=True))
    space.plane.wait_for(lambda: bench.status().get("points"), "a first point", seconds=40)
    (pod,) = bench.pods()
    rig.kubelet.kill(bench.namespace, pod["metadata"]["name"])
    bench.wait("Ready", "True", "Complete", seconds=90)
    assert len(bench.status()["points"]) >= 7
    bench.wait_pods(0)


@pytest.mark.parametrize(
    ("flags", "spec", "reason"),
    [
        (FLAGS, {"model": "another-model"}, "WrongModel"),
        (FLAGS, {"apiKeySecretRef": {"name": "none", "key": "token"}}, "SecretUnreadable"),
        (FLAGS, {"workload": {"traceRef": {"name": "none", "key": "trace.csv"}}}, "TraceUnusable"),
        (FLAGS, {"targetRef": {"name": "nobody"}}, "TargetNotFound"),
        (FLAGS, {"draftTokens": [3], "includeOff": False}, "NothingToCompareWith"),
    ],
)
def test_what_the_user_has_to_mend_is_named_and_no_pod_is_left(bench, space, flags, spec, reason):
    space.plane.apply(emulated(bench.namespace, flags=flags))
    space.plane.apply(calibration(bench.namespace, **spec))
    found = bench.wait("Ready", "False", reason)
    assert len(found["message"]) > 20
    bench.wait_pods(0)


def test_a_server_with_a_key_is_measured_by_the_secret_that_the_operator_may_read(bench, space):
    made = emulated(bench.namespace)
    made["spec"]["template"]["spec"]["containers"][0]["args"].append("--api-key=open-sesame")
    space.plane.apply(made)
    meta = {"namespace": bench.namespace}
    key = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "key", **meta},
        "stringData": {"token": "open-sesame"},
    }
    space.plane.apply(key)
    wanted = calibration(bench.namespace, runningRequests=[2], apiKeySecretRef={"name": "key", "key": "token"})
    space.plane.apply(wanted)
    assert "resourceNames: [key]" in bench.wait("Failed", "True", "SecretUnreadable")["message"]
    rbac = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": "calibration-key", **meta}}
    rules = [{"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["key"], "verbs": ["get"]}]
    space.plane.apply({**rbac, "kind": "Role", "rules": rules})
    subject = {"kind": "ServiceAccount", "name": "crossover", "namespace": "crossover-system"}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "calibration-key"}
    space.plane.apply({**rbac, "kind": "RoleBinding", "roleRef": role, "subjects": [subject]})
    bench.delete()
    space.plane.apply(wanted)
    bench.wait("Ready", "True", "Complete", seconds=90)
    assert "open-sesame" not in str(bench.status())


def test_an_operator_that_is_killed_goes_on_where_it_was(bench, space, operator):
    space.plane.apply(emulated(bench.namespace))
    space.plane.apply(calibration(bench.namespace, runningRequests=[2, 4, 8]))
    space.plane.wait_for(lambda: bench.status().get("points"), "a first point", seconds=40)
    operator.kill()
    before = bench.status()["points"]
    operator.start()
    bench.wait("Ready", "True", "Complete", seconds=90)
    after = bench.status()["points"]
    assert after[: len(before)] == before
    assert len(after) == 6
    bench.wait_pods(0)


def test_metrics_off_leaves_the_clients_clock_and_says_so(bench, space):
    space.plane.apply(emulated(bench.namespace, flags=f"{FLAGS} --fault metrics-off"))
    space.plane.apply(calibration(bench.namespace, runningRequests=[2]))
    bench.wait("Ready", "True", "Complete", seconds=90)
    assert all("serves no metrics" in line for line in bench.status()["caveats"])


def test_a_reference_to_nothing_changes_nothing(bench, space):
    space.plane.apply(emulated(bench.namespace, replicas=1, speculation=EAGLE))
    fleet = autoscaler(bench.namespace, "llama")
    fleet["spec"]["speculation"]["calibrationRef"] = {"name": "nobody"}
    del fleet["spec"]["speculation"]["threshold"]
    space.plane.apply(fleet)
    space.wait_condition("llama", "Calibrated", "False", "CalibrationNotFound")
    assert space.replicas("llama") == 1
