"""What a synthetic cluster must answer, computed without it: no network, no blocks, no batch.

The engine's own rules (``kv_rows``, ``choice``) on one contiguous pool. A token that was lost,
doubled, taken from another stream, or computed from a wrong block differs from this.
"""

import numpy as np
from tokenizers import Tokenizer

from pdd.core.sampling import Sampling
from pdd.engine.output_text import Detokenizer
from pdd.engine.synthetic.choice import Vocabulary, choose
from pdd.engine.synthetic.kv_rows import KvRows
from pdd.engine.synthetic.model import TURN_END, make_tokenizer, words_of

ROW_BYTES = 16
"""KV bytes per position of the clusters that are measured: the least there is, because the engine
shares the machine with what is measured."""


class Oracle:
    """Knows the greedy answer to any prompt."""

    def __init__(self) -> None:
        self._tokenizer: Tokenizer = make_tokenizer()
        end_id = self._tokenizer.token_to_id(TURN_END)
        assert end_id is not None, "make_tokenizer has it"
        self._words: Vocabulary = words_of(
            self._tokenizer, eos_token_ids=(end_id,), size=self._tokenizer.get_vocab_size()
        )

    def answer(self, prompt: str, *, token_count: int) -> list[str]:
        """The text of each of the first ``token_count`` tokens, none of which ends the answer."""
        tokens: list[int] = self._tokenizer.encode(prompt).ids
        prompt_ids = tuple(tokens)
        length = len(tokens) + token_count
        pool = np.zeros((1, length * ROW_BYTES), np.uint8)
        rows = KvRows(pools=[pool], block_size=length, model_seed=0)
        sampling = Sampling(max_tokens=token_count, min_tokens=token_count, temperature=0.0)
        detokenizer = Detokenizer(
            self._tokenizer, prompt_token_ids=prompt_ids, skip_special_tokens=True
        )
        texts: list[str] = []
        computed = 0
        for _ in range(token_count):
            rows.write([0], computed, tokens[computed:])
            computed = len(tokens)
            token_id = choose(
                rows.digest([0], computed),
                words=self._words,
                sampling=sampling,
                token_ids=tokens,
                prompt_token_count=len(prompt_ids),
            ).token_id
            tokens.append(token_id)
            texts.append(detokenizer.step(token_id))
        return texts
