"""YAML that a person wrote."""

from __future__ import annotations

import pytest
import yaml

from fairgpu import yaml_text


@pytest.mark.parametrize("text", ["a: !!bool maybe", "a: !!timestamp x", "a: !!int ''", "a: !!float ''", "- !!bool []"])
def test_a_value_that_is_not_of_the_type_of_its_tag_is_an_error_of_yaml(text: str) -> None:
    for read in (yaml_text.load, yaml_text.load_all):
        with pytest.raises((yaml.YAMLError, ValueError)):
            read(text)
