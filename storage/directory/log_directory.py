"""One data folder: its logs, its owner, and the notes from which a restart begins.

    meta.properties         the cluster and node that own the folder (`folder_owner`); others are refused
    .lock                   held while a node uses the folder
    clean-shutdown          broker epoch of a clean stop; there only between a clean close and the next
                            opening
    partition-checkpoint    per partition: recovery point, high watermark, log start; and
    flush-notes             what was flushed since (`folder_notes`)
    <topic>-<partition>/    a log, with its identity and configuration (`found_logs`)
    <t>-<p>.<n>-delete/     a log whose deletion is decided (`renamed_folders`)
    <n>-future/             the future replica of a log, before it is complete (`moving`)
    <n>-damaged/            a damaged log, kept for a while (`set_aside`); the partition was fetched again
                            from its leader

Order at opening: lock, check meta.properties, read clean-shutdown **and remove it durably**, then open logs:
a crash from here on is an unclean stop.  Order at a clean close: close every log clean, write the checkpoint,
then write clean-shutdown, last.

When the disk fails under one log, the whole folder goes offline with all its logs, once, and `on_offline` is
called.  When only the data of one log is damaged or unreadable, that log goes offline, for this start and all
later ones, until it is set aside or deleted; `health` says which of the two an error is.  When the damage
cannot be noted on the disk, the folder goes offline.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from uuid import UUID

from ...runtime import logs
from ...runtime.disk import OUT_OF_SPACE, Disk, FileLock, ReadFailed
from ...wire.errors import ErrorCode, KafkaError
from ..checkpoint import CheckpointInvalid, encode_value, parse_value
from ..durability.flush_notes import Identity, identity_of
from ..log.closing import CLOSING_THREADS, close_in_threads, close_log
from ..log.health import DISK_FAILED, ReadErrors
from ..log.hooks import DETACHED, LogHooks
from ..log.log import CorruptLog, Log, LogConfig
from ..segment.open_files import OpenFiles
from .creation import Creation, FolderShare, NewLog, Results
from .deferred_open import DeferredOpen
from .folder_notes import FolderNotes, PartitionCheckpoint, PartitionKey
from .folder_owner import META_PROPERTIES, DirectoryRefused, claim_folder
from .found_logs import DAMAGED, FoundLog, UnusableLog, inspect_log_folder, parse_name
from .log_loader import DEFAULT_OPTIONS, FolderOptions, LogLoader
from .move_state import Verdict
from .opening_progress import OpeningProgress
from .pending_configs import PendingConfigs
from .renamed_folders import RenamedFolders
from .set_aside import DAMAGED_SUFFIX, note_set_aside
from .stored_config import LOG_CONFIG

__all__ = [
    "CLEAN_SHUTDOWN", "DAMAGED", "LOG_CONFIG", "META_PROPERTIES", "DirectoryRefused", "LogDirectory",
    "OpenReport", "parse_name",
]  # fmt: skip

CLEAN_SHUTDOWN = "clean-shutdown"
log = logs.get(__name__)


@dataclass(slots=True)
class OpenReport:
    """What opening found: `recovered` logs were scanned (none after a clean stop), `failed` logs are not in
    use."""

    opened: int = 0
    clean: bool = False
    recovered: list[str] = field(default_factory=list)
    truncated_bytes: int = 0
    failed: dict[PartitionKey, KafkaError] = field(default_factory=dict)


class LogDirectory:
    """See the module's text.  Call `open_all` once, then use `logs`."""

    def __init__(
        self,
        disk: Disk,
        path: Path,
        cluster_id: str,
        node_id: int,
        fresh_directory_id: str = "",
        options: FolderOptions = DEFAULT_OPTIONS,
    ) -> None:
        """`fresh_directory_id` is written into a new folder and is its id for good: a wiped or replaced disk
        gets another."""
        self.path = path
        self.directory_id = fresh_directory_id
        self.cluster_id = cluster_id
        self.node_id = node_id
        self.logs: dict[PartitionKey, Log] = {}
        self.topic_ids: dict[PartitionKey, UUID] = {}
        self.damaged: dict[PartitionKey, UUID | None] = {}
        """Logs that are not in use because flushed data is damaged, with their topics' ids; the id is None
        when the identity itself is damaged."""
        # logs that could not be opened at the start, for any reason, and which
        self.unusable: dict[PartitionKey, str] = {}
        self.previous_broker_epoch: int | None = None
        """Broker epoch of the last clean stop; None when the last stop was unclean (KIP-966)."""
        self.on_offline: Callable[[LogDirectory, OSError], None] | None = None
        self.make_room: Callable[[Path], None] = lambda _folder: None  # see `DataFolders`
        self.progress = OpeningProgress()
        # from `DataFolders`: logs that a move left in several folders
        self.verdicts: dict[PartitionKey, Verdict] = {}
        # a log is about to be truncated
        self.on_truncation: Callable[[PartitionKey, int], None] = lambda _key, _offset: None
        # to be called once, when no flush of the log runs
        self.after_flush: dict[PartitionKey, Callable[[], None]] = {}
        # one log is damaged, and offline; the others are not
        self.on_corrupt: Callable[[Log, CorruptLog], None] | None = None
        self._disk = disk
        self.files = OpenFiles(disk, options.files_max)
        self._lock: FileLock | None = None
        self._offline: OSError | None = None
        self.notes = FolderNotes(disk, path, self.disk_failed)
        self._options = options
        self._loader = LogLoader(disk, path, self.files, self.notes, options)
        self._configs = PendingConfigs(disk, self.logs, self.disk_failed)
        self.renamed_folders = RenamedFolders(
            disk, path, self.notes, options.file_deleter, lambda: self.make_room(self.path)
        )
        self._being_made: set[PartitionKey] = set()
        self._read_errors = ReadErrors(options.now_s)
        self._deferred = DeferredOpen(partial(self._loader.open_found, clean=False), self.notes.lower)

    # ---- opening -------------------------------------------------------------------------------------------

    def open_all(self, config_of: Callable[[str], LogConfig] | None = None, *, now_ms: int) -> OpenReport:
        """Takes the folder (made when absent) and opens every log in it, with the configuration that it had
        last.  Logs of a folder that does not know it take `config_of(topic)`, or the defaults.

        A log whose flushed data is damaged is left closed and reported in `failed`; the others are
        unaffected. Raises DirectoryRefused, OSError.
        """
        self._disk.make_directory(self.path)
        self._take_lock()
        try:
            own = {"cluster.id": self.cluster_id, "node.id": str(self.node_id)}
            holds_logs = any(parse_name(name) for name in self._disk.list_names(self.path))
            self.directory_id = claim_folder(
                self._disk, self.path, own, self.directory_id, holds_logs=holds_logs
            )
            report = OpenReport()
            self.previous_broker_epoch = self._take_clean_mark()
            report.clean = self.previous_broker_epoch is not None
            self.notes.read()
            names = self._disk.list_names(self.path)
            self.renamed_folders.remove_leftovers(names)
            found = [
                entry
                for name in self._disk.list_names(self.path)
                if (entry := self._find_entry(name, config_of, report)) is not None
            ]
            if len(self._disk.list_names(self.path)) < len(names):
                # leftovers of interrupted creations and deletions do not come back
                self._disk.sync_directory(self.path)
            self._open_found(found, report)
            self.notes.begin(self._identities_here())
        except BaseException:
            self._release()
            raise
        log.info("log_directory_opened", path=self.path, logs=report.opened, clean=report.clean,
            recovered=len(report.recovered),
                 truncated_bytes=report.truncated_bytes, failed=len(report.failed))  # fmt: skip
        return report

    def _identities_here(self) -> Iterable[Identity]:
        """The logs whose flushes may be noted; all known ones when a log in the folder has an unknown
        identity."""
        here = {**self.topic_ids, **self.damaged}
        known = [identity_of(topic_id, key[1]) for key, topic_id in here.items() if topic_id is not None]
        return [*known, *self._deferred.identities()] if len(known) == len(here) else self.notes.claims

    def _take_lock(self) -> None:
        try:
            self._lock = self._disk.lock(self.path / ".lock")
        except BlockingIOError:
            raise DirectoryRefused(f"the data folder {self.path} is in use by another process") from None

    def _take_clean_mark(self) -> int | None:
        path = self.path / CLEAN_SHUTDOWN
        if not self._disk.exists(path):
            return None
        try:
            epoch = parse_value(self._disk.read(path), int)
        except CheckpointInvalid as error:
            log.warning("clean_shutdown_mark_damaged", path=path, reason=error)
            epoch = None
        self._disk.remove(path)
        self._disk.sync_directory(self.path)
        return epoch

    def _find_entry(
        self, name: str, config_of: Callable[[str], LogConfig] | None, report: OpenReport
    ) -> FoundLog | None:
        key = parse_name(name)
        if key is None or not self._is_log(key, report):
            return None
        found = inspect_log_folder(self._disk, self.path / name, key, config_of)
        if found is None:
            # The creation was interrupted before the partition got its identity: no record in it can have
            # been acknowledged.
            log.warning("partition_without_identity_removed", path=self.path / name)
            self._disk.remove_tree(self.path / name)
            return None
        if isinstance(found, UnusableLog):
            self.damaged[key] = found.topic_id
            self._count_read_error(key, found.reason)
            self._not_opened(key, found.reason, report)
            return None
        return found

    def _is_log(self, key: PartitionKey, report: OpenReport) -> bool:
        """Whether the folder is the log itself and not, for example, the future replica of a log in another
        folder (`moving`)."""
        match self.verdicts.get(key):
            case Verdict.REMOVE | Verdict.FUTURE:
                pass  # `DataFolders` sees to it when all folders are open
            case Verdict.HOLD:
                why = "it was about to move to another data folder, or from it, and that one is not here"
                self._not_opened(
                    key, KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.path_of(key)}: {why}"), report
                )
            case _:
                return True
        return False

    def _not_opened(self, key: PartitionKey, error: KafkaError, report: OpenReport) -> None:
        report.failed[key] = error
        self.unusable[key] = str(error)
        log.error("log_not_opened", log=f"{key[0]}-{key[1]}", reason=error)

    def _open_found(self, found: list[FoundLog], report: OpenReport) -> None:
        results = self._loader.open_all(found, clean=report.clean, progress=self.progress)
        for entry, loaded in zip(found, results, strict=True):
            result = self._deferred.put(entry, loaded) if isinstance(loaded, OSError) else loaded
            if isinstance(result, Log):
                result = self._deferred.lower_noted_start(entry, result)
            if isinstance(result, Log):
                self.adopt(entry.key, entry.topic_id, result)
                report.opened += 1
                report.truncated_bytes += result.recovery_truncated_bytes
                if result.recovered:
                    report.recovered.append(result.name)
                continue
            if isinstance(result, CorruptLog):
                self._note_damage(entry.key, entry.topic_id, result)
            self._not_opened(entry.key, result, report)
        if self._offline is not None:
            raise self._offline

    def _open_deferred(self, key: PartitionKey, topic_id: UUID) -> Log:
        """Raises KAFKA_STORAGE_ERROR."""
        try:
            opened = self._deferred.open(key)
        except OSError as error:
            self.disk_failed(error)
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"{self.path_of(key)} could not be opened: {error}"
            ) from error
        except CorruptLog as error:
            self._deferred.forget(key)
            self.unusable[key] = str(error)
            self._note_damage(key, topic_id, error)
            raise
        del self.unusable[key]
        self.adopt(key, topic_id, opened)
        return opened

    def adopt(self, key: PartitionKey, topic_id: UUID, opened: Log) -> None:
        """The log is in use here from now on."""
        identity = identity_of(topic_id, key[1])
        opened.local.attach(
            LogHooks(
                went_offline=partial(self._log_failed, opened),
                config_changed=partial(self._configs.note, opened),
                flushed=partial(self._note_flush, identity, key),
                before_truncation=partial(self._before_truncation, identity, key),
                make_room=lambda: self.make_room(self.path),
                in_background=self.renamed_folders.in_background,
            )
        )
        self.logs[key] = opened
        self.topic_ids[key] = topic_id
        self.notes.open(identity, key)

    def release(self, key: PartitionKey) -> None:
        """This folder gives the log up; the log's files stay under their name."""
        self.logs.pop(key).local.attach(DETACHED)
        del self.topic_ids[key]
        self._configs.forget(key)

    def _before_truncation(self, identity: Identity, key: PartitionKey, offset: int) -> None:
        self.make_room(self.path)
        self.on_truncation(key, offset)
        self.notes.before_truncation(identity, key, offset)

    def path_of(self, key: PartitionKey) -> Path:
        return self.path / f"{key[0]}-{key[1]}"

    # ---- partitions come and go ----------------------------------------------------------------------------

    def create(
        self, topic: str, topic_id: UUID, partition: int, config: LogConfig, *, now_ms: int = 0
    ) -> Log:
        """`begin_creation` of one log, waiting for the disk.  Raises KAFKA_STORAGE_ERROR."""
        return self.begin_creation([NewLog(topic, topic_id, partition, config)], now_ms=now_ms).now(
            (topic, partition)
        )

    def begin_creation(self, wanted: Iterable[NewLog], *, now_ms: int) -> Creation:
        """New, empty logs, or the existing ones of these very topics.  See `creation.py` for the rest.

        A folder left by another topic of the same name is removed first: it was deleted while this node was
        away. Raises KAFKA_STORAGE_ERROR when nothing can be made at all.
        """
        self._require_online()
        results: Results = {}
        missing: list[NewLog] = []
        for new in wanted:
            try:
                if (existing := self._existing(new)) is None:
                    missing.append(new)
                else:
                    results[new.key] = existing
            except KafkaError as error:
                results[new.key] = error
        try:
            for new in missing:
                # Notes of a log of this name that was deleted on a full disk, or of this log, whose folder
                # was moved away.
                self.notes.forget([new.key], identity_of(new.topic_id, new.partition))
        except OSError as error:
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"no log can be created in {self.path}: {error}"
            ) from error
        self._being_made |= {new.key for new in missing}

        def open_log(new: NewLog) -> Log:
            return self._loader.open(new.key, new.config, clean=False)

        creation = Creation(results)
        creation.add(
            FolderShare(
                self._disk,
                self.path,
                missing,
                open_log=open_log,
                adopt_created=partial(self._adopt_created, missing),
            )
        )
        return creation

    def _existing(self, new: NewLog) -> Log | None:
        """The log when it exists.  Raises KAFKA_STORAGE_ERROR when another file or log has its place."""
        path = self.path_of(new.key)
        if self.topic_id_of(*new.key) not in (None, new.topic_id):
            self.delete(*new.key)
        if new.key in self._deferred:
            return self._open_deferred(new.key, new.topic_id)
        if new.key in self._being_made:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{path.name} is being made")
        if new.key not in self.logs and self._disk.exists(path):
            # It could not be opened (damaged flushed data): silently starting afresh would hide the damage.
            why = self.unusable.get(new.key, "see the errors at the start")
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{path} exists and is not usable: {why}")
        return self.logs.get(new.key)

    def _adopt_created(self, wanted: Sequence[NewLog], results: Results) -> None:
        """The created logs are in use from here on; none when the folder went offline meanwhile."""
        for new in wanted:
            self._being_made.discard(new.key)
            made = results[new.key]
            if isinstance(made, KafkaError):
                if isinstance(made.__cause__, OSError):
                    self.disk_failed(made.__cause__)
            elif self._offline is not None:
                made.close(clean=False)
                results[new.key] = KafkaError(
                    ErrorCode.KAFKA_STORAGE_ERROR, f"{self.path} is offline: {self._offline}"
                )
            else:
                self.adopt(new.key, new.topic_id, made)

    def topic_id_of(self, topic: str, partition: int) -> UUID | None:
        """The topic id of the log here, in use or damaged."""
        return (
            self.topic_ids.get(key := (topic, partition))
            or self.damaged.get(key)
            or self._deferred.topic_id_of(key)
        )

    def delete(self, topic: str, partition: int) -> None:
        """Closes the log and removes its folder: first it loses its name, durably, then its content.  Also
        for unusable logs.

        `file_deleter` removes the content in its thread, when there is one.  The deletion must succeed on a
        full disk, because it frees room.  There the log's row of the checkpoint goes last, or with the next
        checkpoint; `create` makes no log of this name before.
        """
        self._require_online()
        key = (topic, partition)
        known = self.logs.pop(key, None)
        topic_id = self.topic_id_of(topic, partition)
        self.topic_ids.pop(key, None)
        self.damaged.pop(key, None)
        self._deferred.forget(key)
        self.unusable.pop(key, None)
        self._configs.forget(key)
        if known is not None:
            known.close(clean=False)
        path = self.path_of(key)
        if not self._disk.exists(path):
            return
        try:
            self.renamed_folders.delete(key, topic_id)
            self.notes.forget_if_room([key], None)
        except OSError as error:
            self.disk_failed(error)
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"{path.name} could not be deleted: {error}"
            ) from error

    def set_aside(self, topic: str, partition: int, *, now_ms: int = 0) -> None:
        """Renames the folder of a damaged log to `<n>-damaged` (`set_aside`), so that the partition can be
        fetched again.  Raises KAFKA_STORAGE_ERROR."""
        self._require_online()
        key = (topic, partition)
        assert key in self.damaged
        try:
            if self._disk.exists(self.path_of(key)):  # or else an operator moved it away
                note_set_aside(self._disk, self.path_of(key), now_ms, key)
                kept = self.renamed_folders.take_name_away(key, self.damaged[key], DAMAGED_SUFFIX)
                log.warning("damaged_log_set_aside", log=f"{topic}-{partition}", path=kept)
        except OSError as error:
            self.disk_failed(error)
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"{topic}-{partition} could not be set aside: {error}"
            ) from error
        del self.damaged[key]
        self.unusable.pop(key, None)
        known = self.logs.pop(key, None)
        self.topic_ids.pop(key, None)
        if known is not None:
            known.close(clean=False)

    def _note_flush(self, identity: Identity, key: PartitionKey, end_offset: int) -> None:
        if self._offline is None:
            try:
                self.notes.note_flush(identity, end_offset)
            except OSError as error:
                self.go_offline(error)
        if key in self.after_flush:
            self.after_flush.pop(key)()

    def sync_notes(self) -> None:
        """Makes the notes of flushes durable; any thread.  Raises OSError, which the caller passes to
        `disk_failed`."""
        if self._offline is None:
            self.notes.sync()

    # ---- checkpoints ---------------------------------------------------------------------------------------

    def write_checkpoints(self) -> None:
        """Writes recovery points, high watermarks and log starts of all logs, atomically.  Raises OSError
        (the old one stays)."""
        if self._offline is not None:
            return
        self._configs.write()
        for each in list(self.logs.values()):  # a swap may follow (`after_flush`)
            if each.recovery_point < each.flushed_end_offset and not each.is_offline:
                # a roll has brought the recovery point down: the checkpoint will know less than the last
                each.report_flushed()
        self.notes.write(
            {
                key: PartitionCheckpoint(
                    recovery_point=each.recovery_point,
                    high_watermark=each.high_watermark,
                    log_start_offset=each.log_start_offset,
                )
                for key, each in self.logs.items()
                if not each.is_offline
            }
        )

    # ---- failing -------------------------------------------------------------------------------------------

    @property
    def log_count(self) -> int:
        """The logs that have their place here, in use or not."""
        return len(self.logs.keys() | self.damaged.keys() | self.unusable.keys() | self._being_made)

    @property
    def is_offline(self) -> bool:
        return self._offline is not None

    def _log_failed(self, failed: Log, error: OSError | CorruptLog) -> None:
        if isinstance(error, OSError):
            self.go_offline(error)
            return
        key = (failed.topic, failed.partition)
        self._note_damage(key, self.topic_ids[key], error)
        if self.on_corrupt is not None:
            self.on_corrupt(failed, error)

    def _note_damage(self, key: PartitionKey, topic_id: UUID, error: CorruptLog) -> None:
        """Notes the damage beside the log.  The folder goes offline when the disk fails to write the note, or
        when read errors in several logs show that the disk dies."""
        self.damaged[key] = topic_id
        try:
            self._disk.write_atomic(self.path_of(key) / DAMAGED, str(error).encode())
        except OSError as second:
            log.error("damage_not_noted", path=self.path_of(key), reason=second)
            moved_away = not self._disk.exists(self.path_of(key)) and self._disk.exists(
                self.path / META_PROPERTIES
            )
            if second.errno not in OUT_OF_SPACE and not moved_away:
                self.go_offline(second)
        self._count_read_error(key, error)

    def _count_read_error(self, key: PartitionKey, error: KafkaError) -> None:
        cause = error.__cause__
        if isinstance(cause, ReadFailed) and self._read_errors.is_dying(key):
            self.go_offline(cause)

    def disk_failed(self, error: OSError) -> None:
        """A failed sync is never retried; for errors of the disk itself the folder goes offline."""
        if error.errno in DISK_FAILED:
            self.go_offline(error)

    def go_offline(self, error: OSError) -> None:
        """The disk cannot be trusted: all logs refuse every request from here on."""
        if self._offline is not None:
            return
        self._offline = error
        log.error("log_directory_offline", path=self.path, logs=len(self.logs), reason=error)
        for each in list(self.logs.values()):
            each.go_offline(error)
        if self.on_offline is not None:
            self.on_offline(self, error)

    def opening_failed(self, error: OSError) -> None:
        """The folder could not be opened: none of its logs is in use."""
        seen = set(self.logs)
        self.logs.clear()
        self.topic_ids.clear()
        self.damaged.clear()
        self.previous_broker_epoch = None
        try:
            seen |= {
                key for name in self._disk.list_names(self.path) if (key := parse_name(name)) is not None
            }
        except OSError as second:
            log.warning("data_folder_cannot_be_listed", path=self.path, reason=second)
        self.unusable |= dict.fromkeys(seen, str(error))
        self.go_offline(error)

    def _require_online(self) -> None:
        if self._offline is not None:
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"the data folder {self.path} is offline: {self._offline}"
            )

    # ---- the end -------------------------------------------------------------------------------------------

    def close(self, *, clean: bool, broker_epoch: int = -1) -> None:
        """Closes all logs.  `clean`: the next start needs no recovery; `clean-shutdown` is written only when
        every log closed cleanly.

        Raises KAFKA_STORAGE_ERROR or OSError when a clean close was not possible; all logs are closed even
        so.
        """
        failure: KafkaError | OSError | None = self._offline
        if self._deferred:  # these logs were not opened in this life of the node
            failure = failure or KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"there was no room to open all logs of {self.path}"
            )
        quiet = (
            [each for each in self.logs.values() if each.local.is_quiet]
            if clean and self._options.recovery_threads > 1
            else []
        )
        apart = set(quiet)
        for each in self.logs.values():
            if each not in apart:
                failure = failure or close_log(each, clean=clean)
        pool = partial(self._options.recovery_pool, max(CLOSING_THREADS, self._options.recovery_threads))
        failure = failure or close_in_threads(quiet, pool, self._log_failed)
        try:
            if clean and failure is None:
                self.write_checkpoints()
                self._disk.write_atomic(self.path / CLEAN_SHUTDOWN, encode_value(broker_epoch))
        finally:
            self._release()
        if clean and failure is not None:
            raise failure

    def _release(self) -> None:
        for each in self.logs.values():
            each.close(clean=False)
        self.notes.close()
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.release()
