"""The same bits as other processors: a process runs as each of them, emulated by ``qemu-x86_64``."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from functools import cache
from pathlib import Path

import pytest

from asyncmanifold.arithmetic import PORTABLE

HERE = Path(__file__).parent
FOLDERS = [*map(str, (HERE.parents[1] / "src", HERE.parent)), sysconfig.get_path("purelib")]
PLAIN = {name: value for name, value in os.environ.items() if name not in PORTABLE}
PROCESSORS = ("EPYC", "Haswell-v4", "EPYC-Milan", "Skylake-Server")
"""Models of both makers; the emulator itself has no AVX-512, so a model's is left out."""
LIMITS = {
    "MKL up to SSE4.2": {"MKL_ENABLE_INSTRUCTIONS": "SSE4_2"},
    "C library without AVX2": {
        "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-FMA,-AVX512F,-AVX512VL,-AVX512BW",
    },
}
DEPENDENT = {
    *(f"{name}.{kind}" for name in ("sqrt", "asin", "acos", "atan") for kind in ("float32", "float64")),
    *("cholesky.float32", "adam"),
}
"""Operations that no setting makes the same everywhere: the library's own runs must not use them."""


def bits(command: list[str], what: str, **environment: str) -> dict[str, str]:
    whole = [*command, str(HERE / "bits.py"), what]
    environment = PLAIN | {"PYTHONPATH": ":".join(FOLDERS)} | environment
    made = subprocess.run(whole, env=environment, capture_output=True, text=True, timeout=7200)
    assert made.returncode == 0, made.stderr[-2000:]
    found: dict[str, str] = json.loads(made.stdout)
    return found


def emulated(processor: str) -> list[str]:
    if (emulator := shutil.which("qemu-x86_64")) is None:
        pytest.fail("qemu-x86_64 is needed: apt-get install qemu-user")
    return [emulator, "-cpu", processor, os.path.realpath(sys.executable)]


@cache
def here(what: str) -> dict[str, str]:
    return bits([sys.executable], what, **PORTABLE)


def differences(one: dict[str, str], other: dict[str, str]) -> set[str]:
    assert set(one) == set(other)
    return {name for name in one if one[name] != other[name]}


@pytest.mark.parametrize("processor", PROCESSORS)
def test_another_processor_makes_the_same_runs(processor):
    assert differences(here("runs"), bits(emulated(processor), "runs", **PORTABLE)) == set()


@pytest.mark.parametrize("processor", PROCESSORS[:2])
def test_another_processor_differs_in_no_other_operation(processor):
    there = bits(emulated(processor), "operations", **PORTABLE)
    assert differences(here("operations"), there) <= DEPENDENT


@pytest.mark.parametrize("limit", LIMITS)
def test_other_limits_on_this_processor_make_the_same_runs(limit):
    assert differences(here("runs"), bits([sys.executable], "runs", **PORTABLE, **LIMITS[limit])) == set()


def test_without_portable_arithmetic_the_runs_do_differ():
    """So the tests above can fail: with ATen's plain kernels, as on a processor without AVX2."""
    other = PORTABLE | {"ATEN_CPU_CAPABILITY": "default"}
    assert differences(here("runs"), bits([sys.executable], "runs", **other))
