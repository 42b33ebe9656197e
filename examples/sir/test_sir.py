# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
from sir import infections, loss

from mixgrad.testing import check_gradient, check_samples


def test_infections() -> None:
    check_samples(infections)


def test_loss() -> None:
    check_gradient(loss, np.log([1.5, 0.5]))
