"""What slow nodes cost: the time of a training step that uses them, by the planner's model."""

from dataclasses import dataclass

from busbw_analysis.fleet.verdicts import FleetJudgement
from busbw_analysis.training.layout import Step
from busbw_analysis.training.step_time import Machine, Scenario, step_time


@dataclass(frozen=True, slots=True)
class Cost:
    """A training step on usual nodes, and with the slowest one among them.

    usual_seconds, slow_seconds: of a step
    compute, network: by how many times the node takes longer by itself, and in messages
    """

    usual_seconds: float
    slow_seconds: float
    compute: float
    network: float

    @property
    def share(self) -> float:
        """How much longer a step takes."""
        return self.slow_seconds / self.usual_seconds - 1


def cost_of(judgement: FleetJudgement, step: Step, machine: Machine) -> Cost | None:
    """The cost of the slowest node, or link that a job uses; None if nothing slow was named.

    All ranks wait for the slowest one, so compute takes as long as there; a ring goes at the rate of its slowest link,
    so all traffic between hosts does. Raises AnalysisError if a call has no price.
    """
    alone = [verdict.ratio for verdict in judgement.accused if verdict.kind == "alone"]
    network = [verdict.ratio for verdict in judgement.accused if verdict.kind in {"node", "link", "switch", "trunk"}]
    if not alone and not network:
        return None
    compute, between = max(alone, default=1.0), max(network, default=1.0)
    slow = step_time(step, machine, Scenario("with the slow node", compute=1 / compute, between=1 / between))
    return Cost(step_time(step, machine).total, slow.total, compute, between)
