"""Peak bytes are those of the tensors that live at one time."""

import torch

from rebracket.testing.memory import peak_tensor_nbytes


def test_one_tensor():
    assert peak_tensor_nbytes(lambda: torch.zeros(10, 10)) == 400


def test_what_is_freed_no_longer_counts():
    def one_after_the_other() -> None:
        for _ in range(5):
            torch.zeros(100)

    assert peak_tensor_nbytes(one_after_the_other) == 400


def test_what_is_held_together_adds_up():
    assert peak_tensor_nbytes(lambda: [torch.zeros(100) for _ in range(5)]) == 2000


def test_views_and_inputs_are_not_counted():
    x = torch.zeros(100)
    assert peak_tensor_nbytes(lambda: x.view(10, 10).mT[2:]) == 0


def test_saved_tensors_are_counted_until_the_backward_pass():
    x = torch.ones(1000, requires_grad=True)
    without = peak_tensor_nbytes(lambda: (x.detach() * x.detach()).sum())
    assert without == 4004
    assert peak_tensor_nbytes(lambda: (x.exp() * x).sum().backward()) >= 3 * 4000


def test_the_count_is_the_same_every_time():
    x = torch.ones(100, 100, requires_grad=True)
    assert len({peak_tensor_nbytes(lambda: (x @ x).tanh().sum().backward()) for _ in range(3)}) == 1
