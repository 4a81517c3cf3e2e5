"""What the Hub's client raises, told in one line: what failed, and what to do."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from retold.schemas.errors import ConflictError, DatasetError, RetoldError

_TOKEN = re.compile(r"hf_[A-Za-z0-9]{8,}|(?i:bearer)\s+\S+")
_XET_STATUS = re.compile(r"HTTP status (?:client|server) error \((\d{3})\b")
"""How `hf_xet`, which sends large files, words what a server answered."""
_LOG_IN = "Log in with `hf auth login`, or set HF_TOKEN, then run the same command again"
_AGAIN = "Run the same command again; what was transferred is not transferred twice"


class HubBusyError(DatasetError):
    """The Hub or the way to it failed for now: asking again may help."""


@contextmanager
def telling_hub_errors(where: str) -> Iterator[None]:
    """Turn what the Hub's client raises into errors of ours.

    Args:
        where: the repository, or a file in it.

    Raises:
        DatasetError: the Hub refused; `ConflictError` if somebody else was faster, `HubBusyError` if
            asking again may help.
    """
    try:
        yield
    except (RetoldError, KeyboardInterrupt, AssertionError):
        raise
    except Exception as error:  # the client's own kinds, and those of the HTTP library below it
        told = tell_hub_error(where, error)
        if told is None:
            raise
        raise told from error


def without_tokens(text: str) -> str:
    """A text in which everything that looks like a token is blotted out."""
    return _TOKEN.sub("hf_***", text)


def is_passing(error: Exception) -> bool:
    """Whether something failed for now, so that asking again may help."""
    if isinstance(error, RetoldError):
        return isinstance(error, HubBusyError)
    return isinstance(tell_hub_error("", error), HubBusyError)


def tell_passing(error: Exception, seconds: float) -> str:
    """What failed for now, where it is asked again after a while."""
    told = error if isinstance(error, RetoldError) else tell_hub_error("the Hub", error)
    return f"{str(told).removesuffix(f' {_AGAIN}.')} Asking again in {seconds:g} s."


def tell_hub_error(where: str, error: BaseException) -> DatasetError | None:
    """What the Hub's client raised, in one line; None if that is a mistake of ours."""
    chain = list(_chain(error))
    names = {kind.__name__ for link in chain for kind in type(link).__mro__}
    status = next((code for link in chain if (code := _status(link)) is not None), None)
    if "RevisionNotFoundError" in names:
        return DatasetError(f"{where}: there is no such tag, branch or commit. Look at its tags.")
    if status == 401 or "LocalTokenNotFoundError" in names:
        return DatasetError(
            f"{where}: the Hub does not accept the login (401): there is none, it has expired, or "
            f"the repository is private. {_LOG_IN}."
        )
    if "RepositoryNotFoundError" in names:
        return DatasetError(
            f"{where}: there is no such repository, or it is private and the login may not see it. "
            f"Check the name. {_LOG_IN}."
        )
    if status == 404 and "/xet-write-token/" in str(chain[0]):
        return DatasetError(
            f"{where}: this Hub has no Xet store for large files. Set HF_HUB_DISABLE_XET=1 to send "
            f"them as LFS does, then run the same command again."
        )
    if "EntryNotFoundError" in names or status == 404:
        return DatasetError(f"{where}: the Hub has no such file. Its owner must push it again.")
    if status == 403:
        return DatasetError(f"{where}: the login may not do this (403). {_LOG_IN} as its owner.")
    if status == 412:
        return ConflictError(
            f"{where}: somebody else committed in the meantime (412). Nothing was changed; run "
            f"again to plan on what is there now."
        )
    if status is not None and (status in (408, 429) or status >= 500):
        return HubBusyError(f"{where}: the Hub fails for now (status {status}). {_AGAIN}.")
    if status is not None:
        return DatasetError(
            f"{where}: the Hub refuses this (status {status}): {_reason(chain)}. Nothing was changed."
        )
    if "OfflineModeIsEnabled" in names:
        return DatasetError(f"{where}: HF_HUB_OFFLINE forbids the network. Unset it.")
    if names & {"TransportError", "OSError", "DecodingError", "StreamError"}:
        return HubBusyError(
            f"{where}: the connection to the Hub broke ({type(chain[-1]).__name__}). {_AGAIN}."
        )
    if names & {"ValueError", "KeyError", "TypeError"}:
        return DatasetError(f"{where}: the Hub's answer is not understood: {_reason(chain)}.")
    return None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _status(error: BaseException) -> int | None:
    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(status, int):
        return status
    match = _XET_STATUS.search(str(error)) if isinstance(error, OSError) else None
    return None if match is None else int(match[1])


def _reason(chain: list[BaseException]) -> str:
    messages = (getattr(link, "server_message", None) for link in chain)
    text = next((message for message in messages if message), str(chain[0]))
    return without_tokens(" ".join(text.split()))[:200].rstrip(".") or "no reason given"
