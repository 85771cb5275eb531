"""Generated from ``proto/``; ``tests/unit/rpc`` checks that it is fresh. Nothing is hand-made."""
