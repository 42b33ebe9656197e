# SPDX-License-Identifier: Apache-2.0
"""Moving gradients from Python to C++, one at a time, each move proved."""

from __future__ import annotations

from mixgrad.migrate.advice import Advice, Costs, Move, advise, measure_costs
from mixgrad.migrate.promotion import demotions, promotion_state, set_promotion, shadow_report
from mixgrad.migrate.settings import Settings, load_settings
from mixgrad.migrate.translation import Scaffold, scaffold, translate
from mixgrad.migrate.verify import Report, verify

__all__ = [
    "Advice",
    "Costs",
    "Move",
    "Report",
    "Scaffold",
    "Settings",
    "advise",
    "demotions",
    "load_settings",
    "measure_costs",
    "promotion_state",
    "scaffold",
    "set_promotion",
    "shadow_report",
    "translate",
    "verify",
]
