"""The front door's tokenizer, by the kind of engine that its nodes run."""

import json
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from pdd.config.sections import EngineKind, EngineSection
from pdd.core.errors import ConfigError, InvalidRequest
from pdd.daemon.node_engine import load_tokenizer
from pdd.gateway.piece_encoder import PieceEncoder
from pdd.gateway.tokenizer import ChatPrompt, HFTokenizer, PooledTokenizer


def make_tokenizer(engine: EngineSection) -> PooledTokenizer:
    """Load the tokenizer of ``engine.model``; blocks for up to seconds.

    Raises:
        ConfigError: the folder holds no tokenizer that can be loaded.
    """
    if engine.kind is EngineKind.SYNTHETIC:
        return PlainTokenizer(Path(engine.model))
    return HFTokenizer(engine.model)


class PlainTokenizer(PooledTokenizer):
    """A fast tokenizer and a chat template without transformers, whose import takes longer than
    a whole synthetic cluster may take to start.

    It knows what the synthetic model's folder uses. Templates see messages,
    ``add_generation_prompt`` and the request's own arguments, in a sandbox; continuing a final
    message is refused.

    Raises:
        ConfigError: a file is missing or cannot be read.
    """

    def __init__(self, folder: Path, *, threads: int = 2, max_waiting: int = 256) -> None:
        super().__init__(threads=threads, max_waiting=max_waiting)
        self._tokenizer: Tokenizer = load_tokenizer(folder)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._encoder = PieceEncoder(self._tokenizer)
        template = _chat_template(folder)
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        self._template = None if template is None else environment.from_string(template)

    def encode_now(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return self._encoder.encode(text, add_special_tokens=add_special_tokens)

    def decode_now(self, token_ids: Any) -> str:
        text: str = self._tokenizer.decode(list(token_ids), skip_special_tokens=False)
        return text

    def render_now(self, chat: ChatPrompt) -> str:
        if self._template is None:
            raise InvalidRequest(
                "messages: this model has no chat template; use /v1/completions",
                field="messages",
                code="unsupported_value",
            )
        if chat.continue_final_message:
            raise InvalidRequest(
                "continue_final_message: not available with the synthetic engine",
                field="continue_final_message",
                code="unsupported_value",
            )
        try:
            return self._template.render(
                messages=[dict(message) for message in chat.messages],
                add_generation_prompt=chat.add_generation_prompt,
                **chat.template_kwargs,
            )
        # A template is a program whose input is the client's: whatever it trips over is theirs.
        except (TemplateError, ValueError, TypeError, LookupError, AttributeError) as error:
            raise InvalidRequest(
                f"messages: the model's chat template refuses this conversation: {error}",
                field="messages",
            ) from error


def _chat_template(folder: Path) -> str | None:
    path = folder / "tokenizer_config.json"
    try:
        template = json.loads(path.read_text(encoding="utf-8")).get("chat_template")
    except (OSError, ValueError, AttributeError) as error:
        raise ConfigError(f"engine.model: cannot read {path}: {error}") from error
    return template if isinstance(template, str) else None
