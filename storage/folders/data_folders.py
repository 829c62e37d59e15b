"""All data folders of one node: where each log is, where a new log goes, and which logs a failed disk takes
offline.

* A new log goes to the usable folder with the fewest logs, the first of those when several have as few.
* A folder whose disk fails takes only its own logs offline; the other folders stay in use.  The same holds at
  the start, for errors of the disk; but the node may not know which logs that folder has, and a new log in
  another folder would look like one that lost nothing.  So every partition that the metadata assigns to this
  node at its start (`expect`), and that no other folder has, counts as one of the failed folder.  New topics
  go to the other folders.  Only a restart uses the folder again.  A full disk is not a failed one: its logs
  are opened and read (`recovery`).
* A folder of another node or cluster is refused, and so is a start without any folder, or without the
  `essential` one.
* When two folders have the same log, and no move between them explains it, the start fails: the node cannot
  know which one is right.
* A log moves to another folder of the node by `move_to` (KIP-113): a future replica is filled there, and
  takes its place (`moving`).  After a crash, `_judge_twins` decides between the two.  A folder that a client
  chooses before the log exists is remembered until the node stops.
* The identity that the node reports to the cluster (`directory_id`) follows from those of its folders
  (`folder_ids`).

The clean mark of a stop counts only when every folder has it, with the same broker epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from uuid import UUID

from ...runtime import logs
from ...runtime.disk import Disk
from ...wire.errors import ErrorCode, KafkaError
from ..directory.creation import Creation, NewLog
from ..directory.folder_notes import PartitionKey
from ..directory.log_directory import DirectoryRefused, LogDirectory, OpenReport, parse_name
from ..directory.log_loader import DEFAULT_OPTIONS, FolderOptions
from ..directory.move_state import (
    MoveState,
    TwinLogs,
    Verdict,
    read_move_state,
    resolve_twins,
    write_move_state,
)
from ..directory.opening_progress import OpeningProgress
from ..directory.set_aside import DamagedRetention, remove_old_damaged
from ..log.log import CorruptLog, Log, LogConfig
from ..moving.future_replica import FutureReplica
from .folder_ids import FolderIds

PREFERRED_MAX = 100_000
"""Bound on the logs that do not exist yet and for which a client chose a folder."""
log = logs.get(__name__)


class DataFolders:
    """See the module's text.  Call `open_all` once, then use `logs`."""

    def __init__(
        self,
        disk: Disk,
        paths: Sequence[Path],
        cluster_id: str,
        node_id: int,
        fresh_id: Callable[[], str],
        options: FolderOptions = DEFAULT_OPTIONS,
        *,
        essential: tuple[Path, str] | None = None,
    ) -> None:
        """`options` are for each folder, and their `file_deleter` serves all folders and is closed with them;
        `fresh_id` makes the id of a new folder.  `essential`: a folder without which the node cannot run, and
        why."""
        assert paths
        self._essential = essential
        self._failed: dict[Path, OSError] = {}
        self._lost: set[PartitionKey] = set()
        self._ids = FolderIds(disk, fresh_id)
        self._disk = disk
        self._file_deleter = options.file_deleter
        self.progress = OpeningProgress()
        self.folders = [LogDirectory(disk, path, cluster_id, node_id, fresh_id(), options) for path in paths]
        for folder in self.folders:
            folder.on_offline = self._folder_failed
            folder.on_corrupt = self._log_damaged
            folder.make_room = lambda path: self.make_room(path)
            folder.progress = self.progress
            folder.on_truncation = partial(self._before_source_truncation, folder)
        self.futures: dict[PartitionKey, FutureReplica] = {}
        """The future replicas of the logs that move to another folder."""
        self._preferred: dict[PartitionKey, LogDirectory] = {}
        self.on_offline: Callable[[LogDirectory, OSError], None] | None = None
        self.on_corrupt: Callable[[Log, CorruptLog], None] | None = None
        self.make_room: Callable[[Path], None] = lambda _folder: None
        """Called before a folder writes notes that must be durable before a log is truncated, deleted or set
        aside."""

    # ---- opening -------------------------------------------------------------------------------------------

    def open_all(self, config_of: Callable[[str], LogConfig] | None = None, *, now_ms: int) -> OpenReport:
        """Opens every folder and every log in it.  Raises DirectoryRefused, OSError; then all are closed."""
        self._judge_twins()
        report = OpenReport(clean=True)
        opened: list[LogDirectory] = []
        try:
            for folder in self.folders:
                part = self._open(folder, config_of, now_ms)
                if part is None:
                    report.clean = False
                    continue
                opened.append(folder)
                report.opened += part.opened
                report.clean = report.clean and part.clean
                report.recovered += part.recovered
                report.truncated_bytes += part.truncated_bytes
                report.failed |= part.failed
            ids = {folder.path: folder.directory_id for folder in opened}
            self._ids.settle(ids, failed_count=len(self._failed))
            self._resume_moves()
        except BaseException:
            for folder in opened:
                folder.close(clean=False)
            raise
        return report

    def _open(
        self, folder: LogDirectory, config_of: Callable[[str], LogConfig] | None, now_ms: int
    ) -> OpenReport | None:
        """None when its disk fails and the node can run without it."""
        try:
            if folder.path in self._failed:
                raise self._failed[folder.path]
            return folder.open_all(config_of, now_ms=now_ms)
        except OSError as error:
            self._failed[folder.path] = error
            if self._essential is not None and self._is_essential(folder):
                raise DirectoryRefused(
                    f"the data folder {folder.path} fails ({error}), and {self._essential[1]}: this "
                    "node cannot start without it"
                ) from error
            if len(self._failed) == len(self.folders):
                raise
            log.error(
                "data_folder_failed",
                path=folder.path,
                reason=error,
                consequence="its partitions are offline here until it works and the node is started again",
            )
            folder.opening_failed(error)
            return None

    def expect(self, assigned: Iterable[PartitionKey]) -> None:
        """The partitions that the metadata assigns to this node at its start."""
        if self._failed:
            self._lost = {key for key in assigned if self.folder_of(*key) is None}

    def _judge_twins(self) -> None:
        """Finds the logs that several folders have, or that are marked as moving, and decides what becomes of
        each (`move_state`)."""
        places: dict[PartitionKey, list[LogDirectory]] = {}
        seen: set[Path] = set()
        for folder in self.folders:
            if folder.path in seen:
                raise DirectoryRefused(f"the data folder {folder.path} is named twice")
            seen.add(folder.path)
            try:
                names = self._disk.list_names(folder.path) if self._disk.exists(folder.path) else []
            except OSError as error:
                self._failed[folder.path] = error
                continue
            for key in filter(None, map(parse_name, names)):
                places.setdefault(key, []).append(folder)
        self.progress.found = len(places)
        states = {key: self._move_states(key, folders) for key, folders in places.items()}
        for key, found in states.items():
            if not found or (len(found) == 1 and MoveState.CURRENT in found.values()):
                continue
            try:
                verdicts = resolve_twins(found, some_failed=bool(self._failed))
            except TwinLogs:
                where = [folder.path for folder in places[key]]
                raise DirectoryRefused(
                    f"the log {key[0]}-{key[1]} is in {where[0]} and in {where[1]}: which one is "
                    "right cannot be known here. "
                    "Move one of them away."
                ) from None
            for folder in places[key]:
                if folder.path in verdicts:
                    folder.verdicts[key] = verdicts[folder.path]

    def _move_states(self, key: PartitionKey, folders: Sequence[LogDirectory]) -> dict[Path, MoveState]:
        found = {}
        for folder in folders:
            if folder.path not in self._failed:
                try:
                    found[folder.path] = read_move_state(self._disk, folder.path_of(key))
                except OSError as error:
                    self._failed[folder.path] = error
        return found

    def _resume_moves(self) -> None:
        """What is settled now loses its mark, or goes, and moves that were interrupted go on.  Only now: all
        folders are known to be this node's.  Raises OSError when the node cannot do without the folder."""
        for folder in self.folders:
            if not folder.is_offline:
                try:
                    self._carry_out_verdicts(folder)
                except OSError as error:
                    if sum(not each.is_offline for each in self.folders) == 1 or self._is_essential(folder):
                        raise
                    folder.go_offline(error)
            folder.verdicts.clear()

    def _is_essential(self, folder: LogDirectory) -> bool:
        return self._essential is not None and folder.path == self._essential[0]

    def _carry_out_verdicts(self, folder: LogDirectory) -> None:
        """Raises OSError."""
        for key, verdict in folder.verdicts.items():
            if verdict is Verdict.USE_UNMARKED and not self._failed:
                write_move_state(self._disk, folder.path_of(key), MoveState.CURRENT)
            elif verdict is Verdict.REMOVE:
                origin = self.folder_of(*key)
                # or else it is perhaps the only one that can be read
                if origin is None or not origin.is_offline:
                    folder.renamed_folders.delete(key, None)
            elif verdict is Verdict.FUTURE:
                self._resume_move(key, folder)

    def _resume_move(self, key: PartitionKey, folder: LogDirectory) -> None:
        """Raises OSError."""
        origin = self.folder_of(*key)
        if origin is not None and origin.is_offline:
            return
        topic_id = None if origin is None else origin.topic_id_of(*key)
        if origin is None or topic_id is None:
            folder.renamed_folders.delete(key, None)
            return
        # What the copy has above the end of the log, the log has lost: others may come in its place.
        found = origin.logs.get(key)
        self._begin_move(key, topic_id, origin, folder).source_truncated(
            0 if found is None else found.log_end_offset
        )

    @property
    def directory_id(self) -> str:
        """The node's identity (`folder_ids`)."""
        return self._ids.directory_id

    @property
    def previous_broker_epoch(self) -> int | None:
        """Broker epoch of the last clean stop; None when any folder was not closed cleanly in it
        (KIP-966)."""
        epochs = {folder.previous_broker_epoch for folder in self.folders}
        return epochs.pop() if len(epochs) == 1 else None

    # ---- look-ups ------------------------------------------------------------------------------------------

    @property
    def logs(self) -> dict[PartitionKey, Log]:
        """Every log of every folder; a new dict."""
        return {key: each for folder in self.folders for key, each in folder.logs.items()}

    @property
    def topic_ids(self) -> dict[PartitionKey, UUID]:
        return {key: topic_id for folder in self.folders for key, topic_id in folder.topic_ids.items()}

    @property
    def damaged(self) -> dict[PartitionKey, UUID | None]:
        return {key: topic_id for folder in self.folders for key, topic_id in folder.damaged.items()}

    @property
    def is_offline(self) -> bool:
        """Whether no folder is usable."""
        return all(folder.is_offline for folder in self.folders)

    @property
    def offline_folders(self) -> list[Path]:
        return [folder.path for folder in self.folders if folder.is_offline]

    def folder_of(self, topic: str, partition: int) -> LogDirectory | None:
        """The folder that has this log, in use or not."""
        key = (topic, partition)
        for folder in self.folders:
            if key in folder.logs or key in folder.damaged or key in folder.unusable:
                return folder
        return None

    # ---- moves between the folders -------------------------------------------------------------------------

    def move_to(self, topic: str, partition: int, path: Path) -> FutureReplica | None:
        """Moves the log to this folder: starts the move or resumes it, and ends a move to another folder.
        None when the log is there already.  Raises LOG_DIR_NOT_FOUND, KAFKA_STORAGE_ERROR;
        REPLICA_NOT_AVAILABLE for a log that does not exist yet and will be made there."""
        key = (topic, partition)
        target = next((folder for folder in self.folders if folder.path.absolute() == path), None)
        if target is None:
            raise KafkaError(ErrorCode.LOG_DIR_NOT_FOUND, f"{path} is no data folder of this node")
        if target.is_offline:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"the data folder {path} is offline")
        future = self.futures.get(key)
        if future is not None and future.target is target:
            return future
        if future is not None:
            self.end_move(key)
        origin = self.folder_of(topic, partition)
        if origin is None:
            self._preferred.pop(key, None)
            self._preferred[key] = target
            if len(self._preferred) > PREFERRED_MAX:
                del self._preferred[next(iter(self._preferred))]
            raise KafkaError(
                ErrorCode.REPLICA_NOT_AVAILABLE, f"{topic}-{partition} is not here: it will be made in {path}"
            )
        if origin is target:
            return None
        if key not in origin.logs or origin.logs[key].is_offline:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{topic}-{partition} is offline")
        self._make_place(key, origin, target)
        return self._begin_move(key, origin.topic_ids[key], origin, target)

    def _make_place(self, key: PartitionKey, origin: LogDirectory, target: LogDirectory) -> None:
        try:
            if read_move_state(self._disk, origin.path_of(key)) is MoveState.STAYED:
                raise KafkaError(
                    ErrorCode.KAFKA_STORAGE_ERROR,
                    f"a move of {key[0]}-{key[1]} failed: restart the node first",
                )
            # this node does not know this folder; the next start finds out what it is
            if self._disk.exists(target.path_of(key)):
                raise KafkaError(
                    ErrorCode.KAFKA_STORAGE_ERROR, f"{target.path_of(key)} is in the way until a restart"
                )
        except OSError as error:
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"{key[0]}-{key[1]} cannot be moved: {error}"
            ) from error

    def _begin_move(
        self, key: PartitionKey, topic_id: UUID, origin: LogDirectory, target: LogDirectory
    ) -> FutureReplica:
        def ended() -> None:
            if self.futures.get(key) is future:
                del self.futures[key]

        future = self.futures[key] = FutureReplica(self._disk, key, topic_id, origin, target, ended)
        return future

    def end_move(self, key: PartitionKey) -> None:
        """Ends the move: the log stays where it is.  Waits for the disk.  Raises KAFKA_STORAGE_ERROR."""
        future = self.futures.get(key)
        if future is not None:
            future.cancel()

    def _before_source_truncation(self, folder: LogDirectory, key: PartitionKey, offset: int) -> None:
        future = self.futures.get(key)
        if future is not None and future.origin is folder:
            future.source_truncated(offset)

    # ---- partitions come and go ----------------------------------------------------------------------------

    def create(
        self, topic: str, topic_id: UUID, partition: int, config: LogConfig, *, now_ms: int = 0
    ) -> Log:
        """The log of this topic, made in the folder with the fewest when there is none.  Raises
        KAFKA_STORAGE_ERROR."""
        self._end_move_of_other(topic, partition, topic_id)
        folder = self._place_of((topic, partition), {})
        return folder.create(topic, topic_id, partition, config, now_ms=now_ms)

    def begin_creation(self, wanted: Iterable[NewLog], *, now_ms: int) -> Creation:
        """See `LogDirectory.begin_creation`."""
        shares: dict[LogDirectory, list[NewLog]] = {}
        counts: dict[LogDirectory, int] = {}
        creation = Creation()
        for new in wanted:
            try:
                self._end_move_of_other(new.topic, new.partition, new.topic_id)
                shares.setdefault(self._place_of(new.key, counts), []).append(new)
            except KafkaError as error:
                creation.results[new.key] = error
        for folder, share in shares.items():
            try:
                creation.absorb(folder.begin_creation(share, now_ms=now_ms))
            except KafkaError as error:
                creation.results.update((new.key, error) for new in share)
        return creation

    def _end_move_of_other(self, topic: str, partition: int, topic_id: UUID) -> None:
        """Ends the move of a log of another topic with this name, which is about to be removed."""
        future = self.futures.get((topic, partition))
        if future is not None and future.topic_id != topic_id:
            self.end_move(future.key)

    def _place_of(self, key: PartitionKey, counts: dict[LogDirectory, int]) -> LogDirectory:
        """The folder that has the log, or gets it; `counts`: the logs in each folder, as far as known.
        Raises KAFKA_STORAGE_ERROR."""
        folder = self.folder_of(*key)
        if folder is not None:
            return folder
        if key in self._lost:
            failed = ", ".join(f"{path} ({error})" for path, error in self._failed.items())
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"{key[0]}-{key[1]} may be in a data folder that failed: {failed}",
            )
        usable = [folder for folder in self.folders if not folder.is_offline]
        if not usable:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "every data folder is offline")
        preferred = self._preferred.pop(key, None)
        if preferred in usable:
            return preferred
        for folder in usable:
            if folder not in counts:
                counts[folder] = folder.log_count
        emptiest = min(usable, key=counts.__getitem__)
        counts[emptiest] += 1
        return emptiest

    def topic_id_of(self, topic: str, partition: int) -> UUID | None:
        """The topic id of the log here, in use or damaged."""
        folder = self.folder_of(topic, partition)
        return None if folder is None else folder.topic_id_of(topic, partition)

    def delete(self, topic: str, partition: int) -> None:
        """Deletes the future replica first, if there is one: without the log it has no meaning."""
        try:
            self.end_move((topic, partition))
        except KafkaError as error:  # its folder is offline now, and a start removes what is left there
            log.warning("future_replica_not_removed", log=f"{topic}-{partition}", reason=error)
        folder = self.folder_of(topic, partition)
        if folder is not None:
            folder.delete(topic, partition)

    def set_aside(self, topic: str, partition: int, *, now_ms: int = 0) -> None:
        """See `LogDirectory.set_aside`."""
        self.end_move((topic, partition))
        folder = self.folder_of(topic, partition)
        assert folder is not None
        folder.set_aside(topic, partition, now_ms=now_ms)

    def remove_old_damaged(self, now_ms: int, kept: DamagedRetention) -> None:
        """Removes logs that were set aside long ago, in all folders; any thread.  A failure is logged; the
        next call tries again."""
        for folder in self.folders:
            try:
                if not folder.is_offline:
                    remove_old_damaged(self._disk, folder.path, now_ms, kept)
            except OSError as error:
                log.warning("damaged_logs_not_removed", path=folder.path, reason=error)

    # ---- checkpoints ---------------------------------------------------------------------------------------

    def write_checkpoints(self) -> None:
        """Writes the checkpoint of every folder, also when one fails; raises that error afterwards."""
        failure: OSError | None = None
        try:
            self._ids.write()
        except OSError as error:
            failure = error
        for folder in self.folders:
            try:
                folder.write_checkpoints()
            except OSError as error:
                failure = failure or error
        if failure is not None:
            raise failure

    def _folder_failed(self, folder: LogDirectory, error: OSError) -> None:
        for future in [each for each in self.futures.values() if folder in (each.target, each.origin)]:
            future.close()
            try:
                # at a start without that folder, no other folder could show whether the move was decided
                future.stay()
            except KafkaError as second:
                log.warning("move_not_undone", log=future.name, reason=second)
        if self.on_offline is not None:
            self.on_offline(folder, error)

    def _log_damaged(self, damaged: Log, error: CorruptLog) -> None:
        if self.on_corrupt is not None:
            self.on_corrupt(damaged, error)

    def close(self, *, clean: bool, broker_epoch: int = -1) -> None:
        """Closes every folder.  Raises the first KAFKA_STORAGE_ERROR or OSError that kept one from closing
        cleanly."""
        if self._file_deleter is not None:
            self._file_deleter.close()
        failure: KafkaError | OSError | None = None
        for future in list(self.futures.values()):
            future.close()
            try:
                if clean:
                    future.stay()
            except KafkaError as error:
                failure = failure or error
        for folder in self.folders:
            try:
                folder.close(clean=clean, broker_epoch=broker_epoch)
            except (KafkaError, OSError) as error:
                failure = failure or error
        if failure is not None:
            raise failure
