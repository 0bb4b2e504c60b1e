"""`make demo` as a scenario: exit status 0 only if the whole story is right."""

import subprocess
import sys


def test_the_demo_tells_the_right_story():
    done = subprocess.run([sys.executable, "-m", "e2e.demo"], capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 0, done.stdout[-4000:]
    assert "The story is right." in done.stdout
