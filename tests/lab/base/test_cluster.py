"""A Ray cluster gives what one process gives, keeps what was measured before Ctrl-C, and is asked for by its extra."""

import signal
import sys

import pytest

from rebracket.lab.base.running import Order, run
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
    (spread,) = run([Planted()], Order("quick", tmp_path / "ray", workers="ray"), quiet)
    assert MEASURED == []  # not in this process
    assert cluster.is_initialized()  # who began it ends it
    (one,) = run([Planted()], Order("quick", tmp_path / "one"), quiet)
    assert [x.cell for x in spread.results] == [x.cell for x in one.results]
    assert [x.numbers for x in spread.results] == [x.numbers for x in one.results]


def test_ctrl_c_keeps_what_was_measured(tmp_path, cluster):
    order = Order("quick", tmp_path, workers="ray")
    (stopped,) = run([Planted()], order, lambda progress: signal.raise_signal(signal.SIGINT))
    assert len(stopped.results) == 1
    (whole,) = run([Planted()], order, quiet)
    assert whole.is_whole


def test_without_ray_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ValueError, match=r"pip install 'rebracket\[ray\]'"):
        run([Planted()], Order("tiny", tmp_path, workers="ray"), quiet)
