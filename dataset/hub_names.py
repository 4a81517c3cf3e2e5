"""Names on the Hugging Face Hub: `OWNER/NAME`, `OWNER/NAME@TAG`, and `hf://` before either."""

import re
from dataclasses import dataclass

from retold.schemas.errors import UsageError

HUB_PROTOCOL = "hf"
_PART = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9])?"
_NAME = re.compile(rf"(?:hf://)?({_PART})/({_PART})(?:@([A-Za-z0-9][A-Za-z0-9._-]*))?")
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class HubName:
    """A repository, and a revision of it if one is named."""

    repository: str
    """`OWNER/NAME`."""
    revision: str | None = None
    """A tag, a branch or a commit; None: what `main` is now."""

    def __str__(self) -> str:
        at = "" if self.revision is None else f"@{self.revision}"
        return f"{HUB_PROTOCOL}://{self.repository}{at}"

    @property
    def is_pinned(self) -> bool:
        """Whether the revision is a commit, which never moves."""
        return self.revision is not None and is_commit(self.revision)


def is_commit(revision: str) -> bool:
    """Whether a revision is the whole id of a commit."""
    return _COMMIT.fullmatch(revision) is not None


def parse_hub_name(text: str) -> HubName:
    """The repository that a text names.

    Raises:
        UsageError: it names none.
    """
    match = _NAME.fullmatch(text)
    if match is None or ".." in text or "--" in text:
        raise UsageError(
            f"{text!r} names no repository on the Hub. Write OWNER/NAME or OWNER/NAME@TAG; letters, "
            f"digits, '.', '_' and '-' are allowed, '..' and '--' are not."
        )
    return HubName(f"{match[1]}/{match[2]}", match[3])


def parse_hub_target(text: str) -> HubName:
    """The repository that a text names to be written: without a revision.

    Raises:
        UsageError: it names none, or a revision of it.
    """
    name = parse_hub_name(text)
    if name.revision is not None:
        raise UsageError(
            f"{text!r}: a push goes to the main branch. Give {name.repository} alone, and a name for "
            f"the release with --tag."
        )
    return name
