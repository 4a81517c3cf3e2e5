"""Datasets of every released format version still read the same, and their files fit the JSON Schemas."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from golden_dataset import read_all
from golden_policy import SCHEMA as POLICY_SCHEMA
from golden_policy import act_golden
from read_with_zarr import read_arrays

from retold.dataset.audit import audit_structure
from retold.dataset.reader import DatasetReader
from retold.policy.architecture import ArchitectureConfig
from retold.policy.network import Policy
from retold.policy.snapshot import encode_snapshot, load_snapshot
from retold.relabel.audit import audit_rewards
from retold.schemas.canonical import sha256_hex
from retold.tasks.registry import task_schema

ROOT = Path(__file__).parents[1]
GOLDEN = ROOT / "tests" / "golden" / "v1"
FILES = {
    "dataset": sorted(GOLDEN.glob("*/dataset.json")),
    "commit": sorted(GOLDEN.glob("*/commits/*.json")),
    "manifest": sorted(GOLDEN.glob("*/shards/*/*/manifest.json")),
    "dataset_schema": sorted(GOLDEN.glob("*/schemas/*.json")),
}


def validator(name: str) -> Any:
    content = json.loads((ROOT / "schemas" / f"{name}.schema.json").read_bytes())
    jsonschema.Draft202012Validator.check_schema(content)
    return jsonschema.Draft202012Validator(content)


@pytest.mark.parametrize("name", ["raw", "retold"])
def test_the_golden_dataset_reads_to_the_same_values(name: str) -> None:
    expected = json.loads((GOLDEN / "expected.json").read_bytes())[name]
    assert len(expected) >= 4
    assert read_all(GOLDEN / name) == expected
    assert audit_structure(GOLDEN / name) == [] and audit_rewards(GOLDEN / name) == []


def test_the_golden_imported_dataset_reads_to_the_same_values() -> None:
    expected = json.loads((GOLDEN / "expected_imported.json").read_bytes())
    assert len(expected) == 3
    assert read_all(GOLDEN / "imported") == expected
    assert audit_structure(GOLDEN / "imported") == []


@pytest.mark.parametrize("name", ["raw", "imported"])
def test_zarr_python_finds_the_values_that_the_direct_reader_finds(name: str) -> None:
    expected = {}
    with DatasetReader.open(GOLDEN / name) as reader:
        for entry in reader.shards:
            shard = reader.shard_reader(entry.shard_id)
            for file in shard.files:
                folder, _, last = file.removeprefix("arrays/").rpartition("/")
                metadata = shard.path / file
                if last != "zarr.json" or json.loads(metadata.read_bytes())["node_type"] != "array":
                    continue
                rows = shard.array(folder).read_all()
                values = [rows.dtype.str, list(rows.shape), sha256_hex(rows.tobytes())]
                expected[f"shards/{entry.shard_id[:2]}/{entry.shard_id}/arrays/{folder}"] = values
    assert expected and read_arrays(GOLDEN / name) == expected


@pytest.mark.parametrize("name", FILES)
def test_written_files_fit_their_schema(name: str) -> None:
    assert len(FILES[name]) >= 2
    check = validator(name)
    for path in FILES[name]:
        content = json.loads(path.read_bytes())
        check.validate(content)
        for key in content:
            less = {k: v for k, v in content.items() if k != key}
            assert not check.is_valid(less), f"{path}: {key} is not required"


@pytest.mark.parametrize("task", ["crafter", "maze", "tmaze"])
def test_a_policy_and_the_schemas_of_every_task_fit(task: str) -> None:
    schema = task_schema(task, {})
    validator("dataset_schema").validate(json.loads(schema.encoded))
    policy = Policy(schema, ArchitectureConfig(model_width=16, layers=1, heads=2), (0.9,), 0.9)
    files = encode_snapshot(policy, update=1)
    validator("policy").validate(json.loads(files["policy.json"]))


@pytest.mark.parametrize("version", [1, 2])
def test_the_golden_policies_act_as_they_did(version: int) -> None:
    folder = ROOT / "tests" / "golden" / f"policy-v{version}"
    content = json.loads((folder / "policy.json").read_bytes())
    assert content["policy_version"] == version
    validator("policy").validate(content)
    policy, description = load_snapshot(folder)
    assert (description.update, policy.schema) == (7, POLICY_SCHEMA)
    expected = json.loads((folder / "expected.json").read_bytes())["chances"]
    # Other machines take sums in another order.
    np.testing.assert_allclose(act_golden(folder), expected, atol=1e-5)
    assert np.ptp(expected, axis=0).min() > 0.02, "steps that all look alike show nothing"
