"""The test rig itself: what it stands in for must behave like the real thing."""

import json
import os
import signal
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.api_server import ControlPlane
from tests.api_server.addresses import AddressPool
from tests.api_server.containers import expand

pytestmark = pytest.mark.xdist_group("stand_in")

SERVER = """
import http.server, os, signal, sys, threading, time
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(os.environ["ANSWER"].encode())
    def log_message(self, *_): pass
server = http.server.ThreadingHTTPServer((sys.argv[1], 8000), Handler)
def drain(*_):
    print("draining", flush=True)
    threading.Thread(target=lambda: (time.sleep(float(sys.argv[2])), server.shutdown())).start()
signal.signal(signal.SIGTERM, drain)
server.serve_forever()
"""


def deployment(namespace, name, *, answer="one", replicas=2, drain="0", volumes=(), mounts=(), command=None, grace=20):
    container = {
        "name": "server",
        "image": "plain",
        "command": command or [sys.executable, "-c", SERVER, "$(POD_IP)", drain],
        "env": [
            {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "ANSWER", "value": answer},
        ],
        "readinessProbe": {"httpGet": {"path": "/", "port": 8000}, "periodSeconds": 1, "timeoutSeconds": 2},
        "volumeMounts": list(mounts),
    }
    labels = {"app": name}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "strategy": {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "containers": [container],
                    "volumes": list(volumes),
                    "terminationGracePeriodSeconds": grace,
                },
            },
        },
    }


def status(plane, namespace, name):
    return plane.get(f"/apis/apps/v1/namespaces/{namespace}/deployments/{name}")["status"]


def pods(plane, namespace):
    return plane.get(f"/api/v1/namespaces/{namespace}/pods")["items"]


def ready(plane, namespace, name, count=2):
    return plane.wait_for(lambda: status(plane, namespace, name).get("readyReplicas") == count, f"{count} ready pods")


def ask(address):
    with urllib.request.urlopen(f"http://{address}:8000/", timeout=5) as answer:
        return answer.read().decode()


def test_a_deployment_becomes_ready_pods_at_their_own_addresses(plane, kubelet, namespace):
    plane.apply(deployment(namespace, "web"))
    ready(plane, namespace, "web")
    addresses = [pod["status"]["podIP"] for pod in pods(plane, namespace)]
    assert len(set(addresses)) == 2
    assert [ask(address) for address in addresses] == ["one", "one"]


def test_a_rolling_update_replaces_the_pods_without_a_gap(plane, kubelet, namespace):
    plane.apply(deployment(namespace, "web"))
    ready(plane, namespace, "web")
    plane.apply(deployment(namespace, "web", answer="two"))
    lowest = 2

    def updated():
        nonlocal lowest
        now = status(plane, namespace, "web")
        lowest = min(lowest, now.get("readyReplicas", 0))
        return now.get("updatedReplicas") == 2 and now.get("replicas") == 2 and now.get("readyReplicas") == 2

    plane.wait_for(updated, "the rolling update")
    plane.wait_for(lambda: len(pods(plane, namespace)) == 2, "the old pods' end")
    assert {ask(pod["status"]["podIP"]) for pod in pods(plane, namespace)} == {"two"}
    assert lowest == 2


def test_a_deleted_pod_is_asked_to_drain_first(plane, kubelet, namespace):
    plane.apply(deployment(namespace, "web", replicas=1, drain="1.5"))
    ready(plane, namespace, "web", 1)
    (pod,) = pods(plane, namespace)
    plane.request("DELETE", f"/api/v1/namespaces/{namespace}/pods/{pod['metadata']['name']}")
    plane.wait_for(lambda: "draining" in kubelet.container_log(namespace, pod["metadata"]["name"]), "SIGTERM")
    assert ask(pod["status"]["podIP"]) == "one"
    gone = f"/api/v1/namespaces/{namespace}/pods/{pod['metadata']['name']}"

    def removed():
        try:
            plane.get(gone)
        except urllib.error.HTTPError as error:
            return error.code == 404
        return False

    plane.wait_for(removed, "the pod's end")


