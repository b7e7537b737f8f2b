"""TimeBudget: what one request may cost all others in time, at once and for each token."""


class OverBudget(Exception):
    """More time was spent than there was.

    Attributes:
        at_once_s, per_token_s: what is allowed.
    """

    def __init__(self, at_once_s: float, per_token_s: float) -> None:
        super().__init__(at_once_s, per_token_s)
        self.at_once_s = at_once_s
        self.per_token_s = per_token_s

    def __str__(self) -> str:
        return (
            f"it takes more than {1000 * self.per_token_s:.0f} ms a token, "
            f"{1000 * self.at_once_s:.0f} ms beyond that"
        )


class TimeBudget:
    """A bucket of seconds: full at first, each token adds some, all work takes from it.

    Once it is overdrawn it stays so.
    """

    __slots__ = ("_at_once_s", "_left_s", "_per_token_s")

    def __init__(self, at_once_s: float, per_token_s: float) -> None:
        """Begin with a full bucket.

        Args:
            at_once_s: what it holds.
            per_token_s: what each token adds, which therefore is what a token may take on average.
        """
        self._at_once_s = at_once_s
        self._per_token_s = per_token_s
        self._left_s = at_once_s

    def add_token(self) -> None:
        """Grant what one more token may take."""
        if self._left_s >= 0:
            self._left_s = min(self._left_s + self._per_token_s, self._at_once_s)

    def spend(self, seconds: float) -> None:
        """Take from it.

        Raises:
            OverBudget: there was less, now or before.
        """
        if self._left_s >= 0:
            self._left_s -= seconds
        if self._left_s < 0:
            raise OverBudget(self._at_once_s, self._per_token_s)
