"""The paper's convergence theorem, made testable: known constants, measured runs, the bound, the slope."""

from asyncmanifold.theory.study import TheoryError, study_convergence

__all__ = ["TheoryError", "study_convergence"]
