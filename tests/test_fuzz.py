"""A few hundred of ``make fuzz``'s replies."""

import pytest

from fuzz import TARGETS


@pytest.mark.parametrize("target", TARGETS)
def test_mutated_replies_are_refused_or_harmless(target):
    outcomes = TARGETS[target](300, 1)
    assert sum(outcomes.values()) == 300
    assert outcomes["rejected"] > 100
