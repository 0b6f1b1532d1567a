"""Shares of examples that clients claim: exact for honest ones, bounded for the others."""

from fractions import Fraction
from statistics import median_low

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncmanifold import InputError, Rejected
from asyncmanifold.session.claims import MOST_EXAMPLES, Claims


def of(claims, silent=0, limit=5.0):
    made = Claims(limit)
    for client, examples in enumerate(claims):
        made.join(client, examples)
    for client in range(silent):
        made.join(1000 + client)
    return made


def test_honest_claims_give_their_shares():
    claims = of([10, 20, 30])
    assert claims.share(2, 30) == (0.5, True)
    assert claims.share(0, 40) == (pytest.approx(40 / 90), True)
    assert claims.share(2, 30) == (0.5, True)  # asking keeps nothing


def test_the_first_reply_has_no_more_weight_than_another():
    assert of([], silent=4).share(1000, 10**12) == (0.25, True)


def test_a_boundless_claim_counts_as_a_multiple_of_the_median():
    """100, 100, 100 and 10¹²: the last counts as 500 of 800."""
    share, is_full = of([100, 100, 100]).share(7, 10**12)
    assert (share, is_full) == (0.625, False)
    claims = of([100, 100, 100, 10**12])
    assert claims.share(0, 100)[0] == pytest.approx(100 / 800)
    assert of([10**12]).share(5, 100)[0] == pytest.approx(100 / 600)  # the lower median of two


@pytest.mark.parametrize("examples", [0, -3, 2.5, 1e50, True, None, "9", MOST_EXAMPLES + 1])
def test_a_claim_that_is_no_count_is_rejected(examples):
    with pytest.raises(Rejected, match="num-examples is"):
        of([5]).share(0, examples)


def test_a_limit_below_one_is_refused():
    with pytest.raises(InputError, match="must be at least 1"):
        Claims(0.5)


@given(
    st.lists(st.one_of(st.none(), st.integers(1, 10**15)), max_size=9),
    st.integers(0, 9),
    st.integers(1, 10**15),
)
def test_shares_are_those_of_the_slow_definition(claims, client, examples):
    made = Claims(3.0)
    for number, claim in enumerate(claims):
        made.join(number, claim)
    everyone = {**dict(enumerate(claims)), client: examples}
    told = [claim for claim in everyone.values() if claim is not None]
    most = 3 * median_low(told)
    mean = Fraction(sum(min(claim, most) for claim in told), len(told))
    expected = Fraction(min(examples, most)) / (mean * len(everyone))
    share, is_full = made.share(client, examples)
    assert share == pytest.approx(float(expected))
    assert is_full == (examples <= most)
