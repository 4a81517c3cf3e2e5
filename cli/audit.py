"""`retold audit`: the structural, reward and replay audits of one dataset, joined."""

from collections.abc import Iterator
from dataclasses import dataclass

from retold.dataset.paths import DatasetPath
from retold.schemas.errors import DatasetError, UsageError
from retold.schemas.findings import Finding


@dataclass(frozen=True, kw_only=True)
class AuditConfig:
    """What `retold audit` is asked."""

    dataset: DatasetPath
    """Dataset to check, or a snapshot (`DATASET@12`). It is never written to."""
    replay: bool = False
    """Also replay stored episodes in their environment and compare every observation, reward and
    goal event."""
    episodes: int | None = None
    """Replay only this many episodes, spread evenly over the dataset; none means all of them."""

    def __post_init__(self) -> None:
        if self.episodes is not None and self.episodes < 1:
            raise UsageError(f"--episodes is {self.episodes}, but at least 1 can be replayed.")
        if self.episodes is not None and not self.replay:
            raise UsageError("--episodes says how many episodes to replay. Give --replay as well.")


@dataclass(frozen=True, kw_only=True)
class AuditResult:
    """All that the audits found."""

    dataset: str
    episodes: int
    """Episodes in the dataset's newest snapshot."""
    replayed: int
    """Episodes replayed."""
    findings: tuple[Finding, ...]

    def describe(self) -> str:
        """One line for each finding, and the verdict."""
        lines = [f"{finding.severity}: {finding}" for finding in self.findings]
        warnings = len(self.findings) - self.errors
        counts = f"{_count(self.errors, 'error')}, {_count(warnings, 'warning')}"
        checked = _count(self.episodes, "episode")
        if self.replayed:
            checked += f", {self.replayed:,} of them replayed"
        verdict = "damaged" if self.errors else "clean"
        return "\n".join([*lines, f"{self.dataset}: {verdict} ({checked}; {counts})"])

    @property
    def errors(self) -> int:
        """Findings that fail the audit."""
        return sum(finding.severity == "error" for finding in self.findings)

    @property
    def exit_status(self) -> int:
        """1 if anything is wrong, otherwise 0."""
        return int(self.errors > 0)


def audit_dataset(config: AuditConfig) -> AuditResult:
    """Everything that is off in a dataset.

    Raises:
        RetoldError: there is no dataset to audit.
    """
    from retold.dataset.audit import audit_structure
    from retold.dataset.log import CommitLog
    from retold.relabel.audit import audit_rewards

    if CommitLog.open(config.dataset).head() is None:  # made, and nothing committed yet
        return AuditResult(dataset=str(config.dataset), episodes=0, replayed=0, findings=())
    findings = list(audit_structure(config.dataset))
    episodes = replayed = 0
    is_readable = all(finding.severity != "error" for finding in findings)
    if is_readable:  # a damaged file would be reported again by each later audit
        findings += audit_rewards(config.dataset)
        episodes = _count_episodes(config.dataset)
    if is_readable and config.replay:
        for finding in _replay(config):
            replayed += 1
            if finding is not None:
                findings.append(finding)
    return AuditResult(
        dataset=str(config.dataset),
        episodes=episodes,
        replayed=replayed,
        findings=tuple(findings),
    )


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _count_episodes(path: DatasetPath) -> int:
    from retold.dataset.reader import DatasetReader

    with DatasetReader.open(path) as reader:
        return len(reader)


def _replay(config: AuditConfig) -> Iterator[Finding | None]:
    import numpy as np

    from retold.collect.replay import replay_episode
    from retold.dataset.reader import DatasetReader

    with DatasetReader.open(config.dataset) as reader:
        if any(task.is_imported for task in reader.schema.tasks):
            raise DatasetError(
                f"{config.dataset}: its episodes were imported, and there is no task to replay them "
                f"in. Audit without --replay."
            )
        count = min(config.episodes or len(reader), len(reader))
        for row in np.linspace(0, len(reader) - 1, count).round().astype(int).tolist():
            episode = reader.read_episode(row)
            yield replay_episode(episode, reader.schema.tasks[episode.record.task])
