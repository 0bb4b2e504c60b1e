"""A real Kubernetes control plane for tests, demo and benchmarks.

    with ControlPlane() as plane:
        plane.apply(manifest)
        plane.kubectl("get", "pods")
        kubeconfig = plane.service_account_kubeconfig("default", "crossover")

etcd, kube-apiserver (RBAC on) and kube-controller-manager as ordinary processes on free ports; several side by side.
`tests.api_server.kubelet` starts pods.
"""

from tests.api_server.control_plane import ControlPlane

__all__ = ["ControlPlane"]
