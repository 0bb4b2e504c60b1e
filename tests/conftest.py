"""Shared by all tests."""

pytest_plugins = ["tests.api_server.fixtures", "tests.api_server.rig"]
