"""Every container gets its share of GPU time within two points, on a clock that only the programs move."""

import sys

import pytest
from node import BUILD

sys.path.append(str(BUILD.parent / "bench"))
import virtual_shares


@pytest.mark.parametrize("name", [case[0] for case in virtual_shares.CASES])
def test_the_pacers_own_error_is_at_most_two_points(name: str) -> None:
    (row,) = virtual_shares.rows(name, windows=2)
    assert row["value"] <= 2, row["context"]
