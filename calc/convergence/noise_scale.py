"""One's own gradient noise scale, from gradient norms at two batch sizes."""

from __future__ import annotations

from dataclasses import dataclass

from calc.errors import ScenarioError

SOURCE = "McCandlish et al. 2018, arXiv:1812.06162, appendix A.1"


@dataclass(frozen=True, slots=True)
class NoiseScale:
    """The simple noise scale and its two parts.

    ``noise_scale`` is in the unit of the batches; ``gradient_norm_squared`` is the true gradient's, ``noise_trace`` the
    trace of one example's gradient covariance.
    """

    noise_scale: float
    gradient_norm_squared: float
    noise_trace: float


def from_gradient_norms(
    small_batch: float, small_batch_norm: float, large_batch: float, large_batch_norm: float
) -> NoiseScale:
    """Estimate ``B_simple = tr(Sigma) / |G|^2`` from the gradient's norm at two batch sizes.

    ``|G|^2 = (B2 |G2|^2 - B1 |G1|^2) / (B2 - B1)`` and ``tr(Sigma) = (|G1|^2 - |G2|^2) / (1/B1 - 1/B2)``, both from
    ``E|G_B|^2 = |G|^2 + tr(Sigma) / B``. Data-parallel training holds both: the norm on one rank before the exchange
    (its batch is the small one) and the norm after it. One step's values are noisy: average the *squared* norms over
    some tens of steps and give the square roots.

    Parameters
    ----------
    small_batch, large_batch : float
        The two batches, in one unit.
    small_batch_norm, large_batch_norm : float
        The gradient's 2-norm at each, root mean square over steps.

    Raises
    ------
    ScenarioError
        If the batches do not differ, or the norms admit no positive noise scale.

    Notes
    -----
    Source: arXiv:1812.06162, appendix A.1.

    >>> round(from_gradient_norms(8, 3.0, 64, 1.5).noise_scale, 3)
    48.0
    """
    if not 0 < small_batch < large_batch:
        raise ScenarioError("gradient_norms", "give two different batches, the smaller one first")
    if small_batch_norm <= 0 or large_batch_norm <= 0:
        raise ScenarioError("gradient_norms", "norms must be positive")
    small_squared, large_squared = small_batch_norm**2, large_batch_norm**2
    true_squared = (large_batch * large_squared - small_batch * small_squared) / (large_batch - small_batch)
    trace = (small_squared - large_squared) / (1 / small_batch - 1 / large_batch)
    if trace <= 0:
        raise ScenarioError(
            "gradient_norms",
            "the larger batch must have the smaller norm: average the squared norms over more steps, and take them "
            "before gradient clipping",
        )
    if true_squared <= 0:
        raise ScenarioError(
            "gradient_norms",
            "these norms differ as if the gradient were noise alone: average the squared norms over more steps, or use "
            "a larger second batch",
        )
    return NoiseScale(trace / true_squared, true_squared, trace)
