"""`python -m crossover`, the same as the `crossover` command."""

from crossover.cli import main

main()
