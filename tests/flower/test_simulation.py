"""The example's app on Flower's simulation engine."""

import tomllib
from importlib import import_module

import pytest

from conftest import METHODS, QUICK, ROOT, assert_replayed, finish

SUPERLINK = ("--simulation",)
OWN_APP = ROOT / "tests" / "flower" / "app"
ENGINE = "num-supernodes=3 client-resources-num-cpus=1 init-args-num-cpus=3"


OWN = {
    "optimised": "server_optimizer=momentum outgoing={name='clip',clip_norm=2.0} global_lr=0.5",
    "coded": "outgoing=curve global_lr=0.5",
    "cached": "buffer={name='cached-mean',cached_clients=3} correction=tangent embedding=point global_lr=0.5",
}


@pytest.mark.parametrize("name", OWN)
def test_parts_from_outside_the_package(federation, name, tmp_path, monkeypatch):
    """A server optimiser, a cache per client and outgoing parts: named in the settings of a run."""
    monkeypatch.syspath_prepend(str(OWN_APP))
    import_module("troubled.own_parts")  # the replay needs them too
    out = tmp_path / "run"
    config = QUICK | {"out": str(out), "method": "asyncbezier", "settings": OWN[name], "clients": 3}
    summary = finish(federation, federation.run("--federation-config", ENGINE, app=OWN_APP, **config), out)
    assert (summary["updates"], summary["failed"], summary["rejected"]) == (8, 0, 0)
    described = tomllib.loads((out / "config.toml").read_text())["method"]
    assert {"optimised": "server_optimizer", "coded": "outgoing", "cached": "buffer"}[name] in described
    assert_replayed(out)  # with these parts, as the configuration says


@pytest.mark.parametrize("method", METHODS)
def test_a_run_in_simulation(federation, method, tmp_path):
    out = tmp_path / "run"
    config = QUICK | {"out": str(out), "method": method, "settings": METHODS[method], "clients": 3}
    summary = finish(federation, federation.run("--federation-config", ENGINE, **config), out)
    assert (summary["method"], summary["updates"], summary["failed"]) == (method, 8, 0)
    assert_replayed(out)
