"""Autoscaling policies that users would pick instead, by their published formulas, and Crossover's own."""
