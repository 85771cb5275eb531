"""What waits for the driver's next turn. Pure; filled by the services, drained whole by the driver.

Bounds, so that a stalled disk cannot fill the memory:
    peers' messages   PEER_MESSAGES_MAX and PEER_BYTES_MAX; at the bound the newest is dropped and
                      counted, as a network would
    submissions       SUBMISSIONS_MAX and SUBMISSION_BYTES_MAX; at the bound `put_submission` says
                      no, and the client hears inbox_full
"""

from __future__ import annotations

from pdd.raft.messages import Message
from pdd.replication.submissions import CommandSubmission, Submission

PEER_MESSAGES_MAX = 8192
PEER_BYTES_MAX = 64 * 1024 * 1024
SUBMISSIONS_MAX = 16384
SUBMISSION_BYTES_MAX = 16 * 1024 * 1024


class Inbox:
    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._message_bytes = 0
        self._submissions: list[Submission] = []
        self._submission_bytes = 0
        self.dropped_count = 0

    def put_message(self, message: Message, *, size_bytes: int) -> bool:
        """False: dropped. One message is always taken, so that a large snapshot can arrive."""
        is_full = len(self._messages) >= PEER_MESSAGES_MAX
        if is_full or (self._messages and self._message_bytes + size_bytes > PEER_BYTES_MAX):
            self.dropped_count += 1
            return False
        self._messages.append(message)
        self._message_bytes += size_bytes
        return True

    def put_submission(self, submission: Submission) -> bool:
        """False: refused."""
        size_bytes = submission_size_bytes(submission)
        if len(self._submissions) >= SUBMISSIONS_MAX:
            return False
        if self._submissions and self._submission_bytes + size_bytes > SUBMISSION_BYTES_MAX:
            return False
        self._submissions.append(submission)
        self._submission_bytes += size_bytes
        return True

    @property
    def submission_count(self) -> int:
        """What `take_submissions` would return."""
        return len(self._submissions)

    def take_messages(self) -> list[Message]:
        messages, self._messages = self._messages, []
        self._message_bytes = 0
        return messages

    def take_submissions(self) -> list[Submission]:
        submissions, self._submissions = self._submissions, []
        self._submission_bytes = 0
        return submissions


def submission_size_bytes(submission: Submission) -> int:
    if isinstance(submission, CommandSubmission):
        return len(submission.body) + len(submission.session_id)
    return len(submission.query)
