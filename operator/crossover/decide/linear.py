"""The little linear algebra a fit needs, in plain Python: the operator's image has no numpy and a decision no time for
it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations

Matrix = list[list[float]]


def cholesky(matrix: Sequence[Sequence[float]]) -> Matrix | None:
    """Lower triangle L with L L' = matrix; None when it is not positive definite."""
    size = len(matrix)
    lower: Matrix = [[0.0] * size for _ in range(size)]
    for row in range(size):
        for column in range(row + 1):
            rest = matrix[row][column] - sum(lower[row][k] * lower[column][k] for k in range(column))
            if row == column:
                if rest <= 0:
                    return None
                lower[row][row] = math.sqrt(rest)
            else:
                lower[row][column] = rest / lower[column][column]
    return lower


def forward(lower: Matrix, values: Sequence[float]) -> list[float]:
    """x with L x = values."""
    solved: list[float] = []
    for row, value in enumerate(values):
        solved.append((value - sum(lower[row][k] * solved[k] for k in range(row))) / lower[row][row])
    return solved


def backward(lower: Matrix, values: Sequence[float]) -> list[float]:
    """x with L' x = values."""
    size = len(values)
    solved = [0.0] * size
    for row in reversed(range(size)):
        rest = values[row] - sum(lower[k][row] * solved[k] for k in range(row + 1, size))
        solved[row] = rest / lower[row][row]
    return solved


def non_negative(columns: Sequence[Sequence[float]], target: Sequence[float]) -> tuple[list[float], float]:
    """Least squares with coefficients >= 0: (coefficients, sum of squared residuals).

    Few columns (at most six here), so every subset is solved and the best one whose coefficients are all positive wins:
    exact, and short.
    """
    count = len(columns)
    gram = [[_dot(a, b) for b in columns] for a in columns]
    right = [_dot(column, target) for column in columns]
    square = _dot(target, target)
    best, best_rest = [0.0] * count, square
    for size in range(1, count + 1):
        for chosen in combinations(range(count), size):
            lower = cholesky([[gram[i][j] + (1e-10 * gram[i][i] if i == j else 0.0) for j in chosen] for i in chosen])
            if lower is None:
                continue
            solution = backward(lower, forward(lower, [right[i] for i in chosen]))
            if min(solution) < 0:
                continue
            rest = square - sum(value * right[i] for value, i in zip(solution, chosen, strict=True))
            if rest < best_rest - 1e-12 * square:
                best, best_rest = [0.0] * count, rest
                for value, i in zip(solution, chosen, strict=True):
                    best[i] = value
    return best, max(0.0, best_rest)


def _dot(a: Sequence[float], b: Sequence[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))
