"""An answer's text as thoughts, content and tool calls, and past ones as a template wants them; no IO."""