def test_a_pod_that_does_not_stop_is_killed_after_its_grace_period(plane, kubelet, namespace):
    plane.apply(deployment(namespace, "web", replicas=1, drain="600", grace=1))
    ready(plane, namespace, "web", 1)
    plane.kubectl("scale", "-n", namespace, "deployment/web", "--replicas=0")
    plane.wait_for(lambda: not pods(plane, namespace), "the kill", seconds=20)


def test_a_crash_restarts_the_container_and_is_counted(plane, kubelet, namespace):
    plane.apply(deployment(namespace, "web", replicas=1))
    ready(plane, namespace, "web", 1)
    (pod,) = pods(plane, namespace)
    kubelet.kill(namespace, pod["metadata"]["name"])

    def restarted():
        (state,) = pods(plane, namespace)[0]["status"]["containerStatuses"]
        return state["restartCount"] == 1 and state["ready"]

    plane.wait_for(restarted, "the restart")


def test_a_missing_config_map_holds_the_pod_and_its_file_arrives(plane, kubelet, namespace):
    volume = {"name": "config", "configMap": {"name": "late"}}
    mount = {"name": "config", "mountPath": "/etc/late"}
    plane.apply(deployment(namespace, "web", replicas=1, volumes=[volume], mounts=[mount]))
    plane.wait_for(lambda: len(pods(plane, namespace)) == 1, "the pod")
    plane.wait_for(lambda: pods(plane, namespace)[0]["status"].get("containerStatuses"), "ContainerCreating")
    (state,) = pods(plane, namespace)[0]["status"]["containerStatuses"]
    assert state["state"]["waiting"]["reason"] == "ContainerCreating"
    plane.apply(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "late", "namespace": namespace},
            "data": {"a.json": "{}"},
        }
    )
    ready(plane, namespace, "web", 1)
    (pod,) = pods(plane, namespace)
    root = kubelet.folder / f"{namespace}_{pod['metadata']['name']}" / "root"
    assert json.loads((root / "etc/late/a.json").read_text()) == {}


def test_a_service_account_has_only_its_own_rights(plane, namespace):
    path = plane.service_account_kubeconfig(namespace, "default")
    said = plane.kubectl(f"--kubeconfig={path}", "auth", "can-i", "list", "pods", "-n", namespace, check=False)
    assert said.startswith("no")


def test_two_control_planes_run_side_by_side(plane):
    with ControlPlane(controllers=False) as other:
        assert other.url != plane.url
        assert other.get("/version")["gitVersion"] == plane.get("/version")["gitVersion"] == "v1.37.2"
        folder = other.folder
    assert not folder.exists()


def test_the_api_server_comes_back_on_the_same_port(namespace):
    with ControlPlane(controllers=False) as own:
        own.request("POST", "/api/v1/namespaces", {"metadata": {"name": "kept"}})
        own.restart_api_server()
        assert own.get("/api/v1/namespaces/kept")["metadata"]["name"] == "kept"


def test_two_kubelets_never_share_addresses():
    first, second = AddressPool(), AddressPool()
    try:
        assert first.take().rsplit(".", 2)[0] != second.take().rsplit(".", 2)[0]
    finally:
        first.close()
        second.close()


@pytest.mark.parametrize(
    ("text", "expanded"),
    [("$(A)", "1"), ("$(B)", "$(B)"), ("$$(A)", "$(A)"), ("--x=$(A)$(A)", "--x=11"), ("$A", "$A")],
)
def test_variables_expand_as_the_kubelet_does(text, expanded):
    assert expand(text, {"A": "1"}) == expanded


def test_no_child_outlives_its_parent(tmp_path):
    child = (
        "import sys, time; sys.path.insert(0, '.');"
        "from pathlib import Path; from tests.api_server.processes import Process;"
        f"p = Process('x', ['sleep', '60'], Path({str(tmp_path / 'log')!r})); print(p.pid, flush=True); time.sleep(60)"
    )
    import subprocess

    parent = subprocess.Popen([sys.executable, "-c", child], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    for _ in range(1000):
        try:
            if Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z":
                return
        except FileNotFoundError:
            return
        os.sched_yield()
    pytest.fail("the child is still there")
