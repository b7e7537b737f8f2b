"""What our packages log is where an operator looks for it."""

import logging

from ray.serve._private.constants import SERVE_LOGGER_NAME

from deployments.logs import PACKAGES, join_serve


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def test_every_package_logs_to_serve_once_and_at_the_level_that_was_set() -> None:
    """Serve writes its own logger's lines alone: the others' level was lost, or the line was."""
    file = Lines()
    serve = logging.getLogger(SERVE_LOGGER_NAME)
    serve.addHandler(file)
    try:
        for level in ("info", "warning", "info"):
            join_serve(level)
            for package in PACKAGES:
                logging.getLogger(f"{package}.some.module").info("%s at %s", package, level)
    finally:
        serve.removeHandler(file)
        for package in PACKAGES:
            logging.getLogger(package).setLevel(logging.NOTSET)
    assert file.lines == [f"{package} at info" for package in PACKAGES] * 2
