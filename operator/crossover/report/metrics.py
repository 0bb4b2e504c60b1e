"""The operator's own /metrics: what it sees, wants and does, per fleet; every tick, unlike status and Events."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from crossover.api.fleet import PodPhase
from crossover.report.events import WARNED
from crossover.report.facts import TickFacts

LABELS = ("namespace", "name")


class OperatorMetrics:
    """All series of one operator process, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._gauges = {
            name: Gauge(f"crossover_{name}", text, LABELS, registry=self.registry)
            for name, text in {
                "running_requests": "Running requests of the fleet, over pods with a fresh reading.",
                "waiting_requests": "Waiting requests of the fleet, over pods with a fresh reading.",
                "output_tokens_per_second": "Output tokens per second of the fleet, over pods with a fresh reading.",
                "draft_tokens": "Draft length in force (0 = off); absent when unknown or mixed.",
                "acceptance_length": "Tokens per request and step, mean over pods with a fresh reading.",
                "desired_replicas": "Replicas the scale target asks for.",
                "recommended_replicas": "Replicas recommended before stabilization, policies and bounds.",
                "decided_replicas": "Replicas decided; absent when replicas are left alone.",
                "pods_unknown": "Ready pods without a fresh reading.",
            }.items()
        }
        self._pods = Gauge("crossover_pods", "Pods of the fleet by phase.", (*LABELS, "phase"), registry=self.registry)
        self._decisions = Counter(
            "crossover_decisions_total",
            "Decisions by actuator and reason.",
            (*LABELS, "actuator", "reason"),
            registry=self.registry,
        )
        self._changes = Counter(
            "crossover_changes_total", "Changes applied, by kind.", (*LABELS, "kind"), registry=self.registry
        )
        self._problems = Gauge(
            "crossover_condition_false", "1 while a condition is False.", (*LABELS, "condition"), registry=self.registry
        )
        self._notices = Gauge(
            "crossover_notice",
            "1 while a decision carries this notice: a threshold that latches or cycles, a calibration that drifted.",
            (*LABELS, "reason"),
            registry=self.registry,
        )
        self._scrape_faults = Counter(
            "crossover_scrape_faults_total", "Failed scrapes by fault.", (*LABELS, "fault"), registry=self.registry
        )
        self.tick_seconds = Histogram(
            "crossover_tick_seconds",
            "Wall time of one fleet's tick, scrape included.",
            LABELS,
            registry=self.registry,
            buckets=(0.01, 0.03, 0.1, 0.3, 1, 3, 10),
        )
        self.api_writes = Counter(
            "crossover_api_writes_total", "Writes to the Kubernetes API, by what.", ("what",), registry=self.registry
        )
        self.tick_failures = Counter(
            "crossover_tick_failures_total", "Ticks that ended in an unexpected error.", LABELS, registry=self.registry
        )

    def record(self, namespace: str, name: str, facts: TickFacts) -> None:
        """One tick of one fleet."""
        labels = (namespace, name)
        if facts.snapshot is not None:
            for phase in PodPhase:
                self._pods.labels(*labels, str(phase)).set(len(facts.snapshot.in_phase(phase)))
            self._set("pods_unknown", labels, len(facts.snapshot.unknown))
            self._set("desired_replicas", labels, facts.snapshot.desired_replicas)
            self._load(facts, labels)
            for pod in facts.snapshot.pods:
                if pod.fault is not None:
                    self._scrape_faults.labels(*labels, str(pod.fault)).inc()
        if facts.decision is not None:
            decision = facts.decision
            self._decisions.labels(*labels, "replicas", str(decision.replicas.reason)).inc()
            self._decisions.labels(*labels, "draft", str(decision.draft.reason)).inc()
            self._set("draft_tokens", labels, decision.draft.current)
            self._set("recommended_replicas", labels, decision.replicas.recommended)
            self._set("decided_replicas", labels, decision.replicas.target)
            for reason in WARNED:
                self._notices.labels(*labels, str(reason)).set(1 if facts.notice(reason) is not None else 0)
        for done in facts.done:
            self._changes.labels(*labels, done.kind).inc()

    def conditions(self, namespace: str, name: str, conditions: list[dict[str, str]]) -> None:
        for condition in conditions:
            value = 1 if condition["status"] == "False" else 0
            self._problems.labels(namespace, name, condition["type"]).set(value)

    def forget(self, namespace: str, name: str) -> None:
        """Drop a deleted fleet's gauges, so that nothing speaks for it any more."""
        for gauge in self._gauges.values():
            _remove(gauge, namespace, name)
        for family in (self._pods, self._problems, self._notices):
            family.remove_by_labels({"namespace": namespace, "name": name})

    def _load(self, facts: TickFacts, labels: tuple[str, str]) -> None:
        assert facts.snapshot is not None
        known = facts.snapshot.known
        schedulers = [scheduler for pod in known if pod.reading for scheduler in pod.reading.schedulers]
        self._set("running_requests", labels, _total([s.running_requests for s in schedulers]))
        self._set("waiting_requests", labels, _total([s.waiting_requests for s in schedulers]))
        self._set("output_tokens_per_second", labels, _total([pod.output_tokens_per_second for pod in known]))
        lengths = [pod.acceptance_length for pod in known if pod.acceptance_length is not None]
        self._set("acceptance_length", labels, sum(lengths) / len(lengths) if lengths else None)

    def _set(self, name: str, labels: tuple[str, str], value: float | None) -> None:
        """Unknown is no sample, never 0."""
        if value is None:
            _remove(self._gauges[name], *labels)
        else:
            self._gauges[name].labels(*labels).set(value)


def _remove(gauge: Gauge, *labels: str) -> None:
    try:
        gauge.remove(*labels)
    except KeyError:
        return


def _total(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
