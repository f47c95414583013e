"""`backburner doctor`: numbered checks from Python to the worker, each with what to do when it fails."""
