"""Lets the fuzz tests import the helpers of the other tests, wherever pytest is started."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
