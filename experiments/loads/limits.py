"""What a request of a load can be at most; more is a slip, and would fill the memory."""

from typing import Final

MOST_TOKENS: Final = 10**7
"""Of a prompt, of an answer, and of a piece of a prompt."""

MOST_PRIORITY: Final = 2**31 - 1
LEAST_PRIORITY: Final = -(2**31)
