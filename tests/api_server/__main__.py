"""`python -m tests.api_server`: a control plane and its kubelet by hand, until Ctrl-C."""

from __future__ import annotations

import signal

from tests.api_server import ControlPlane
from tests.api_server.kubelet import Kubelet


def main() -> None:
    with ControlPlane() as plane, Kubelet(plane):
        print(f"ready after {plane.start_seconds:.1f} s\nexport KUBECONFIG={plane.kubeconfig}", flush=True)
        print(f"kubectl and helm: {plane.assets}\nCtrl-C ends it", flush=True)
        signal.sigwait({signal.SIGINT, signal.SIGTERM})


if __name__ == "__main__":
    main()
