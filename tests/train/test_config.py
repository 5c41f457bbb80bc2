"""A config says everything, takes nothing unknown, and names what is wrong."""

import contextlib
import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rebracket.train.config import DataConfig, LoopConfig, OptimizerConfig, TrainConfig

MODEL = '[model]\nd_model = 8\ncontext = 16\npattern = ["gla"]\n[model.mixers.gla]\nheads = 2\n'


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "config.toml"
    file.write_text(MODEL + '[train]\nsteps = 7\n[optimizer]\nlearning_rate = 1\n[data]\ntext = "a.txt"\n')
    return file


def test_it_reads_toml_and_fills_in_the_rest(path):
    config = TrainConfig.read(path)
    assert config.model == {"d_model": 8, "context": 16, "pattern": ["gla"], "mixers": {"gla": {"heads": 2}}}
    assert config.train == LoopConfig(steps=7)
    assert config.data == DataConfig(text=("a.txt",))
    assert config.optimizer == OptimizerConfig(learning_rate=1.0)
    assert isinstance(config.optimizer.learning_rate, float)


def test_overrides_are_toml_or_plain_text_and_the_last_wins(path):
    overrides = [
        "train.steps=8",
        "train.steps = 9",
        "train.device=cuda:1",
        'model.pattern=["softmax"]',
        "model.mixers.softmax.heads=4",
        "data.text=[\"b\", 'c']",
        "optimizer.betas=[0.5, 0.6]",
        "train.compile=true",
    ]
    config = TrainConfig.read(path, overrides)
    assert (config.train.steps, config.train.device, config.train.compile) == (9, "cuda:1", True)
    assert config.model["pattern"] == ["softmax"]
    assert config.model["mixers"] == {"gla": {"heads": 2}, "softmax": {"heads": 4}}
    assert config.data.text == ("b", "c")
    assert config.optimizer.betas == (0.5, 0.6)


def test_to_dict_and_back_is_the_same_and_spells_everything_out(path):
    config = TrainConfig.read(path)
    table = config.to_dict()
    assert TrainConfig.from_dict(table) == config
    assert set(table["train"]) == {field.name for field in dataclasses.fields(LoopConfig)}


def test_configs_are_frozen(path):
    config = TrainConfig.read(path)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.train.steps = 1  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(
    ("override", "error", "said"),
    [
        ("train.stps=1", ValueError, "train: 'stps' is unknown, did you mean 'steps'?"),
        ("optimiser.learning_rate=1", ValueError, "config: 'optimiser' is unknown, did you mean 'optimizer'?"),
        ("data.zzz=1", ValueError, "data: 'zzz' is unknown; known are encoding, held_out, separator, text"),
        ("train.steps=many", ValueError, "train.steps must be a whole number of at least 1, got 'many'"),
        ("train.steps=1.5", ValueError, "train.steps must be a whole number of at least 1, got 1.5"),
        ("train.steps=true", ValueError, "train.steps must be a whole number of at least 1, got True"),
        ("train.steps=0", ValueError, "train.steps must be a whole number of at least 1, got 0"),
        ("train.compile=1", TypeError, "train.compile must be True or False, got 1"),
        ("train.precision=float16", ValueError, "train.precision must be one of 'float32', 'bfloat16', got 'float16'"),
        ("optimizer.learning_rate=0", ValueError, r"optimizer.learning_rate must lie in \(0, inf\], got"),
        ("optimizer.learning_rate=nan", ValueError, r"optimizer.learning_rate must lie in \(0, inf\], got"),
        ("optimizer.learning_rate=fast", ValueError, "optimizer.learning_rate must lie in .*, got 'fast'"),
        ("optimizer.betas=[0.9]", ValueError, "optimizer.betas must be a list of 2 numbers, got"),
        ("optimizer.betas=[0.9, 1.0]", ValueError, r"optimizer.betas must be a number in \[0, "),
        ("optimizer.betas=0.9", ValueError, "optimizer.betas must be a list"),
        ("data.text=[]", TypeError, "data.text must be a list"),
        ("data.text=[1]", TypeError, r"data.text must be a list of texts, at least one, got \[1\]"),
        ("data.held_out=0.6", ValueError, r"data.held_out must lie in \(0, 0.5\], got 0.6"),
        ("data.vocab_size=256", ValueError, "data.vocab_size must be a whole number of at least 257, got 256"),
        ("train=1", TypeError, "train must be a table, got 1"),
        ("train.steps.more=1", ValueError, "steps is a value, not a table"),
        ("train.steps", ValueError, "an override must look like train.steps=500, got 'train.steps'"),
        ("=1", ValueError, "an override must look like"),
        ("train.=1", ValueError, "an override must look like"),
        (".steps=1", ValueError, "an override must look like"),
    ],
)
def test_what_is_wrong_is_named(path, override, error, said):
    with pytest.raises(error, match=said):
        TrainConfig.read(path, [override])


def test_a_missing_or_broken_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="no config at no/such.toml"):
        TrainConfig.read("no/such.toml")
    (tmp_path / "x.toml").write_text("[train\n")
    with pytest.raises(ValueError, match=r"x.toml is no TOML"):
        TrainConfig.read(tmp_path / "x.toml")
    (tmp_path / "x.toml").write_text("[train]\n")
    with pytest.raises(ValueError, match=r"config needs a table \[model\]"):
        TrainConfig.read(tmp_path / "x.toml")
    (tmp_path / "x.toml").write_bytes(b"\xff\xff")
    with pytest.raises(ValueError, match=r"x.toml is no TOML"):
        TrainConfig.read(tmp_path / "x.toml")


def test_ranges_hold_for_configs_made_in_code_too():
    with pytest.raises(ValueError, match=r"train.steps must be a whole number"):
        LoopConfig(steps=0)


@settings(deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_any_override_is_read_or_refused(tmp_path_factory, text):
    path = tmp_path_factory.getbasetemp() / "any.toml"
    path.write_text(MODEL)
    with contextlib.suppress(ValueError, TypeError):
        TrainConfig.read(path, [text])
