"""`retold audit`: the structural, reward and replay audits of one dataset, joined."""

from dataclasses import dataclass

from retold.dataset.paths import DatasetPath
from retold.dataset.sources import SourceFlag
from retold.schemas.errors import UsageError
from retold.schemas.findings import Finding

ALL = "all"
"""As `--replay` takes it."""


@dataclass(frozen=True, kw_only=True)
class AuditConfig(SourceFlag):
    """What `retold audit` is asked."""

    dataset: DatasetPath
    """Dataset to check, or a snapshot (`DATASET@12`). It is never written to."""
    replay: str | None = None
    """Also replay this many stored episodes, spread evenly, or `all` of them, and compare every
    observation, reward, flag and goal event; none replays nothing."""
    workers: int | None = None
    """Processes that replay; none chooses: one a core, or none for few episodes."""

    def __post_init__(self) -> None:
        if self.replay not in (None, ALL) and not (self.replay.isdigit() and int(self.replay)):
            raise UsageError(f"--replay is {self.replay!r}. Give a number of episodes, or all.")
        if self.workers is not None and self.workers < 0:
            raise UsageError(f"--workers is {self.workers}, but must be at least 0.")

    @property
    def most_replays(self) -> int | None:
        """How many episodes are replayed; None for all."""
        return int(self.replay) if self.replay not in (None, ALL) else None


@dataclass(frozen=True, kw_only=True)
class AuditResult:
    """All that the audits found."""

    dataset: str
    episodes: int
    """Episodes in the dataset's newest snapshot."""
    replayed: int
    """Episodes replayed."""
    not_replayable: int = 0
    """Episodes that were to be replayed, but hold no seed."""
    findings: tuple[Finding, ...]

    def describe(self) -> str:
        """One line for each finding, and the verdict."""
        lines = [f"{finding.severity}: {finding}" for finding in self.findings]
        warnings = len(self.findings) - self.errors
        counts = f"{_count(self.errors, 'error')}, {_count(warnings, 'warning')}"
        checked = _count(self.episodes, "episode")
        if self.replayed:
            checked += f", {self.replayed:,} of them replayed"
        if self.not_replayable:
            checked += f", {self.not_replayable:,} without a seed to replay"
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
    moved = config.moved(config.dataset)
    findings = list(audit_structure(config.dataset, moved))
    episodes = replayed = not_replayable = 0
    is_readable = all(finding.severity != "error" for finding in findings)
    if is_readable:  # a damaged file would be reported again by each later audit
        findings += audit_rewards(config.dataset, moved)
        episodes = _count_episodes(config.dataset)
    if is_readable and config.replay is not None:
        from retold.collect.replay_audit import replay_dataset

        outcomes = sorted(
            replay_dataset(config.dataset, config.most_replays, config.workers, moved),
            key=lambda outcome: outcome.row,
        )
        findings += [outcome.finding for outcome in outcomes if outcome.finding is not None]
        replayed = sum(outcome.is_replayable for outcome in outcomes)
        not_replayable = len(outcomes) - replayed
    return AuditResult(
        dataset=str(config.dataset),
        episodes=episodes,
        replayed=replayed,
        not_replayable=not_replayable,
        findings=tuple(findings),
    )


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _count_episodes(path: DatasetPath) -> int:
    from retold.dataset.reader import DatasetReader

    with DatasetReader.open(path) as reader:
        return len(reader)
