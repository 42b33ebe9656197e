# SPDX-License-Identifier: Apache-2.0
"""An epidemic in a boarding school, 1978: boys in bed each day, and a model of susceptible, infected and recovered ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import mixgrad
import mixgrad.numpy as mnp
from mixgrad import Sample

# Influenza in a boarding school, BMJ of 4 March 1978.
IN_BED = np.array([3, 8, 28, 75, 221, 291, 255, 235, 190, 125, 70, 28, 12, 5], float)
BOYS = 763.0
STEPS_A_DAY = 24


@mixgrad.register_op("infections", broadcasts=True, samples=lambda: [Sample(np.array([0.9, 0.5]), 0.2, 1.7)])
def infections(susceptible: Any, infected: Any, beta: Any) -> Any:
    """New infections in a step: the chance to meet somebody who is ill saturates."""
    return susceptible * -np.expm1(-beta * infected / STEPS_A_DAY)


@mixgrad.register_gradient("infections")
def infections_gradient(op: Any, g: Any) -> Any:
    susceptible, infected, beta = op.inputs
    rate = beta / STEPS_A_DAY
    escaping = mnp.exp(-rate * infected)
    slope = g * susceptible * escaping
    return g * (1 - escaping), slope * rate, slope * infected / STEPS_A_DAY


def epidemic(beta: Any, gamma: Any) -> Any:
    """The share of boys in bed, for each day."""
    susceptible, infected = 1 - IN_BED[0] / BOYS, IN_BED[0] / BOYS
    days = [infected]
    for _ in range(len(IN_BED) - 1):
        for _ in range(STEPS_A_DAY):
            new = infections(susceptible, infected, beta)
            susceptible = susceptible - new
            infected = infected + new - gamma / STEPS_A_DAY * infected
        days.append(infected)
    return mnp.stack([day + 0 * beta for day in days])


def loss(parameters: Any) -> Any:
    """Of a Poisson distribution, of the logarithms of beta and gamma."""
    beta, gamma = mnp.exp(parameters)
    expected = BOYS * epidemic(beta, gamma)
    return mnp.sum(expected - IN_BED * mnp.log(expected))


# Gradients in C++, as far as there are any: compiled when they are new, then taken from the cache.
for source in sorted((Path(__file__).parent / "native").glob("*.cpp")):
    mixgrad.cpp.load(source)
