"""Each write rule is one file: named by the package, documented, with a loop from its paper that takes its fields."""

import dataclasses
import inspect

import pytest
import torch

import rebracket as rb
from rebracket.ops.write import WriteRule
from rebracket.testing.operators.recurrence import RULES, rule_module, write_names

LITERAL = ["q", "k", "v", "decay", "memory", "scale"]


def rule_class(name: str) -> type[WriteRule]:
    """The one rule that a file defines."""
    return RULES.load(name)  # type: ignore[return-value]


@pytest.mark.parametrize("name", write_names())
def test_the_file_holds_one_final_frozen_rule_that_the_package_names(name: str):
    rule = rule_class(name)

    assert getattr(rule, "__final__", False)
    assert rule.__dataclass_params__.frozen  # type: ignore[attr-defined]
    assert vars(rb).get(rule.__name__) is rule, (
        f"export it: `from {rule.__module__} import ...` in rebracket/__init__.py"
    )
    assert rule.__name__ == name.title().replace("_", "")


@pytest.mark.parametrize("name", write_names())
def test_the_docstring_has_the_equation_the_cost_the_source_and_an_example(name: str):
    text = inspect.getdoc(rule_class(name)) or ""
    assert all(word in text for word in ("S_t =", "Cost:", "Source:", "Example:", ">>>"))


@pytest.mark.parametrize("name", write_names())
def test_the_loop_takes_what_the_rule_carries(name: str):
    fields = [field.name for field in dataclasses.fields(rule_class(name))]  # type: ignore[arg-type]
    has_loop = "literal" in vars(rule_module(name))
    assert has_loop, f"{name}.py needs `literal({', '.join(LITERAL + fields)})`"
    assert list(inspect.signature(rule_module(name).literal).parameters) == LITERAL + fields


def test_two_tokens_by_hand():
    """K = V = 1: the rules are arithmetic on numbers."""
    k, v = torch.tensor([2.0, 1.0]), torch.tensor([3.0, 5.0])
    decay = torch.tensor([1.0, 0.5])

    def run(write: WriteRule) -> list[float]:
        q, keys, values = (x.view(1, 2, 1, 1) for x in (torch.ones(2), k, v))
        out, _ = rb.linear_attention(q, keys, values, log_decay=decay.log().view(1, 2, 1), write=write, scale=1.0)
        return [round(x, 5) for x in out.flatten().tolist()]

    one = torch.ones(1, 2, 1, 1)
    assert run(rb.Additive()) == [6, 0.5 * 6 + 5]
    assert run(rb.Delta(0.25)) == [0.25 * 2 * 3, 0.75 + 0.25 * (5 - 0.75)]
    assert run(rb.ReadKey(2 * one, 0.25)) == [1.5, 0.75 + 0.25 * (5 - 2 * 0.75)]
    assert run(rb.GatedErase(0.5 * one, 2 * one)) == [12, 6 + (10 - 0.5 * 6)]
    assert run(rb.LowRank(one, 0.5 * one)) == [6, 3 - 0.5 * 3 + 5]


def test_two_writes_of_a_token_by_hand():
    k, v = torch.tensor([1.0, 1.0]).view(1, 2, 1, 1), torch.tensor([4.0, 8.0]).view(1, 2, 1, 1)
    write = rb.DeltaProduct(0.5, 2)
    out, state = rb.linear_attention(
        torch.ones(1, 1, 1, 1), k, v, write=write, log_decay=torch.tensor([-3.0]), scale=1.0
    )
    assert out.item() == pytest.approx(2 + 0.5 * (8 - 2))
    assert state.memory.item() == pytest.approx(5)
