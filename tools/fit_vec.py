#!/usr/bin/env python3
"""Compute the polynomials of src/kernels/cpu/isa/vec.h by Chebyshev fits; prints coefficients, lowest first, and the largest error."""
from math import cos, pi, sqrt

import mpmath as mp
import numpy as np
from numpy.polynomial import chebyshev, polynomial


def fit(name, f, low, high, degree):
    n = 400
    t = [cos(pi * (i + 0.5) / n) for i in range(n)]
    y = [float(f(mp.mpf((low + high) / 2 + (high - low) / 2 * u))) for u in t]
    in_t = chebyshev.cheb2poly(chebyshev.chebfit(t, y, degree))
    line = [-(low + high) / (high - low), 2 / (high - low)]
    in_x = np.zeros(1)
    for c in in_t[::-1]:
        in_x = polynomial.polyadd(polynomial.polymul(in_x, line), [c])
    grid = np.linspace(low, high, 997)
    error = max(abs(polynomial.polyval(x, in_x) - float(f(mp.mpf(x)))) for x in grid)
    print(name, "error %.1e" % error)
    print("  ", ", ".join("%.9ef" % c for c in in_x[: degree + 1]))


def tanh_near(z):
    if z < 1e-9:
        return mp.mpf(-1) / 3
    s = mp.sqrt(z)
    return (mp.tanh(s) / s - 1) / z


def erf_near(z):
    if z < 1e-12:
        return 2 / mp.sqrt(mp.pi)
    return mp.erf(mp.sqrt(z)) / mp.sqrt(z)


def erfc_far(t):
    x = (1 / t - 1) / mp.mpf("0.4")
    return mp.erfc(x) * mp.exp(x * x) / t


fit("(tanh(sqrt z) / sqrt z - 1) / z, z in [0, 0.36]", tanh_near, 0, 0.36, 5)
fit("erf(sqrt z) / sqrt z, z in [0, 1]", erf_near, 0, 1, 6)
fit("erfc(x) e^(x^2) / t, t = 1 / (1 + 0.4 x), x in [0.98, 10]", erfc_far, 1 / (1 + 0.4 * 10), 1 / (1 + 0.4 * 0.98), 7)
