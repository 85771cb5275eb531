"""Prompts and sampling settings for comparisons between engines.

Lengths lie on, before and after the borders of KV blocks (128 tokens) and prefill chunks (512).
"""

from typing import Any

PROMPTS: dict[str, str | list[int]] = {
    "one token": [504],
    "short": "The quick brown fox",
    "question": "Explain in simple words why the sky is blue.",
    "code": "def fibonacci(n):\n",
    "unicode": "Größe, naïve café, 東京タワー, Ελλάδα, 🙂🙃 and",
    "127 tokens": [100 + (7 * i) % 3000 for i in range(127)],
    "one block": [200 + (11 * i) % 3000 for i in range(128)],
    "129 tokens": [300 + (13 * i) % 3000 for i in range(129)],
    "prose": "In the beginning there was a small village by the sea. " * 20,
    "one chunk": [400 + (17 * i) % 4000 for i in range(512)],
    "two chunks": "History of the city, chapter by chapter. " * 75,
    "three chunks": [500 + (19 * i) % 5000 for i in range(1100)],
}

SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "seeded": {"temperature": 0.8, "top_p": 0.95, "seed": 7},
    "seeded, filtered": {"temperature": 1.0, "top_k": 40, "min_p": 0.02, "seed": 2**40 + 1},
}

MAX_TOKENS = 20
CASES = [(prompt, setting) for prompt in PROMPTS for setting in SETTINGS]
BLOCK_TOKENS = 128
CHUNK_TOKENS = 512


def salt(prompt: str, setting: str) -> str:
    """Keeps each case's prefix cache cold, as exactness asks (design: Exactness)."""
    return f"{prompt}/{setting}"


def block_bytes() -> int:
    """Of SmolLM2-135M: 30 layers x 3 KV heads x 128 tokens x (64 K + 64 V) x 2 bytes."""
    return 30 * 3 * BLOCK_TOKENS * 128 * 2
