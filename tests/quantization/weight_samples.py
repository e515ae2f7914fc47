"""Seeded weights as models have them: Gaussian, heavy-tailed, and with outlier columns."""

from __future__ import annotations

import numpy as np

KINDS = ("gaussian", "heavy-tailed", "outlier columns")


def sample_weights(kind: str, rows: int = 64, columns: int = 2048, seed: int = 23) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if kind == "heavy-tailed":
        weights = rng.standard_t(4, (rows, columns))
    else:
        weights = rng.standard_normal((rows, columns))
    if kind == "outlier columns":
        weights[:, rng.choice(columns, columns // 64, replace=False)] *= 10
    return (0.02 * weights).astype(np.float32)


def root_mean_square(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(values.astype(np.float64)))))


def column_importance(columns: int, seed: int = 7) -> np.ndarray:
    """Mean squares of activations as models have them: log-normal, with massive outliers."""
    rng = np.random.default_rng(seed)
    values = np.exp(1.5 * rng.standard_normal(columns))
    values[rng.choice(columns, columns // 64, replace=False)] *= 50
    return (values / values.mean()).astype(np.float32)
