"""Our log lines, in Serve's log files: by itself Serve writes only those of its own logger."""

import logging

from ray.serve._private.constants import SERVE_LOGGER_NAME

PACKAGES = ("deployments", "engine", "router")


class _ToServe(logging.Handler):
    """Hands records to Serve's logger, whose handlers change during a process's life."""

    def emit(self, record: logging.LogRecord) -> None:
        logging.getLogger(SERVE_LOGGER_NAME).handle(record)


def join_serve(level: str) -> None:
    """Write what our packages log where Serve logs; call it in a deployment's constructor."""
    for name in PACKAGES:
        logger = logging.getLogger(name)
        logger.setLevel(level.upper())
        if not any(isinstance(handler, _ToServe) for handler in logger.handlers):
            logger.addHandler(_ToServe())
