# SPDX-License-Identifier: Apache-2.0
"""Fits the epidemic: Newton's method on two parameters."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from sir import loss

import mixgrad

mixgrad.migrate.load_settings(Path(__file__).parent / "pyproject.toml").apply()
gradient, hessian = mixgrad.grad(loss), mixgrad.hessian(loss)
parameters = np.log([1.5, 0.5])
for _ in range(8):
    slope = gradient(parameters)
    parameters = parameters - np.linalg.solve(hessian(parameters), slope)
beta, gamma = np.exp(parameters)
print(f"beta {beta:.4f}  gamma {gamma:.4f}  R0 {beta / gamma:.3f}  loss {loss(parameters):.3f}")
