"""`python -m bench`: every measurement, one after the other."""

from __future__ import annotations

import importlib
import pkgutil
import sys

import bench


def main() -> None:
    for module in sorted(module.name for module in pkgutil.iter_modules(bench.__path__)):
        if module.startswith("_") or module == "machine":
            continue
        print(f"\n== {module}", flush=True)
        sys.argv = [module]
        importlib.import_module(f"bench.{module}").main()


if __name__ == "__main__":
    main()
