# SPDX-License-Identifier: Apache-2.0
"""Looking inside: compare, bisect, profile, watch for nan, account for memory, and look at a tape."""

from __future__ import annotations

from mixgrad.debug.bisection import Blame, bisect
from mixgrad.debug.comparison import Comparison, Mismatch, compare_gradients
from mixgrad.debug.counts import check_mutation, counters, reset_counts, warn_fallbacks
from mixgrad.debug.finite import check_finite
from mixgrad.debug.hooks import gradient_hook, on_gradient
from mixgrad.debug.memory import live_buffers, track_buffers
from mixgrad.debug.missing import Missing, missing_gradients
from mixgrad.debug.profiling import Profile, profile
from mixgrad.debug.saved_calls import Replay, replay

__all__ = [
    "Blame",
    "Comparison",
    "Mismatch",
    "Missing",
    "Profile",
    "Replay",
    "bisect",
    "check_finite",
    "check_mutation",
    "compare_gradients",
    "counters",
    "gradient_hook",
    "live_buffers",
    "missing_gradients",
    "on_gradient",
    "profile",
    "replay",
    "reset_counts",
    "track_buffers",
    "warn_fallbacks",
]
