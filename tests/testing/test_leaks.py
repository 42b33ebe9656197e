# SPDX-License-Identifier: Apache-2.0
"""assert_no_leaks finds what stays."""

from __future__ import annotations

import numpy as np
import pytest

import mixgrad
import mixgrad.numpy as mnp
from mixgrad import errors
from mixgrad.testing import assert_no_leaks


class TestAssertNoLeaks:
    def test_passes(self) -> None:
        with assert_no_leaks():
            mixgrad.grad(lambda x: mnp.sum(x * x))(np.ones((3, 2)))

    def test_finds_what_stays(self) -> None:
        kept = []
        with (
            pytest.raises(errors.CheckError, match=r"left behind .*1 arrays"),
            assert_no_leaks(),
            mixgrad.Tape() as tape,
        ):
            kept.append(tape.watch(1.0))
        kept.clear()

    def test_lets_an_exception_pass(self) -> None:
        with pytest.raises(ZeroDivisionError), assert_no_leaks():
            raise ZeroDivisionError
