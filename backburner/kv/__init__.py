"""Pages of K and V of one sequence: where each one lives and how it moves."""
