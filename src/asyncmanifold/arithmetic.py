"""Which arithmetic makes a run: the processor's own, or one that is the same on every x86-64 with AVX2.

ATen, MKL, oneDNN, NumPy and OpenBLAS each choose their kernels by processor, and a difference in the last bit
grows to several points of accuracy in some hundred updates. In portable arithmetic all of them use AVX2 forms
that every such processor computes alike (docs/portability.md). They read their settings when they are loaded,
so the choice must come first: this module imports neither torch nor NumPy.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from ctypes import CDLL
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from asyncmanifold.errors import InputError

PORTABLE = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_CBWR": "COMPATIBLE",  # "AVX2" silently means "choose" on a processor that is not Intel's
    "OPENBLAS_CORETYPE": "Haswell",
    "NPY_DISABLE_CPU_FEATURES": "AVX512F AVX512CD AVX512_SKX X86_V4 AVX512_ICL AVX512_SPR",
    "OMP_NUM_THREADS": "1",
}
"""The environment of a process that computes portably; it must be set before torch and NumPy are loaded."""
KINDS = "'native' or 'portable'"

_chosen = False  # whether this process set the environment before torch and NumPy were loaded


def use_portable_arithmetic() -> None:
    """Make this process, and every process that it starts, compute the same bits on every x86-64 with AVX2.

    Call it first, before torch or NumPy are imported: they read their settings when they are loaded. Runs
    with ``Run(arithmetic="portable")`` check that it was called. A second call changes nothing.

    Arguments: none. The command line calls it for ``--portable`` and ``arithmetic = "portable"``.

    >>> from asyncmanifold import use_portable_arithmetic
    >>> use_portable_arithmetic()  # doctest: +SKIP
    >>> import torch
    """
    global _chosen
    if is_portable():
        return
    if loaded := [name for name in ("torch", "numpy") if name in sys.modules]:
        raise InputError(
            f"portable arithmetic must be chosen before {loaded[0]} is loaded: call "
            "asyncmanifold.use_portable_arithmetic() first, or set its environment (docs/portability.md)"
        )
    os.environ.update(PORTABLE)
    _chosen = True


def is_portable() -> bool:
    """Return whether this process computes portably."""
    return _chosen or all(_first_environment().get(name) == value for name, value in PORTABLE.items())


def require_arithmetic(kind: str) -> None:
    """Raise ``InputError`` if a run in this kind of arithmetic cannot be made in this process."""
    if kind == "portable":
        use_portable_arithmetic()


def describe_arithmetic() -> dict[str, str]:
    """Return what decides the last bit of a result here."""
    import torch

    return {
        "kind": "portable" if is_portable() else "native",
        "products": "torch's" if compiled_products() is None else "compiled",
        "cpu": cpu_name(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "python": platform.python_version(),
        **{package: version(package) for package in ("numpy", "torch")},
    }


def explain_difference(made: Mapping[str, str], here: Mapping[str, str] | None = None) -> str | None:
    """Return one line if results made with one arithmetic may differ here in their last digits, else None.

    >>> made = {"kind": "native", "cpu": "Xeon", "capability": "AVX512", "torch": "2.13.0"}
    >>> explain_difference(made, {**made, "cpu": "EPYC", "capability": "AVX2"})
    'made on Xeon (AVX512), this is EPYC (AVX2): the last digits may differ (not so in portable arithmetic)'
    """
    here = describe_arithmetic() if here is None else here
    if made.get("kind") != here.get("kind"):
        return (
            f"made in {made.get('kind')} arithmetic, this is {here.get('kind')}: the last digits may differ"
        )
    for package in ("torch", "numpy"):
        if made.get(package) != here.get(package):
            return (
                f"made with {package} {made.get(package)}, this is {here.get(package)}: "
                "the last digits may differ"
            )
    products = [facts.get("products", "torch's") for facts in (made, here)]
    if products[0] != products[1]:
        return (
            f"made with {products[0]} inner products, here they are {products[1]}: the last digits of models "
            "with more than 131,072 parameters may differ"
        )
    there, now = (f"{facts.get('cpu')} ({facts.get('capability')})" for facts in (made, here))
    if made.get("kind") == "portable" or there == now:
        return None
    return f"made on {there}, this is {now}: the last digits may differ (not so in portable arithmetic)"


@cache
def compiled_products() -> CDLL | None:
    """Return the library made of ``server/inner_products.c``, or None.

    There is none where the installation found no C compiler. In portable arithmetic it is left alone, so that
    a run has the same bits with and without it.
    """
    spec = find_spec("asyncmanifold._inner_products")
    if spec is None or spec.origin is None or is_portable():
        return None
    try:
        return CDLL(spec.origin)
    except OSError:  # made for another machine
        return None


def cpu_name() -> str:
    """Return the processor's name."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


@cache
def _first_environment() -> dict[str, str]:
    """Return the environment that this process was started with, whatever has been changed since."""
    try:
        entries = Path("/proc/self/environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return {}
    return {name: value for name, _, value in (entry.partition("=") for entry in entries)}
