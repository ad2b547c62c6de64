"""A model described by a few sizes, or by its parameter count alone.

The rule: it is a Llama-type decoder. What is not given is taken so.

=======================  =============================================================================
``vocab_size``           32 000, Llama 2's
``heads``                as many heads of 128 as the width holds, of 64 below a width of 1024
``kv_heads``             as many as ``heads``
``layers, hidden_size``  a width of 128 per layer, Llama 2's shape (4096 / 32, 5120 / 40), at the size
                         that comes nearest to ``parameters``; where one of the two is given, the other
                         is what comes nearest
``feed_forward_size``    what makes the count come out; without ``parameters``, 8/3 of the width rounded
                         up to a multiple of 256, as Llama's
``tie_word_embeddings``  true where separate input and output embeddings would exceed a fifth of
                         ``parameters``
=======================  =============================================================================

Loss depends only weakly on shape (Kaplan et al. 2020, arXiv:2001.08361, section 3.1), and memory follows the count,
so a usual shape answers for a model of which only the size is known.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from calc.catalog.configs import complete_config
from calc.errors import ScenarioError
from calc.numbers import is_number, is_whole

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

WIDTH_PER_LAYER = 128
DEFAULT_VOCAB_SIZE = 32_000
FEED_FORWARD_MULTIPLE = 256
TIED_SHARE = 1 / 5
COUNT_TOLERANCE = 0.2
"""How far a given count may be from what all given sizes make, before the two are called contradictory."""
MIN_COUNT_ALONE = 10**7
MAX_PARAMETERS = 10**13
MAX_SIZE = 10**8

_WIDTHS = (*range(128, 1024, 64), *range(1024, 51_201, 128))  # whole heads of 64, then of 128

_NAMES = {
    "layers": ("layers", "num_hidden_layers", "n_layer"),
    "hidden_size": ("hidden_size", "n_embd", "d_model"),
    "heads": ("heads", "num_attention_heads", "n_head"),
    "kv_heads": ("kv_heads", "key_value_heads", "num_key_value_heads"),
    "feed_forward_size": ("feed_forward_size", "intermediate_size", "ffn_dim"),
    "vocab_size": ("vocab_size", "vocabulary"),
    "head_dim": ("head_dim",),
}
_KEY_BY_NAME = {name: key for key, names in _NAMES.items() for name in names}
_NO_SIZES = ("parameters", "tie_word_embeddings")


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The sizes of a Llama-type decoder without biases."""

    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    feed_forward_size: int
    vocab_size: int
    tie_word_embeddings: bool

    @property
    def parameters(self) -> int:
        """Exact count.

        Per layer: query and output, key and value projections, three feed-forward matrices, two norms; then the
        embedding (twice where not tied) and the last norm (Touvron et al. 2023, arXiv:2307.09288).
        """
        attention = 2 * self.hidden_size * self.head_dim * (self.heads + self.kv_heads)
        layer = attention + 3 * self.hidden_size * self.feed_forward_size + 2 * self.hidden_size
        embeddings = (1 if self.tie_word_embeddings else 2) * self.vocab_size * self.hidden_size
        return self.layers * layer + embeddings + self.hidden_size


def is_by_hand(model: Mapping[str, Any]) -> bool:
    """Tell a model described by hand from a configuration that lacks its ``model_type``."""
    return "model_type" not in model and "_class_name" not in model and ("parameters" in model or "layers" in model)


