"""The text of a card (`README.md`) on the Hub: what is made from the data stands between two marks.

What people wrote above or below the marks is kept, and so is metadata that is none of Retold's.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from retold.dataset.hub_names import HUB_PROTOCOL
from retold.schemas.errors import DatasetError

BEGIN = (
    "<!-- retold: made from the data; every push replaces what stands from here to the end mark -->"
)
END = "<!-- retold: end -->"
_MARKED = re.compile(r"<!-- retold: made from the data.*?-->.*?<!-- retold: end -->", re.DOTALL)
_FRONT = re.compile(r"\A---\r?\n(.*?)\r?\n---[ \t]*(?:\r?\n|\Z)", re.DOTALL)
_LONGEST_CELL = 120
_CODE = re.compile(r"`[A-Za-z0-9_@:./-]+`")
"""A cell that is left as it is: nothing in it means anything."""


def write_card(
    repository: str,
    existing: str,
    metadata: Mapping[str, Any],
    sections: Iterable[str],
    *,
    kept: Sequence[str] = (),
) -> str:
    """A card with a new marked section.

    Args:
        repository: `OWNER/NAME`.
        existing: the card that is there.
        metadata: what the head of the card says; `tags` are added to those that are there, everything
            else replaces what has its name, and None removes it.
        sections: of the marked part, in Markdown.
        kept: names of metadata that stay as they are where they are there.

    Raises:
        DatasetError: the metadata of the existing card cannot be read.
    """
    import yaml

    known, text = split_card(existing, f"{HUB_PROTOCOL}://{repository}")
    generated = "\n\n".join([BEGIN, *sections, END])
    if _MARKED.search(text):
        text = _MARKED.sub(lambda _: generated, text, count=1)
    else:
        title = repository.partition("/")[2]
        heading = "" if re.search(r"^# ", text, re.MULTILINE) else f"# {title}\n\n"
        text = f"{heading}{text.strip()}".strip() + f"\n\n{generated}\n"
    tags = known.get("tags")
    theirs = [tag for tag in tags if isinstance(tag, str)] if isinstance(tags, list) else []
    fields = {
        **known,
        **metadata,
        "tags": list(dict.fromkeys([*theirs, *metadata["tags"]])),
        **{name: known[name] for name in kept if name in known},
    }
    fields = {name: value for name, value in fields.items() if value is not None}
    head = yaml.safe_dump(fields, sort_keys=False, allow_unicode=True, width=1000)
    return f"---\n{head}---\n\n{text.strip()}\n"


def split_card(card: str, where: str) -> tuple[dict[str, Any], str]:
    """The metadata at the top of a card, and the text below.

    Raises:
        DatasetError: the metadata cannot be read.
    """
    import yaml

    match = _FRONT.match(card)
    if match is None:
        return {}, card
    try:
        metadata = yaml.safe_load(match[1])
    except (yaml.YAMLError, RecursionError) as error:
        raise DatasetError(
            f"{where}: the metadata between the `---` of its README.md is not YAML. Mend it there "
            f"first; nothing was sent."
        ) from error
    return (metadata if isinstance(metadata, dict) else {}), card[match.end() :]


def read_license(existing: str, where: str) -> str | None:
    """The licence that a card names."""
    found = split_card(existing, where)[0].get("license")
    return found if isinstance(found, str) and found else None


def cite(repository: str, kind: str, title: str, year: str) -> str:
    """A BibTeX entry.

    Args:
        repository: `OWNER/NAME`.
        kind: `datasets/`, or nothing for a model: what stands before it in its address.
        title: what is cited.
        year: of it.
    """
    owner, _, name = repository.partition("/")
    key = re.sub(r"[^a-z0-9]", "", f"{owner}{name}".lower())
    return f"""```bibtex
@misc{{{key},
  author = {{{owner}}},
  title = {{{name}: {title}}},
  year = {{{plain(year)}}},
  howpublished = {{\\url{{https://huggingface.co/{kind}{repository}}}}}
}}
```"""


def table_of_records(records: Sequence[Mapping[str, Any]]) -> str:
    """A row a record, a column for each name of the first."""
    header = list(records[0])
    rows = [[show_number(record.get(name)) for name in header] for record in records]
    return table([name.replace("_", " ") for name in header], rows)


def table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A Markdown table of plain cells; a name between backticks is left as it is."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(_cell(value) for value in line)} |" for line in lines)


def show_number(value: Any) -> Any:
    """A number for people; anything else as it is."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    return f"{value:,}" if isinstance(value, int) else f"{value:,.3f}".rstrip("0").rstrip(".")


def show_bytes(count: int) -> str:
    """A size for people."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:,.1f} {unit}"
    return f"{count} bytes"


def short(text: str) -> str:
    """A text cut to what a cell has room for."""
    return text if len(text) <= _LONGEST_CELL else f"{text[: _LONGEST_CELL - 1]}…"


def plain(text: str) -> str:
    """A text from the data, in which nothing means anything to Markdown or HTML."""
    text = " ".join(text.split()).replace("`", "'").replace("|", "\\|")
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    text = str(show_number(value))
    return text if _CODE.fullmatch(text) else plain(short(text))
