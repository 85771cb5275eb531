"""Several frames of one request as one for each choice."""

from pdd.core.frames import Frame


def joined(frames: list[Frame]) -> list[Frame]:
    """Frames that follow each other, as one per choice, in the order of the choices."""
    if len(frames) <= 1:
        return list(frames)
    by_choice: dict[int, list[Frame]] = {}
    for frame in frames:
        by_choice.setdefault(frame.choice_index, []).append(frame)
    return [_joined(by_choice[choice_index]) for choice_index in sorted(by_choice)]


def _joined(frames: list[Frame]) -> Frame:
    first = frames[0]
    if len(frames) == 1:
        return first
    return Frame(
        request_id=first.request_id,
        choice_index=first.choice_index,
        first_token_index=first.first_token_index,
        token_ids=tuple(token_id for frame in frames for token_id in frame.token_ids),
        text_offset=first.text_offset,
        text="".join(frame.text for frame in frames),
        logprobs=tuple(logprobs for frame in frames for logprobs in frame.logprobs),
        finish=frames[-1].finish,
    )
