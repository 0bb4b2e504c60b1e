"""Shared by all tests."""

import os

from hypothesis import settings

# A test never asserts a time; in CI the examples are the same in every run.
settings.register_profile("crossover", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("crossover")

pytest_plugins = ["tests.api_server.fixtures", "tests.api_server.rig"]
