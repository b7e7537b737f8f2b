from engine.prefix_log import PrefixLog


def test_what_came_and_went_in_between_is_not_told() -> None:
    """Fault: a log that nobody reads grows for ever, or says of a block both that it is there
    and that it is gone."""
    log = PrefixLog()
    log.stored(1)
    log.stored(2)
    log.removed(1)
    assert log.take() == ([2], [])
    log.removed(2)
    log.stored(2)
    assert log.take() == ([], [])
    for _ in range(3):
        log.removed(2)
        log.stored(3)
        log.stored(2)
        log.removed(3)
    log.removed(2)
    assert log.take() == ([], [2])
    assert log.take() == ([], [])
