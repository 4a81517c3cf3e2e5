"""Tables and mappings that are off: one sentence each, and no dataset that pretends."""

from pathlib import Path
from typing import Any

import pytest
from made_up_tables import bring, steps

from retold.dataset.column_mapping import read_mapping
from retold.dataset.import_command import ImportConfig
from retold.dataset.reader import DatasetReader
from retold.schemas.errors import DatasetError, UsageError
from retold.schemas.spaces import DiscreteSpace


@pytest.mark.parametrize(
    ("changes", "fields", "words"),
    [
        ({}, {"observation": "obz"}, "column 'obz' is missing. Did you mean 'obs'"),
        ({}, {"observation": "obs.pose"}, r"column 'obs\.pose' is missing"),
        ({"r": [0.5, None, 0.1, 1.0, 2.0, 3.0]}, {}, "episode 'a': the reward of step 1 is null"),
        ({"act": [0, None, 1, 0, 0, 2]}, {}, "episode 'a': 'action' is null in step 1"),
        (
            {"obs": [[0.0, 1.0]] * 4 + [None, [0.0, 1.0]]},
            {},
            "'b': 'observation' is null in step 1",
        ),
        ({"obs": [[0.0, None]] * 6}, {}, "a list has a null in it"),
        ({"obs": [[0.0]] * 5 + [[0.0, 1.0]]}, {}, "not one length"),
        ({"done": [None, False, True, False, False, True]}, {}, "'terminated' is null in step 0"),
        ({"done": [True, False, True, False, False, True]}, {}, "set at step 0, before the last"),
        ({"done": ["no"] * 6}, {}, "'terminated' is object"),
        ({"r": ["1"] * 6}, {}, "'reward' is object"),
        ({"t": [0, 1, 3, 0, 1, 0]}, {}, "episode 'a': step 1 is followed by step 3"),
        ({"t": [0, 1, 1, 0, 1, 0]}, {}, "episode 'a': step 1 is there twice"),
        ({"ep": ["a", "a", "b", "a", "b", "c"]}, {}, "episode 'a' goes on in row 3"),
        ({"ep": ["a", "a", None, "b", "b", "c"]}, {}, "'ep' is null in row 2"),
        ({"ep": [[1]] * 6}, {}, "holds no numbers or text"),
        ({"ep": [float("nan")] * 6}, {}, "'ep' is nan in row 0"),
        ({"obs": [[[1.0], [2.0, 3.0, 4.0]]] * 6}, {}, "1 to 3 items, not one length"),
        ({"name": ["x"] * 6}, {"observation": ["r", "name"]}, "that make one vector"),
        ({"next": [[5.0, 5.0]] * 6}, {"next_observation": "next"}, "next_observation of step 0"),
        ({"act": [b"x"] * 6}, {}, "neither numbers nor text"),
        ({"act": [None] * 6}, {}, "no row with a value"),
        ({}, {"rows": "episodes"}, "'r' is no list"),
        ({}, {"episode": None, "terminated": False}, "nothing says where an episode ends"),
        ({key: [] for key in ("ep", "t", "obs", "act", "r", "done")}, {}, "no row with a value"),
    ],
)
def test_a_table_that_is_off_is_one_sentence(
    changes: dict[str, Any], fields: dict[str, Any], words: str, tmp_path: Path
) -> None:
    if "ep" in changes and not changes["ep"]:
        changes |= {"next": [], "colour": []}
    with pytest.raises(DatasetError, match=words) as caught:
        bring(tmp_path, steps(**changes), **fields)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x", "not TOML"),
        ("action = 'a'\n", "'observation' is missing"),
        (
            "observation = 'o'\naction = 'a'\nreward = 'r'\n",
            "'terminated' is missing.*true or false",
        ),
        ("observatoin = 'o'\n", "Did you mean 'observation'"),
        ("observation = 3\n", "is 3, but must be a column's name"),
        ("observation = []\n", "must be a column's name"),
        ("info = 'x'\n", "must be a table of columns"),
        ("rows = 'both'\n", "one of steps and episodes"),
        ("action_space = {type = 'round'}\n", "is no space"),
        ("action_space = {type = 'discrete'}\n", "'n' is missing"),
        ("action_space = {type = 'discrete', n = 'x', start = 0, dtype = 'int64'}\n", "no space"),
        ("action_space = {type = 'discrete', n = 3, start = 0, dtype = 'os'}\n", "no space"),
        ("action_space = {type = 'discrete', n = 300, start = 0, dtype = 'uint8'}\n", "no space"),
        ("split = 1\n", "must be a name in quotes"),
    ],
)
def test_a_mapping_that_is_off_is_one_sentence(text: str, words: str, tmp_path: Path) -> None:
    complete = "observation = 'obs'\naction = 'act'\nreward = 'r'\nterminated = 'done'\n"
    name = text.split(" ")[0]
    if name in ("observation", "info", "rows", "action_space", "split") and text.count("\n") == 1:
        text = "".join(x for x in complete.splitlines(True) if not x.startswith(name)) + text
    (tmp_path / "mapping.toml").write_text(text)
    with pytest.raises(UsageError, match=words) as caught:
        read_mapping(tmp_path / "mapping.toml")
    assert "\n" not in str(caught.value)


def test_flags_of_the_command_belong_together(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="needs --mapping"):
        ImportConfig(format="hf-dataset", source=tmp_path, dataset=tmp_path / "d")
    with pytest.raises(UsageError, match="is for hf-dataset, not hdf5"):
        ImportConfig(format="hdf5", source=tmp_path, dataset=tmp_path / "d", mapping=tmp_path)
    with pytest.raises(DatasetError, match="there is no Parquet file here"):
        bring_folder(tmp_path / "empty")


def bring_folder(folder: Path) -> None:
    (folder / "t.parquet").mkdir(parents=True)
    bring(folder, None)


def test_incomplete_episodes_are_let_go_and_counted_where_that_is_asked_for(
    tmp_path: Path,
) -> None:
    table = steps(act=[0, None, 1, 0, 0, 2])
    result = bring(tmp_path, table, incomplete="drop", next_observation="next")
    assert (result.episodes, result.steps, result.dropped_episodes) == (2, 3, 1)
    ragged = tmp_path / "ragged"
    ragged.mkdir()
    table = steps(obs=[[0.0, 1.0]] * 5 + [[0.0]])
    result = bring(ragged, table, incomplete="drop")
    assert (result.episodes, result.dropped_episodes) == (2, 1)


def test_given_spaces_are_believed_and_checked(tmp_path: Path) -> None:
    actions = {"type": "discrete", "n": 9, "start": 0, "dtype": "int64"}
    bring(tmp_path, steps(), action_space=actions)
    with DatasetReader.open(tmp_path / "d") as reader:
        assert reader.schema.action_space == DiscreteSpace(9)
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(DatasetError, match="action"):
        bring(other, steps(), action_space=actions | {"n": 2})
