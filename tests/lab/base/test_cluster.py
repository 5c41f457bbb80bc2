"""A Ray cluster gives what one process gives, keeps what was measured before Ctrl-C, and is asked for by its extra."""

import signal
import sys

import pytest

from rebracket.lab.base.running import run
from tests.lab.planted import MEASURED, Planted


def quiet(progress): ...


@pytest.fixture
def cluster(monkeypatch):
    """A cluster of two workers that find the planted experiment."""
    ray = pytest.importorskip("ray")
    monkeypatch.setenv("PYTHONPATH", ":".join(filter(None, sys.path)))
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield ray
    ray.shutdown()


def test_a_cluster_gives_what_one_process_gives(tmp_path, cluster):
    MEASURED.clear()
    (spread,) = run([Planted()], "quick", tmp_path / "ray", quiet, workers="ray")
    assert MEASURED == []  # not in this process
    assert cluster.is_initialized()  # who began it ends it
    (one,) = run([Planted()], "quick", tmp_path / "one", quiet)
    assert [x.cell for x in spread.results] == [x.cell for x in one.results]
    assert [x.numbers for x in spread.results] == [x.numbers for x in one.results]


def test_ctrl_c_keeps_what_was_measured(tmp_path, cluster):
    (stopped,) = run([Planted()], "quick", tmp_path, lambda progress: signal.raise_signal(signal.SIGINT), workers="ray")
    assert len(stopped.results) == 1
    (whole,) = run([Planted()], "quick", tmp_path, quiet, workers="ray")
    assert whole.is_complete


def test_without_ray_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ValueError, match=r"pip install 'rebracket\[ray\]'"):
        run([Planted()], "tiny", tmp_path, quiet, workers="ray")
