"""The Kubernetes edge: everything that talks to the API server and nothing that decides.

``login`` the way there; ``client`` one JSON client; ``watch``, ``pods`` what is watched; ``kinds``, ``workload``, ``scale``
the target; ``conflicts`` who else scales it; ``writer`` every write; ``events`` what is told; ``lease`` who may act;
``rbac`` the rights that all of it needs. Faults are the exceptions of `crossover.api.faults`.
"""
