"""Is a larger batch still worth it: critical batch, learning rate, updates and published quality."""

from calc.convergence.assessment import assess, tradeoff_curve

__all__ = ["assess", "tradeoff_curve"]
