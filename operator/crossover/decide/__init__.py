"""The decision: a pure function from what is seen, wanted and remembered to what to do and why.

No I/O, no clock, no logging: the controller, the simulator, `crossover explain` and the tests call the same `plan`.
"""

from crossover.decide.memory import from_json, to_json, with_changes
from crossover.decide.plan import plan

__all__ = ["from_json", "plan", "to_json", "with_changes"]
