"""Is a larger batch still worth it: critical batch, learning rate, updates and published quality."""

from calc.convergence.assessment import assess

__all__ = ["assess"]
