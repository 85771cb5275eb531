"""What two copies of a model must share before their KV blocks may be exchanged.

A served name says nothing: two checkpoints of one architecture have blocks of one shape, and a
decode node would go on, fluently, from another model's keys and values.
"""

from pathlib import Path

import xxhash

_SAMPLE_BYTES = 64 * 1024
_SAMPLE_COUNT = 16


def weights_digest(folder: Path) -> str:
    """Of config, and of name, size, header and evenly spread samples of every weight file.

    Reads about 1 MB per file, so that a node of hundreds of gigabytes starts no later for it; a
    fine-tuned copy differs everywhere and cannot pass.
    """
    digest = xxhash.xxh3_128()
    digest.update((folder / "config.json").read_bytes())
    for path in sorted(folder.glob("*.safetensors")):
        size = path.stat().st_size
        digest.update(f"{path.name}:{size}".encode())
        with path.open("rb") as file:
            header_size = min(int.from_bytes(file.read(8), "little"), 64 << 20)
            digest.update(file.read(header_size))
            for index in range(_SAMPLE_COUNT):
                file.seek(size * index // _SAMPLE_COUNT)
                digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()


def tokenizer_digest(folder: Path) -> str:
    """Of the tokenizer's file: scheduler and nodes must cut text alike."""
    return xxhash.xxh3_128_hexdigest((folder / "tokenizer.json").read_bytes())
