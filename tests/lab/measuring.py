"""An experiment at its smallest size, in this process, for the tests of each."""

from rebracket import lab
from rebracket.lab.base.experiment import mean_over_seeds
from rebracket.lab.base.running import Job, measure
from rebracket.lab.base.verdict import Verdict


def judged(name: str) -> Verdict:
    """The verdict of a tiny grid."""
    experiment = lab.load(name)
    results = [measure(Job(experiment, cell)) for cell in experiment.cells("tiny")]
    verdict = experiment.verdict(mean_over_seeds(results))
    assert all(check.source for check in verdict.checks), "a bound does not say where it comes from"
    return verdict
