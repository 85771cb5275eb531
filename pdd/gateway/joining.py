"""Several frames of one request as one."""

from pdd.core.frames import Frame


def joined(frames: list[Frame]) -> Frame | None:
    """Frames that follow each other as one; None if there are none."""
    if not frames:
        return None
    first = frames[0]
    if len(frames) == 1:
        return first
    return Frame(
        request_id=first.request_id,
        first_token_index=first.first_token_index,
        token_ids=tuple(token_id for frame in frames for token_id in frame.token_ids),
        text_offset=first.text_offset,
        text="".join(frame.text for frame in frames),
        logprobs=tuple(logprobs for frame in frames for logprobs in frame.logprobs),
    )
