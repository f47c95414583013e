"""How long to wait for a reply, from how long replies took: a frozen worker is noticed soon, a slow one kept."""

# Shorter waits would take a busy moment of a healthy worker for its end. Replies take milliseconds.
FLOOR_S = 1.0

# Times the slowest reply of late. A phone that gets hot slows to a half, a worker that also runs layers to a half of
# that.
MARGIN = 8.0

# The slowest reply of late fades by this per reply, so that one hiccup does not make the host patient for ever.
FADE = 0.98


class ReplyClock:
    """Deadlines for requests whose work is counted in any unit (FLOP, tokens), of one kind on one link."""

    def __init__(self, slowest_s_per_unit: float, first_s: float) -> None:
        """What to assume before anything was measured: the slowest worker worth waiting for, and a flat allowance."""
        self._first = (slowest_s_per_unit, first_s)
        self._s_per_unit: float | None = None
        self._flat_s = 0.0

    def deadline_s(self, units: float) -> float:
        """The longest to wait for a request of so many units."""
        per_unit, flat = self._first
        slowest = flat + units * per_unit
        if self._s_per_unit is None:
            return slowest
        # Never longer than before anything was measured: a hiccup of a second in a request of little work would be
        # hours in one of much.
        return max(FLOOR_S, min(slowest, MARGIN * (self._flat_s + units * self._s_per_unit)))

    def observe(self, units: float, seconds: float) -> None:
        """A reply has come."""
        self._s_per_unit = max((self._s_per_unit or 0.0) * FADE, seconds / max(units, 1.0))
        self._flat_s = max(self._flat_s * FADE, min(seconds, FLOOR_S / MARGIN))
