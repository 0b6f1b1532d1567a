"""The paper's convergence theorem, made testable: known constants, measured runs, the bound, the slope."""

from asyncmanifold.theory.study import study_convergence

__all__ = ["study_convergence"]
