"""How near the adaptive sweep comes to a hidden crossover, over many draws of noise.

    PYTHONPATH=operator:. python -m bench.calibrate_sweep [--draws 10] [--noise 0.005]

One line a scene: points spent, crossings missed or invented, error of those found. No servers: the step-time model with
log-normal noise on every step time. The scenes are those of tests/calibrate/sweeps.py.
"""

from __future__ import annotations

import argparse
import statistics

from tests.calibrate.sweeps import HARD, NONE, SCENES, Scene, errors, sweep


def one(name: str, scene: Scene, draws: int, noise: float) -> None:
    points, found, wrong = [], [], 0
    for seed in range(1, draws + 1):
        outcome = sweep(scene, noise=noise, seed=seed)
        points.append(len(outcome.points))
        try:
            found += errors(scene, outcome)
        except AssertionError:
            wrong += 1
    found.sort()
    told = "-"
    if found:
        within = sum(error <= 0.05 for error in found) / len(found)
        most = found[int(0.95 * len(found))]
        told = f"mean {statistics.fmean(found):.1%}, 95 % {most:.1%}, worst {found[-1]:.1%}, within 5 %: {within:.0%}"
    print(f"{name:42} points {statistics.fmean(points):4.1f}  wrong number {wrong}/{draws}  error {told}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--noise", type=float, default=0.005, help="standard error of a step time, as a share")
    given = parser.parse_args()
    print(f"noise {given.noise:.1%}, {given.draws} draws, at most 24 points")
    for name, scene in {**SCENES, **HARD, **{name: scene for name, (scene, _) in NONE.items()}}.items():
        one(name, scene, given.draws, given.noise)


if __name__ == "__main__":
    main()
