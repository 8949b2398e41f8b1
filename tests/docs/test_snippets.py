"""Configuration in the documentation: deployment files load, everything else is well-formed."""

from __future__ import annotations

import configparser
import json
import tomllib
from pathlib import Path

import pytest
import yaml

from api.config.loading import load
from tests.docs.pages import Block, blocks, place


def is_deployment(block: Block) -> bool:
    return "\nversion: 1\n" in f"\n{block.text}"


@pytest.mark.parametrize("block", [each for each in blocks("yaml") if is_deployment(each)], ids=place)
def test_deployment_files_load(block: Block, tmp_path: Path) -> None:
    file = tmp_path / "deployment.yaml"
    file.write_text(block.text)
    assert load(file, environment={}).deployment.workers


@pytest.mark.parametrize("block", blocks("yaml"), ids=place)
def test_yaml_is_well_formed(block: Block) -> None:
    assert isinstance(yaml.safe_load(block.text), dict)


@pytest.mark.parametrize("block", blocks("json"), ids=place)
def test_json_is_well_formed(block: Block) -> None:
    assert isinstance(json.loads(block.text), dict)


@pytest.mark.parametrize("block", blocks("toml"), ids=place)
def test_toml_is_well_formed(block: Block) -> None:
    assert tomllib.loads(block.text)


@pytest.mark.parametrize("block", blocks("ini"), ids=place)
def test_units_are_well_formed(block: Block) -> None:
    parser = configparser.ConfigParser(interpolation=None, strict=True)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(block.text)
    assert set(parser.sections()) == {"Unit", "Service", "Install"}
