"""How a request carries its noise key to the engine; needs neither torch nor vLLM.

The engine adapter writes the key with :func:`noise_key_extra_args`; the keyed sampler, in
vLLM's frontend and worker processes, reads it back with :func:`read_noise_key`. It travels in
``SamplingParams.extra_args["pdd"]``, where other parts of pdd may keep entries of their own.
"""

from collections.abc import Mapping
from dataclasses import dataclass

EXTRA_ARGS_KEY = "pdd"

# vLLM hands the seed to torch.Generator.manual_seed, which takes a signed 64-bit number.
SEED_MIN = -(2**63)
SEED_MAX = 2**63 - 1

# Reaching index N costs N draws (about 4 ns and 8 bytes each), so N must have a bound; this one
# is above every context length that a model has today. A larger value is refused.
OUTPUT_INDEX_MAX = 2**22


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseKey:
    """Names the noise of one request, whichever engine draws it.

    ``first_output_index``: 0-based index, among all output tokens of the request, of the first
    token that this engine makes. The tokens before it are part of this engine's prompt.
    """

    seed: int
    first_output_index: int


def noise_key_extra_args(*, seed: int, first_output_index: int) -> dict[str, dict[str, int]]:
    """What to pass (or merge) as ``SamplingParams.extra_args``; ``seed`` there stays unset."""
    return {EXTRA_ARGS_KEY: {"seed": seed, "first_output_index": first_output_index}}


def read_noise_key(extra_args: Mapping[str, object] | None) -> NoiseKey | None:
    """The key in ``extra_args``, or None where the request is not pdd's.

    Raises:
        ValueError: there is a ``pdd`` entry, but its key is incomplete, of a wrong type or out of
            bounds.
    """
    if extra_args is None or EXTRA_ARGS_KEY not in extra_args:
        return None
    entry = extra_args[EXTRA_ARGS_KEY]
    # ValueError throughout: vLLM turns it, and no other, into a 400.
    if not isinstance(entry, Mapping):
        raise ValueError(  # noqa: TRY004
            f"extra_args[{EXTRA_ARGS_KEY!r}] must be a mapping with 'seed' and "
            f"'first_output_index' (got {type(entry).__name__})"
        )
    return NoiseKey(
        seed=_bounded_int(entry, "seed", SEED_MIN, SEED_MAX),
        first_output_index=_bounded_int(entry, "first_output_index", 0, OUTPUT_INDEX_MAX),
    )


def _bounded_int(entry: Mapping[str, object], field: str, least: int, most: int) -> int:
    value = entry.get(field)
    # bool is an int in Python, but nobody means True by a seed.
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(  # noqa: TRY004
            f"extra_args[{EXTRA_ARGS_KEY!r}][{field!r}] must be int (got {value!r})"
        )
    if not least <= value <= most:
        raise ValueError(
            f"extra_args[{EXTRA_ARGS_KEY!r}][{field!r}] must lie in [{least}, {most}] (got {value})"
        )
    return value
