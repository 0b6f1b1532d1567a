"""The example's app on Flower's simulation engine."""

import pytest

from conftest import METHODS, QUICK, assert_replayed, finish

SUPERLINK = ("--simulation",)
ENGINE = "num-supernodes=3 client-resources-num-cpus=1 init-args-num-cpus=3"


@pytest.mark.parametrize("method", METHODS)
def test_a_run_in_simulation(federation, method, tmp_path):
    out = tmp_path / "run"
    config = QUICK | {"out": str(out), "method": method, "settings": METHODS[method], "clients": 3}
    summary = finish(federation, federation.run("--federation-config", ENGINE, **config), out)
    assert (summary["method"], summary["updates"], summary["failed"]) == (method, 8, 0)
    assert_replayed(out)
