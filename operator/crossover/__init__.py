"""Crossover: draft length and replicas of LLM fleets, decided together from what is measured."""

__version__ = "0.1.0"
