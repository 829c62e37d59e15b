"""A log reduced to what truncation depends on: one epoch per record, and the epoch history of a leader
without records."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class EpochEnd:
    epoch: int
    end_offset: int


@dataclass
class EpochLog:
    """`records[i]` is the epoch of the record at `log_start_offset + i`."""

    records: list[int] = field(default_factory=list)
    log_start_offset: int = 0
    high_watermark: int = 0
    # epochs entered at an election, by epoch -> start offset
    led: dict[int, int] = field(default_factory=dict)

    @property
    def noted_start_offset(self) -> int:
        return self.log_start_offset

    @property
    def log_end_offset(self) -> int:
        return self.log_start_offset + len(self.records)

    def entries(self) -> list[tuple[int, int]]:
        starts = dict(self.led)
        for position, epoch in enumerate(self.records):
            starts.setdefault(epoch, self.log_start_offset + position)
        return sorted(starts.items())

    @property
    def latest_epoch(self) -> int:
        entries = self.entries()
        return entries[-1][0] if entries else -1

    def epoch_end(self, epoch: int) -> EpochEnd:
        entries = self.entries()
        if not entries or epoch > entries[-1][0]:
            return EpochEnd(-1, -1)
        if epoch == entries[-1][0]:
            return EpochEnd(epoch, self.log_end_offset)
        higher_start = next(start for known, start in entries if known > epoch)
        floor = max((known for known, _ in entries if known <= epoch), default=epoch)
        return EpochEnd(floor, higher_start)

    def truncate_to(self, offset: int) -> None:
        del self.records[max(0, offset - self.log_start_offset) :]
        self.led = {epoch: start for epoch, start in self.led.items() if start < self.log_end_offset}
        self.high_watermark = min(self.high_watermark, self.log_end_offset)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        self.records.clear()
        self.led.clear()
        self.log_start_offset = self.high_watermark = offset
