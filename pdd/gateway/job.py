"""A checked request with what the answer's shape depends on."""

from pdd.core.requests import GenerateRequest
from pdd.core.values import frozen


@frozen
class Job:
    """What the door hands on.

    ``echo_text`` stands before the output (completions with ``echo``), else "".
    ``role`` is the role of a chat answer, "" for completions.
    ``created_s``: seconds since the epoch, the same in every document of the answer.
    """

    request: GenerateRequest
    stream: bool
    usage_chunk: bool
    running_usage: bool
    return_token_ids: bool
    tokens_as_ids: bool
    echo_text: str = ""
    role: str = ""
    created_s: int = 0
