"""Quadratic programs on the simplex, by hand."""

import numpy as np

from lightning_modules.steps.simplex import simplex_minimum


def test_the_minimum_does_not_depend_on_the_scale():
    """P and 1e9 P have the same minimum: 1/V over (1, 3)."""
    for scale in (1e-9, 1.0, 1e9):
        np.testing.assert_allclose(simplex_minimum(scale * np.diag([1.0, 3.0])), [0.75, 0.25])