def infer_config(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the completed Llama-type configuration of a model described by hand.

    Parameters
    ----------
    spec : Mapping
        Any of ``parameters`` (count), ``layers``, ``hidden_size``, ``heads``, ``kv_heads``, ``feed_forward_size``,
        ``vocab_size``, ``head_dim``, ``tie_word_embeddings``; Hugging Face's names for them are understood too. Either
        ``parameters`` or both ``layers`` and ``hidden_size`` are needed.

    Returns
    -------
    dict
        As `calc.catalog.configs.complete_config` returns it, with ``model_type`` llama.

    Raises
    ------
    ScenarioError
        Field ``model``; the message names the key.
    """
    shape = infer_shape(spec)
    return complete_config(
        {
            "model_type": "llama",
            "hidden_size": shape.hidden_size,
            "num_hidden_layers": shape.layers,
            "num_attention_heads": shape.heads,
            "num_key_value_heads": shape.kv_heads,
            "head_dim": shape.head_dim,
            "intermediate_size": shape.feed_forward_size,
            "vocab_size": shape.vocab_size,
            "tie_word_embeddings": shape.tie_word_embeddings,
        }
    )


def infer_shape(spec: Mapping[str, Any]) -> Shape:
    """Return the sizes that the rule of this module gives a model described by hand; see `infer_config`."""
    sizes = _read_sizes(spec)
    parameters = _read_parameters(spec)
    tie = spec.get("tie_word_embeddings")
    if tie is not None and not isinstance(tie, bool):
        raise ScenarioError("model", f"tie_word_embeddings must be true or false, not {tie!r}")
    if sizes.keys() <= {"vocab_size", "head_dim"} and parameters is not None and parameters < MIN_COUNT_ALONE:
        raise ScenarioError(
            "model",
            f"below {MIN_COUNT_ALONE:,} parameters the vocabulary decides the shape; give layers and hidden_size too",
        )
    if parameters is None:
        missing = [key for key in ("layers", "hidden_size") if key not in sizes]
        if missing:
            raise ScenarioError("model", f"give parameters, or {' and '.join(missing)} too")
        return _shape(sizes, layers=sizes["layers"], hidden_size=sizes["hidden_size"], tie=bool(tie))
    shape = min(
        (
            _shape(sizes, layers=layers, hidden_size=width, tie=_tied(tie, sizes, width, parameters))
            for layers, width in _candidates(sizes)
        ),
        key=lambda candidate: abs(candidate.parameters - parameters),
    )
    if "feed_forward_size" not in sizes:
        shape = _with_feed_forward_for(shape, parameters)
    if abs(shape.parameters - parameters) > COUNT_TOLERANCE * parameters:
        raise ScenarioError(
            "model",
            f"the sizes given make {shape.parameters:,} parameters with a vocabulary of {shape.vocab_size:,}, "
            f"not {parameters:,}; leave out parameters, or give other sizes",
        )
    return shape


def _candidates(sizes: Mapping[str, int]) -> Iterable[tuple[int, int]]:
    """Return the pairs of layers and width among which the count decides."""
    if "layers" in sizes and "hidden_size" in sizes:
        return [(sizes["layers"], sizes["hidden_size"])]
    if "layers" in sizes:
        return [(sizes["layers"], width) for width in _WIDTHS]
    if "hidden_size" in sizes:
        return [(layers, sizes["hidden_size"]) for layers in range(1, 1001)]
    return [(max(1, round(width / WIDTH_PER_LAYER)), width) for width in _WIDTHS]


def _tied(tie: bool | None, sizes: Mapping[str, int], width: int, parameters: int) -> bool:  # noqa: FBT001
    """Tell whether the embeddings are shared: as stated, else where two would take too large a share."""
    if tie is not None:
        return tie
    return 2 * sizes.get("vocab_size", DEFAULT_VOCAB_SIZE) * width > TIED_SHARE * parameters


def _shape(sizes: Mapping[str, int], *, layers: int, hidden_size: int, tie: bool) -> Shape:
    """Return the sizes with the rule's values for those not given."""
    wanted = sizes.get("head_dim", 128 if hidden_size >= 1024 else 64)
    heads = sizes.get("heads") or _largest_divisor(hidden_size, max(1, hidden_size // wanted))
    if "head_dim" not in sizes and hidden_size % heads:
        raise ScenarioError("model", f"heads ({heads}) does not divide hidden_size ({hidden_size}); give head_dim too")
    kv_heads = sizes.get("kv_heads", heads)
    if heads % kv_heads:
        raise ScenarioError("model", f"kv_heads ({kv_heads}) does not divide heads ({heads})")
    usual = -(-8 * hidden_size // (3 * FEED_FORWARD_MULTIPLE)) * FEED_FORWARD_MULTIPLE
    return Shape(
        hidden_size=hidden_size,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=sizes.get("head_dim", hidden_size // heads),
        feed_forward_size=sizes.get("feed_forward_size", usual),
        vocab_size=sizes.get("vocab_size", DEFAULT_VOCAB_SIZE),
        tie_word_embeddings=tie,
    )


def _largest_divisor(number: int, at_most: int) -> int:
    return next(divisor for divisor in range(at_most, 0, -1) if number % divisor == 0)


def _with_feed_forward_for(shape: Shape, parameters: int) -> Shape:
    """Return the shape with the feed-forward width, a multiple of 64, that brings its count nearest."""
    per_unit = 3 * shape.hidden_size * shape.layers
    fixed = shape.parameters - per_unit * shape.feed_forward_size
    return replace(shape, feed_forward_size=max(64, 64 * round((parameters - fixed) / per_unit / 64)))


def _read_sizes(spec: Mapping[str, Any]) -> dict[str, int]:
    """Return the given sizes under this module's names."""
    unknown = [name for name in spec if name not in _KEY_BY_NAME and name not in _NO_SIZES]
    if unknown:
        allowed = ", ".join([_NO_SIZES[0], *_NAMES, _NO_SIZES[1]])
        raise ScenarioError("model", f"{unknown[0]!r} is not known here; a model by hand has {allowed}")
    sizes = {}
    for name, value in spec.items():
        if name in _NO_SIZES or value is None:
            continue
        if not is_whole(value) or not 1 <= value <= MAX_SIZE:
            raise ScenarioError("model", f"{name} must be a whole number from 1 to {MAX_SIZE:,}, not {value!r}")
        sizes[_KEY_BY_NAME[name]] = int(value)
    return sizes


def _read_parameters(spec: Mapping[str, Any]) -> int | None:
    value = spec.get("parameters")
    if value is None:
        return None
    if not is_number(value) or not 1 <= value <= MAX_PARAMETERS:
        raise ScenarioError(
            "model", f"parameters must be a number from 1 to {MAX_PARAMETERS:,}, such as 7e9, not {value!r}"
        )
    return int(value)
