"""The rounds of a controller: rank 0 asks it, and every rank learns what to measure next."""

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from busbw.backends.base import Backend, broadcast
from busbw.errors import LaunchError
from busbw.ops import OPS
from busbw.runs.asked import CONTROLLERS, Ask, Controller
from busbw.runs.facts import HostFacts
from busbw.runs.plan import Plan
from busbw.runs.records import Case, Failed, Measurement, Skipped

_ASK = msgspec.json.Decoder[Ask | None](Ask | None)


def controller_of(plan: Plan) -> Controller:
    """The controller of ``plan``, which names one."""
    module, name = CONTROLLERS[str(plan.controller)]
    controller: Controller = getattr(importlib.import_module(module), name)(plan)
    return controller


@dataclass(slots=True)
class AskedRounds:
    """The rounds of a launch, on every rank.

    cases: of the run
    skipped: cases that cannot run here, with the reason
    """

    backend: Backend
    cases: Sequence[Case]
    skipped: Mapping[Case, str]
    _controller: Controller | None = field(default=None, init=False)

    def begin(self, plan: Plan, hosts: Sequence[str], facts: Mapping[str, HostFacts]) -> None:
        """Load the controller of ``plan``, on rank 0."""
        controller = controller_of(plan)
        controller.begin(self.cases, hosts, facts)
        self._controller = controller

    def next(self, measured: Measurement | Failed | None, *, stop: bool) -> tuple[Ask | None, bool]:
        """The next round (None: there is none), and whether any rank is to ``stop``. Collective.

        measured: outcome of the round before
        Raises LaunchError on rank 0 for a round that cannot be measured, BackendError when a rank is lost.
        """
        ask = None if self._controller is None else self._choice(self._controller, measured)
        text, stopped = broadcast(self.backend, msgspec.json.encode(ask).decode(), flag=stop)
        return _ASK.decode(text), stopped

    def _choice(self, controller: Controller, measured: Measurement | Failed | None) -> Ask | None:
        """The controller's next round of a case that can run here; it is told of each that cannot."""
        ask = controller.next(measured)
        while ask is not None:
            if not 0 <= ask.case < len(self.cases):
                raise LaunchError(f"the controller asks for case {ask.case} of {len(self.cases)}")
            case = self.cases[ask.case]
            if case not in self.skipped:
                _require_groups(case, ask)
                return ask
            ask = controller.next(Skipped(case=case, reason=self.skipped[case]))
        return None


def _require_groups(case: Case, ask: Ask) -> None:
    """Raise LaunchError for groups in which ``case`` cannot be measured."""
    op, sizes = OPS[case.op], {len(group) for group in ask.groups}
    unknown = sorted({rank for group in ask.groups for rank in group if not 0 <= rank < case.ranks})
    least = 2 if op.communicates else op.least_ranks()
    if unknown:
        raise LaunchError(f"the controller asks for ranks {unknown!s:.60}; there are {case.ranks}")
    if (op.members == "ends" and sizes != {2}) or (op.local and sizes != {1}) or min(sizes) < least:
        raise LaunchError(f"the controller asks for {op.name} in groups of {sorted(sizes)!s:.60} ranks")
