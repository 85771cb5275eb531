"""Text to token ids, once per request and, but for short texts, off the event loop.

``Tokenizer`` is what the door needs. ``PooledTokenizer`` runs a plain tokenizer in a few
threads (Hugging Face's release the interpreter lock while they work: about 3 ms for a prompt of
2,000 tokens, less where ``piece_encoder`` knows how it begins). ``HFTokenizer`` is the one for real
models.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from pdd.core.errors import AdmissionRejected, ConfigError, InvalidRequest
from pdd.gateway.piece_encoder import PieceEncoder

Result = TypeVar("Result")

INLINE_CHARS_MAX = 256
"""Texts up to here are encoded at once: that takes less (some 50 us) than to hand them to a thread
and back, and no token waits for it noticeably."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatPrompt:
    """A conversation to be rendered with the model's chat template."""

    messages: Sequence[Mapping[str, object]]
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False  # the template writes them itself
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)


class Tokenizer(Protocol):
    """What the front door asks of a tokenizer."""

    async def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of a text. May raise AdmissionRejected when too many wait."""
        ...

    async def encode_chat(self, chat: ChatPrompt) -> list[int]:
        """Token ids of a rendered conversation.

        Raises:
            InvalidRequest: the template refuses this conversation.
            AdmissionRejected: too many wait.
        """
        ...

    async def decode(self, token_ids: Sequence[int]) -> str:
        """The text of token ids, special tokens included."""
        ...


class PooledTokenizer(ABC):
    """A tokenizer in threads of its own.

    At most ``max_waiting`` calls are in the pool; one more is refused with AdmissionRejected,
    because its answer would come too late anyway. Short texts do not go there.
    """

    def __init__(self, *, threads: int = 2, max_waiting: int = 256) -> None:
        self._pool = ThreadPoolExecutor(max_workers=threads, thread_name_prefix="tokenizer")
        self._max_waiting = max_waiting
        self._waiting = 0

    async def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        if len(text) <= INLINE_CHARS_MAX:
            return self.encode_now(text, add_special_tokens=add_special_tokens)
        return await self._run(lambda: self.encode_now(text, add_special_tokens=add_special_tokens))

    async def encode_chat(self, chat: ChatPrompt) -> list[int]:
        return await self._run(
            lambda: self.encode_now(
                self.render_now(chat), add_special_tokens=chat.add_special_tokens
            )
        )

    async def decode(self, token_ids: Sequence[int]) -> str:
        return await self._run(lambda: self.decode_now(token_ids))

    def close(self) -> None:
        """Stop the threads; calls that wait are cancelled."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    @abstractmethod
    def encode_now(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Called in several threads at once, the event loop's among them."""

    @abstractmethod
    def decode_now(self, token_ids: Sequence[int]) -> str:
        """Called in several threads at once."""

    @abstractmethod
    def render_now(self, chat: ChatPrompt) -> str:
        """The conversation as one text; InvalidRequest if that cannot be done."""

    async def _run(self, work: Callable[[], Result]) -> Result:
        if self._waiting >= self._max_waiting:
            raise AdmissionRejected(
                f"{self._waiting} prompts are waiting to be tokenised, which is the limit; "
                "try again in 1 s",
                retry_after_s=1.0,
            )
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, work)
        finally:
            self._waiting -= 1


class HFTokenizer(PooledTokenizer):
    """Tokenizer and chat template from a model folder in Hugging Face's layout.

    transformers is imported here and not before: it takes a second. Where the folder has a
    ``tokenizer.json``, only the part of transformers that needs no torch is loaded
    (AutoTokenizer imports torch if it is installed: five seconds and 350 MB for nothing).

    Raises:
        ConfigError: the folder holds no tokenizer that can be loaded.
    """

    def __init__(self, path: Path | str, *, threads: int = 2, max_waiting: int = 256) -> None:
        super().__init__(threads=threads, max_waiting=max_waiting)
        self._tokenizer = _load(Path(path))
        self._encoder: PieceEncoder | None = None
        backend = getattr(self._tokenizer, "backend_tokenizer", None)
        if backend is not None:
            # Once, here: setting these per call, as transformers does, is not safe in threads.
            backend.no_truncation()
            backend.no_padding()
            self._encoder = PieceEncoder(backend)
        self._warm_up()

    @property
    def vocab_size(self) -> int:
        """Ids that this tokenizer knows are below it; a model may have more (padding rows)."""
        return len(self._tokenizer)

    @property
    def eos_token_id(self) -> int | None:
        token_id = self._tokenizer.eos_token_id
        return None if token_id is None else int(token_id)

    def _warm_up(self) -> None:
        """Compile the chat template now and not within somebody's time to first token."""
        try:
            text = self.render_now(ChatPrompt(messages=[{"role": "user", "content": "hello"}]))
        except InvalidRequest:
            text = "hello"  # no template, or one that wants more than this; requests will tell
        self.encode_now(text, add_special_tokens=False)

    def encode_now(self, text: str, *, add_special_tokens: bool) -> list[int]:
        if self._encoder is not None:
            return self._encoder.encode(text, add_special_tokens=add_special_tokens)
        return list(self._tokenizer.encode(text, add_special_tokens=add_special_tokens))

    def decode_now(self, token_ids: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(list(token_ids), skip_special_tokens=False)
        return text

    def render_now(self, chat: ChatPrompt) -> str:
        from jinja2 import TemplateError

        if not self._tokenizer.chat_template:
            raise InvalidRequest(
                "messages: this model has no chat template; use /v1/completions",
                field="messages",
                code="unsupported_value",
            )
        try:
            rendered: str = self._tokenizer.apply_chat_template(
                [dict(message) for message in chat.messages],
                tokenize=False,
                add_generation_prompt=chat.add_generation_prompt,
                continue_final_message=chat.continue_final_message,
                **chat.template_kwargs,
            )
        # A template is a program whose input is the client's: whatever it trips over is theirs.
        except (
            TemplateError,
            ValueError,
            TypeError,
            LookupError,
            AttributeError,
            ArithmeticError,
            RecursionError,
        ) as error:
            raise InvalidRequest(
                f"messages: the model's chat template refuses this conversation: {error}",
                field="messages",
            ) from error
        return rendered


def _load(path: Path) -> Any:
    if not path.is_dir():
        raise ConfigError(f"tokenizer folder {str(path)!r} does not exist")
    try:
        if (path / "tokenizer.json").is_file():
            from transformers import PreTrainedTokenizerFast

            return PreTrainedTokenizerFast.from_pretrained(str(path), local_files_only=True)
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(str(path), local_files_only=True)
    except (OSError, ValueError) as error:
        raise ConfigError(f"no tokenizer can be loaded from {str(path)!r}: {error}") from error
