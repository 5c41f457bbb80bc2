"""One token by the definition."""

from __future__ import annotations

from typing import ClassVar, final

from rebracket.backends.reference import definition
from rebracket.backends.reference.recurrence import check_values
from rebracket.ops.backend import Implementation
from rebracket.ops.call import Step
from rebracket.ops.precision import without_autocast
from rebracket.ops.state import Output


@final
class OneToken(Implementation[Step]):
    """The token loop of one token."""

    call: ClassVar[type[Step]] = Step

    def covers(self, call: Step) -> str | None:
        return None

    def run(self, call: Step) -> Output:
        check_values(call.token)
        with without_autocast(call.token.q):
            out, state = definition.run(call.token)
        held = call.token.state
        return Output(out, held.overwrite(state) if call.inplace and held is not None else state)
