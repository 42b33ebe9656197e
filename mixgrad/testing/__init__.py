# SPDX-License-Identifier: Apache-2.0
"""Checks of gradients, for mixgrad's own tests and for yours: against differences, native against Python, leaks, planted faults."""

from __future__ import annotations

from mixgrad.testing.check import check_gradient
from mixgrad.testing.leaks import assert_no_leaks
from mixgrad.testing.mutation import Mutations, check_samples, mutate
from mixgrad.testing.parity import check_parity, sample_call

__all__ = [
    "Mutations",
    "assert_no_leaks",
    "check_gradient",
    "check_parity",
    "check_samples",
    "mutate",
    "sample_call",
]
