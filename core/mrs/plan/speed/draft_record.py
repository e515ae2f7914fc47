"""What drafts have done for the replies of a model on this machine, for later plans."""

from __future__ import annotations

from typing import NamedTuple

from mrs.devices.measurements import cache_file, host_key, read_entries, write_entries

FILE_NAME = "drafts.json"
#: Earlier steps count less once there are so many: texts change.
MOST_STEPS = 4000.0
#: The records of so many models are kept, the latest.
MOST_RECORDS = 200
#: Replies of fewer steps say little.
LEAST_STEPS = 50.0


class DraftRecord(NamedTuple):
    """Sums over replies: steps, those with drafts, tokens of the drafts, and those accepted.

    All `steps` together took as long as `plain_steps` without drafts.
    """

    steps: float = 0.0
    drafts: float = 0.0
    drafted_tokens: float = 0.0
    accepted_tokens: float = 0.0
    plain_steps: float = 0.0

    @property
    def says_enough(self) -> bool:
        return self.steps >= LEAST_STEPS

    @property
    def accepted_share(self) -> float:
        """The share of drafted tokens that were accepted."""
        return self.accepted_tokens / self.drafted_tokens if self.drafted_tokens else 0.0

    @property
    def gain(self) -> float:
        """How many times as fast replies were as without drafts."""
        tokens = self.steps + self.accepted_tokens
        return tokens / self.plain_steps if self.plain_steps else 1.0

    def plus(self, other: DraftRecord) -> DraftRecord:
        return DraftRecord(*(a + b for a, b in zip(self, other, strict=True)))

    def shrunk(self) -> DraftRecord:
        """The same with at most `MOST_STEPS`."""
        share = min(MOST_STEPS / self.steps, 1.0) if self.steps else 1.0
        return DraftRecord(*(share * each for each in self))


NOTHING_DRAFTED = DraftRecord()


def read_draft_record(key: str) -> DraftRecord | None:
    """What earlier runs on this machine say of the drafts `key`; None if that is little."""
    entries = read_entries(cache_file(FILE_NAME)).get(host_key())
    values = entries.get(key) if isinstance(entries, dict) else None
    if not isinstance(values, list) or len(values) != len(DraftRecord._fields):
        return None
    if not all(type(each) in (int, float) and 0 <= each < float("inf") for each in values):
        return None
    record = DraftRecord(*map(float, values))
    return record if record.says_enough else None


def remember_drafts(key: str, record: DraftRecord) -> None:
    """Add the replies of a run to those of earlier ones, unless they are few."""
    if not record.says_enough:
        return
    before = (read_draft_record(key) or NOTHING_DRAFTED).shrunk()
    path = cache_file(FILE_NAME)
    entries = read_entries(path)
    of_host = entries.get(host_key())
    others = of_host.items() if isinstance(of_host, dict) else ()
    kept = [(name, values) for name, values in others if name != key][1 - MOST_RECORDS :]
    merged = [round(value, 3) for value in before.plus(record)]
    write_entries(path, {**entries, host_key(): {**dict(kept), key: merged}})
