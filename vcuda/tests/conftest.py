from pathlib import Path

import pytest
from node import Node


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)
