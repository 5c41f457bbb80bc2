"""A file is a feature map, by its name, with its options and nothing else."""

from pathlib import Path

import pytest

from rebracket import features


def test_every_file_is_a_map_and_every_map_a_file():
    files = {path.stem for path in Path(features.__file__).parent.glob("*.py")} - {"__init__", "base"}
    assert set(features.names()) == files
    assert features.names() == tuple(sorted(files))
    for name in features.names():
        assert isinstance(features.make(name, 4), features.FeatureMap)


def test_the_map_made_is_the_one_in_its_file():
    for name in features.names():
        assert type(features.make(name, 4)).__module__ == f"rebracket.features.{name}"


def test_an_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(ValueError, match=r"'taylor' is unknown, did you mean 'taylor2'\?; known are dpfp, elu1"):
        features.make("taylor", 4)
    with pytest.raises(ValueError, match="'base'"):
        features.make("base", 4)


def test_an_unknown_option_is_refused_with_the_nearest():
    with pytest.raises(ValueError, match=r"'favor' has no option 'sample', did you mean 'samples'\?"):
        features.make("favor", 4, {"sample": 2})
    with pytest.raises(ValueError, match="'relu' has no option 'nu'; known are none"):
        features.make("relu", 4, {"nu": 2})
    with pytest.raises(ValueError, match="no option 'dim'"):
        features.make("relu", 4, {"dim": 5})


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("dpfp", {"nu": 0}, "nu"),
        ("dpfp", {"nu": 8}, "nu must be below"),
        ("exp", {"temperature": 0.0}, "temperature"),
        ("favor", {"samples": 0}, "samples"),
        ("hedgehog", {"activation": "relu"}, "activation"),
        ("hedgehog", {"width": 0}, "width"),
        ("rff", {"samples": 0}, "samples"),
        ("t2r", {"width": True}, "width"),
    ],
)
def test_options_out_of_range_are_refused(name: str, options: dict, message: str):
    with pytest.raises(ValueError, match=message):
        features.make(name, 4, options)


@pytest.mark.parametrize("name", features.names())
@pytest.mark.parametrize("dim", [0, -1, 2.0, True])
def test_a_dimension_that_is_none_is_refused(name: str, dim: int):
    with pytest.raises(ValueError, match="dim"):
        features.make(name, dim)
