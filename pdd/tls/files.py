"""Write certificates and keys: atomically, keys for their owner only, nothing replaced unasked."""

import os
import tempfile
from pathlib import Path

from pdd.core.errors import ConfigError
from pdd.tls.authority import Issued

KEY_MODE = 0o600
CERTIFICATE_MODE = 0o644
_DIRECTORY_MODE = 0o700


def write_pair(directory: Path, name: str, issued: Issued, *, force: bool) -> tuple[Path, Path]:
    """Write ``NAME.crt`` and ``NAME.key``; their paths.

    Each file is whole or absent at any moment. The key goes first: a daemon that looks between the
    two writes finds a pair that does not match, and keeps what it has.

    Args:
        force: replace what is there.
    Raises:
        ConfigError: a file is there already, or cannot be written.
    """
    certificate, key = pair_paths(directory, name)
    try:
        directory.mkdir(mode=_DIRECTORY_MODE, parents=True, exist_ok=True)
        if not force:
            for path in (key, certificate):
                if path.exists():
                    raise ConfigError(_is_there(path))
        _write(key, issued.key_pem, mode=KEY_MODE, force=force)
        _write(certificate, issued.certificate_pem, mode=CERTIFICATE_MODE, force=force)
    except OSError as error:
        raise ConfigError(f"--dir {directory}: {error.filename or ''}: {error.strerror}") from error
    return certificate, key


def read_pair(directory: Path, name: str) -> Issued:
    """What ``write_pair`` has written. Raises ConfigError, also when it is not there."""
    certificate, key = pair_paths(directory, name)
    try:
        return Issued(certificate_pem=certificate.read_bytes(), key_pem=key.read_bytes())
    except OSError as error:
        raise ConfigError(
            f"--dir {directory}: {error.filename}: {error.strerror}; 'pdd certs init --dir "
            f"{directory}' makes an authority there"
        ) from error


def pair_paths(directory: Path, name: str) -> tuple[Path, Path]:
    """Certificate, key."""
    return directory / f"{name}.crt", directory / f"{name}.key"


def _write(path: Path, data: bytes, *, mode: int, force: bool) -> None:
    # mkstemp makes it with 0600, so that a key is never readable by others, not even for a moment.
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        if force:
            os.replace(temporary, path)
        else:
            os.link(temporary, path)  # fails if somebody was faster
    except FileExistsError as error:
        raise ConfigError(_is_there(path)) from error
    finally:
        Path(temporary).unlink(missing_ok=True)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _is_there(path: Path) -> str:
    return f"{path} exists and is left alone; give --force to replace it, or another --dir"
