"""What pushing and pulling are asked, whether it is a dataset or a policy."""

from dataclasses import dataclass
from pathlib import Path

from retold.dataset.hub_branch import check_tag_name
from retold.dataset.hub_names import HubName, parse_hub_name, parse_hub_target


@dataclass(frozen=True, kw_only=True)
class PushFlags:
    """Flags of every push."""

    repository: str
    """Repository on the Hub, OWNER/NAME; made if there is none."""
    license: str | None = None
    """Licence, as the Hub abbreviates it, e.g. cc-by-4.0 or mit. Needed by the first push; later ones
    keep what the card says."""
    private: bool = False
    """Make a new repository private."""
    tag: str | None = None
    """Name of this release, e.g. v1. It never moves."""
    allow_paths: bool = False
    """Send although what goes along names home folders of this machine."""
    dry_run: bool = False
    """Only say what would be sent."""

    def __post_init__(self) -> None:
        parse_hub_target(self.repository)
        check_tag_name(self.tag)


@dataclass(frozen=True, kw_only=True)
class PullFlags:
    """Flags of every pull."""

    repository: str
    """Repository on the Hub, OWNER/NAME, or a release of it, OWNER/NAME@TAG."""
    output: Path | None = None
    """Folder that it goes to; none means NAME. It must not exist, or be what was pulled before."""

    def __post_init__(self) -> None:
        parse_hub_name(self.repository)

    @property
    def name(self) -> HubName:
        """The repository, and its revision."""
        return parse_hub_name(self.repository)

    @property
    def target(self) -> Path:
        """Where it goes."""
        return self.output or Path(self.name.repository.partition("/")[2])
