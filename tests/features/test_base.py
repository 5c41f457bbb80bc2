"""What holds for every feature map."""

import pytest
import torch

from rebracket import features
from rebracket.features import FeatureMap

OPTIONS = [
    *((name, {}) for name in features.names()),
    ("dpfp", {"nu": 3}),
    ("exp", {"temperature": 2.0}),
    ("favor", {"samples": 7, "hyperbolic": True}),
    ("favor", {"samples": 11, "stabilized": True, "seed": 5}),
    ("hedgehog", {"width": 3, "activation": "exp"}),
    ("t2r", {"width": 9}),
]


@pytest.fixture(params=OPTIONS, ids=str)
def feature_map(request: pytest.FixtureRequest) -> FeatureMap:
    torch.manual_seed(0)
    name, options = request.param
    return features.make(name, 5, options)


def test_the_dimension_claimed_is_the_dimension_produced(feature_map: FeatureMap):
    assert feature_map.dim_in == 5
    assert feature_map(torch.randn(2, 3, 4, 5)).shape == (2, 3, 4, feature_map.dim_out)
    assert feature_map.queries(torch.randn(5)).shape == (feature_map.dim_out,)
    assert feature_map(torch.randn(0, 5)).shape == (0, feature_map.dim_out)


def test_a_dimension_of_one_is_a_dimension():
    for name in features.names():
        feature_map = features.make(name, 1)
        assert feature_map(torch.randn(3, 1)).shape == (3, feature_map.dim_out)


def test_another_last_axis_is_refused(feature_map: FeatureMap):
    for x in (torch.randn(5, 4), torch.tensor(1.0)):
        with pytest.raises(ValueError, match=r"x must be \[..., dim_in = 5\]"):
            feature_map(x)


def test_a_positive_map_has_no_negative_kernel_and_another_has(feature_map: FeatureMap):
    q, k = 2 * torch.randn(2, 300, 5, dtype=torch.float64)
    kernel = feature_map.queries(q) @ feature_map(k).T
    assert bool((kernel >= 0).all()) == feature_map.positive


def test_each_vector_is_mapped_by_itself(feature_map: FeatureMap):
    x = torch.randn(6, 5, dtype=torch.float64)
    for function in (feature_map, feature_map.queries):
        torch.testing.assert_close(torch.stack([function(row) for row in x]), function(x), rtol=1e-14, atol=0)


def test_gradients_are_those_of_finite_differences(feature_map: FeatureMap):
    x = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    feature_map = feature_map.double()
    assert torch.autograd.gradcheck(feature_map, x)
    assert torch.autograd.gradcheck(feature_map.queries, x)
    for parameter in feature_map.parameters():
        assert torch.autograd.gradcheck(lambda _: feature_map(x.detach()), parameter)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_one_rounding_of_float32(feature_map: FeatureMap, dtype: torch.dtype):
    x = torch.randn(40, 5).to(dtype)
    assert torch.equal(feature_map(x), feature_map(x.float()).to(dtype))


def test_hooks_see_keys_and_modules_inside_see_queries_too(feature_map: FeatureMap):
    seen: list[str] = []
    for name, module in feature_map.named_modules():
        module.register_forward_hook(lambda *_, name=name: seen.append(name))
    feature_map(torch.randn(3, 5))
    inside = [name for name in seen if name]
    assert seen == [*inside, ""]
    seen.clear()
    feature_map.queries(torch.randn(3, 5))
    assert seen == inside


def test_autocast_stays_outside(feature_map: FeatureMap):
    x = torch.randn(40, 5)
    outside = feature_map(x)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(feature_map(x), outside)


def test_a_map_born_on_meta_is_the_map(feature_map: FeatureMap, request: pytest.FixtureRequest):
    name, options = request.node.callspec.params["feature_map"]
    with torch.device("meta"):
        born = features.make(name, 5, options)
    assert all(tensor.is_meta for tensor in born.state_dict().values())
    assert born(torch.empty(2, 5, device="meta")).shape == (2, born.dim_out)
    born = born.to_empty(device="cpu")
    for module in (born, feature_map):
        torch.manual_seed(1)
        module.reset_parameters()
    x = torch.randn(3, 5)
    assert torch.equal(born(x), feature_map(x))


def test_a_map_comes_back_from_its_state_dict(feature_map: FeatureMap, request: pytest.FixtureRequest):
    name, options = request.node.callspec.params["feature_map"]
    other = features.make(name, 5, {**options, **({"seed": 99} if name == "favor" else {})})
    other.load_state_dict(feature_map.state_dict())
    x = torch.randn(3, 5)
    assert torch.equal(other(x), feature_map(x))
