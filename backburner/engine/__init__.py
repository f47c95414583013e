"""The engine thread: queue, scheduler, runner and sampling."""
