"""The planner: which recipe, layout and micro-batch reach the wanted batch fastest, cheapest or with the most room.

The one part of the calculation, with the figures, that needs numpy.
"""

from calc.planner.answer import plan

__all__ = ["plan"]
