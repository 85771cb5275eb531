"""What ``--model`` means: nothing, a local folder, or a Hugging Face hub id.

Called by ``pdd up`` and by set-up, never by ``pdd serve``: it may convert or download.
"""

import importlib
import re
from dataclasses import dataclass
from pathlib import Path

from pdd.core.errors import ConfigError
from pdd.model.default import DEFAULT_MODEL_NAME, ensure_default_model
from pdd.model.folder import check_model_folder

# Owner and name as the hub allows them; a single word is refused here on purpose, because
# it is more often a mistyped folder than one of the hub's few names without an owner.
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
_HUB_FILES = ("*.json", "*.safetensors", "*.jinja", "*.txt", "*.model")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedModel:
    """``path``: absolute folder on this host. ``name``: what clients call the model."""

    path: Path
    name: str


def resolve_model(spec: str | None) -> ResolvedModel:
    """Find, make or download the model that ``spec`` names.

    Args:
        spec: None or the default model's name; a path to a folder; or a hub id ``owner/name``.
            An existing folder wins over a hub id of the same spelling.
    Raises:
        ConfigError: says what was tried, what is missing and what to do.
    """
    if spec is None or spec == DEFAULT_MODEL_NAME:
        return ResolvedModel(path=ensure_default_model(), name=DEFAULT_MODEL_NAME)
    folder = Path(spec).expanduser().absolute()
    if not spec.strip():
        raise ConfigError("--model is empty; leave it out to serve the default model")
    if folder.exists() or spec.startswith(("/", ".", "~")):
        check_model_folder(folder)
        return ResolvedModel(path=folder, name=folder.resolve().name)
    if not _HUB_ID.fullmatch(spec):
        raise ConfigError(
            f"--model {spec!r}: there is no such folder ({folder}), and it is not a hub id "
            f"(owner/name) nor the default model ({DEFAULT_MODEL_NAME})"
        )
    return ResolvedModel(path=_download(spec), name=spec)


def _download(hub_id: str) -> Path:
    hub = importlib.import_module("huggingface_hub")
    errors = importlib.import_module("huggingface_hub.errors")
    try:
        folder = Path(hub.snapshot_download(hub_id, allow_patterns=list(_HUB_FILES)))
    except errors.RepositoryNotFoundError as error:
        raise ConfigError(
            f"--model {hub_id!r}: the hub has no such model, or it is private (set HF_TOKEN); "
            "it is not a local folder either"
        ) from error
    except (errors.HfHubHTTPError, errors.LocalEntryNotFoundError, OSError, ValueError) as error:
        raise ConfigError(
            f"--model {hub_id!r}: cannot be downloaded ({type(error).__name__}: {error}). "
            "Without a network, give --model a folder that holds the model"
        ) from error
    check_model_folder(folder)
    return folder
