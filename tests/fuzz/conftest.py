"""Lets the fuzz tests import the helpers next to the other tests."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
