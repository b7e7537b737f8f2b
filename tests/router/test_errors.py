import pickle

import pytest

from router.errors import Busy, NeverFitsAnywhere, NoReplica, RouterError, UnknownTicket


@pytest.mark.parametrize(
    "error", [Busy(1.5, 8, 8), NoReplica(5.0), NeverFitsAnywhere(8, 6), UnknownTicket("a")]
)
def test_errors_keep_their_fields_on_the_way_to_the_gateway(error: RouterError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert vars(copy) == vars(error)
    assert str(copy) == str(error)
