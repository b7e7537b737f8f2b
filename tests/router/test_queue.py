from engine.rank import Rank
from router.queue import Entry, TicketQueue
from tests.router.fake_cluster import ticket


def _entry(ticket_id: str, urgency: int) -> Entry:
    return Entry(ticket(ticket_id), Rank(urgency, 0, 0), 0.0)


def test_the_smallest_rank_goes_first_and_a_cancelled_one_never() -> None:
    queue = TicketQueue()
    for ticket_id, urgency in (("late", 3), ("first", 1), ("gone", 2)):
        queue.put(_entry(ticket_id, urgency))
    assert [entry.ticket.id for entry in queue] == ["first", "gone", "late"]
    assert queue.take("gone") is not None
    assert queue.take("gone") is None
    assert "gone" not in queue
    order = []
    while (head := queue.head()) is not None:
        order.append(head.ticket.id)
        queue.take(head.ticket.id)
    assert order == ["first", "late"]
    assert len(queue) == 0
