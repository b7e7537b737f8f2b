"""From what became of a request in the deployment to what its client is told."""

from deployments.messages import RefusalKind
from deployments.openai.errors import (
    ApiError,
    BadRequest,
    grammar_refused,
    grammar_too_complex,
    internal,
    never_fits,
    no_replica,
    out_of_time,
    queue_full,
    tenant_busy,
    tenant_rate,
    too_long,
    too_many_choices,
)
from deployments.order import Failed, Refused
from engine.submission import GRAMMAR_TOO_COMPLEX


def api_error(error: Refused | Failed, form: str | None = None) -> ApiError:
    """Say to the client what became of its request.

    Args:
        error: what became of it.
        form: the field in which it asked for a form of the answer.
    """
    if isinstance(error, Failed):
        too_complex = str(error).startswith(GRAMMAR_TOO_COMPLEX)
        return grammar_too_complex(form) if too_complex else internal()
    refusal = error.refusal
    match refusal.kind:
        case RefusalKind.BUSY | RefusalKind.QUEUE_FULL:
            return queue_full(refusal.retry_after)
        case RefusalKind.TENANT_BUSY:
            return tenant_busy(refusal.limit, refusal.retry_after)
        case RefusalKind.TENANT_RATE:
            return tenant_rate(refusal.limit, refusal.retry_after)
        case RefusalKind.EXPIRED:
            return out_of_time(refusal.message)
        case RefusalKind.NO_REPLICA:
            return no_replica(refusal.retry_after)
        case RefusalKind.NEVER_FITS:
            return never_fits(refusal.current, refusal.limit)
        case RefusalKind.TOO_MANY:
            return too_many_choices(refusal.current, refusal.limit)
        case RefusalKind.TOO_LONG:
            return too_long(refusal.current, refusal.limit)
        case RefusalKind.EMPTY:
            return BadRequest("The prompt has no tokens.", "prompt")
        case RefusalKind.INVALID if refusal.param == "grammar":
            return grammar_refused(refusal.message, form)
        case RefusalKind.INVALID:
            return BadRequest(f"{refusal.message}.", refusal.param)
        case _:
            return internal()
