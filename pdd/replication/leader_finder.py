"""Which replica to ask next. Pure: time is an argument.

A replica that says where the leader is is believed, unless that leader has just been silent: the
other replicas go on naming a dead leader until their election timeout. Without a hint they are
asked in turn.
"""

from __future__ import annotations

from collections.abc import Sequence

SILENCE_S = 1.0
"""How long hints at a replica that did not answer are ignored."""


class LeaderFinder:
    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = list(addresses)
        self._turn = 0
        self._hint = ""
        self._silent_until_s: dict[str, float] = {}

    def pick(self, now_s: float) -> str:
        """Never empty: when all are silent, they are asked in turn all the same."""
        if self._hint and not self._is_silent(self._hint, now_s):
            return self._hint
        for _ in self._addresses:
            address = self._addresses[self._turn % len(self._addresses)]
            self._turn += 1
            if not self._is_silent(address, now_s):
                return address
        self._turn += 1
        return self._addresses[self._turn % len(self._addresses)]

    def on_answer(self, address: str) -> None:
        """It led when it answered."""
        self._hint = address
        self._silent_until_s.pop(address, None)

    def on_refusal(self, address: str, *, leader_address: str, now_s: float) -> bool:
        """True: there is somebody else to ask at once; else wait a little before the next."""
        self._silent_until_s.pop(address, None)
        known = leader_address in self._addresses and leader_address != address
        if known and not self._is_silent(leader_address, now_s):
            self._hint = leader_address
            return True
        if self._hint == address:
            self._hint = ""
        return False

    def on_silence(self, address: str, *, now_s: float) -> None:
        """No answer, or the connection broke."""
        self._silent_until_s[address] = now_s + SILENCE_S
        if self._hint == address:
            self._hint = ""

    def _is_silent(self, address: str, now_s: float) -> bool:
        return now_s < self._silent_until_s.get(address, 0.0)
