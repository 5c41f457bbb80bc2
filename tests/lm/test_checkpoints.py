"""A model comes back from its folder as it went, or is refused; the folder is never half of one."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from rebracket.lm import Config, LanguageModel, Tokenizer, checkpoints, load_model, model_id, save_model
from tests.lm.tiny import CONFIGS, config
from tests.nn.tiny import assert_same, stir

TOKENIZER = Tokenizer.bytes()
FILES = ["config.json", "model.safetensors", "tokenizer.json"]


def model_of(name: str = "mixed") -> LanguageModel:
    model = LanguageModel(dataclasses.replace(config(name), vocab_size=260))
    stir(model)
    return model


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_round_trip(name: str, dtype: torch.dtype, tmp_path: Path):
    model = model_of(name).to(dtype)
    save_model(tmp_path / "m", model, TOKENIZER)
    loaded, tokenizer = load_model(tmp_path / "m")
    tokens = torch.randint(257, (2, 6))
    assert loaded.config == model.config
    assert tokenizer == TOKENIZER
    assert model_id(loaded) == model_id(model)
    assert_same(loaded.state_dict(), model.state_dict(), 0, 0)
    assert torch.equal(loaded(tokens).logits, model(tokens).logits)
    assert all(p.requires_grad for p in loaded.parameters())


def test_the_folder_holds_three_plain_files(tmp_path: Path):
    save_model(tmp_path / "m", model_of(), TOKENIZER)
    assert sorted(path.name for path in (tmp_path / "m").iterdir()) == FILES
    assert json.loads((tmp_path / "m/config.json").read_text())["d_model"] == 8
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_a_second_save_replaces_the_first(tmp_path: Path):
    first, second = model_of("gla"), model_of("mixed")
    save_model(tmp_path / "m", first, TOKENIZER)
    save_model(tmp_path / "m", second, TOKENIZER)
    assert load_model(tmp_path / "m")[0].config == second.config
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_a_failed_save_leaves_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    save_model(tmp_path / "m", model_of("gla"), TOKENIZER)

    def fails(*arguments: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(checkpoints, "write_tensors", fails)
    with pytest.raises(OSError, match="disk full"):
        save_model(tmp_path / "m", model_of("mixed"), TOKENIZER)
    assert load_model(tmp_path / "m")[0].config == model_of("gla").config
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_a_failed_rename_leaves_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    save_model(tmp_path / "m", model_of("gla"), TOKENIZER)
    rename = Path.rename

    def fails(self: Path, target: Path) -> Path:
        if target == tmp_path / "m" and (self / "config.json").read_text() != before:
            raise OSError("no")
        return rename(self, target)

    before = (tmp_path / "m/config.json").read_text()
    monkeypatch.setattr(Path, "rename", fails)
    with pytest.raises(OSError, match="no"):
        save_model(tmp_path / "m", model_of("mixed"), TOKENIZER)
    assert load_model(tmp_path / "m")[0].config == model_of("gla").config
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_nothing_else_is_ever_replaced(tmp_path: Path):
    (tmp_path / "m").mkdir()
    save_model(tmp_path / "m", model_of(), TOKENIZER)
    (tmp_path / "m/notes.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"notes\.txt"):
        save_model(tmp_path / "m", model_of(), TOKENIZER)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ValueError, match="is a file"):
        save_model(tmp_path / "file", model_of(), TOKENIZER)
    with pytest.raises(FileNotFoundError, match="folder above"):
        save_model(tmp_path / "nowhere/m", model_of(), TOKENIZER)


def test_a_tokenizer_with_too_many_ids_is_refused(tmp_path: Path):
    model = LanguageModel(config("gla"))
    with pytest.raises(ValueError, match="tokenizer has 257 ids, more than the model's 13"):
        save_model(tmp_path / "m", model, TOKENIZER)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", FILES)
def test_a_lost_file_is_named(name: str, tmp_path: Path):
    save_model(tmp_path / "m", model_of(), TOKENIZER)
    (tmp_path / "m" / name).unlink()
    with pytest.raises(FileNotFoundError, match=name):
        load_model(tmp_path / "m")


@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_named(name: str, tmp_path: Path):
    save_model(tmp_path / "m", model_of(), TOKENIZER)
    path = tmp_path / "m" / name
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(ValueError, match=name):
        load_model(tmp_path / "m")


@pytest.mark.parametrize(("key", "value"), [("d_model", 6), ("mlp_dim", 3), ("layers", [{"mixer": "gla", "heads": 2}])])
def test_weights_of_another_config_are_refused(key: str, value: object, tmp_path: Path):
    save_model(tmp_path / "m", model_of(), TOKENIZER)
    path = tmp_path / "m/config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    with pytest.raises(ValueError, match=r"other weights than config\.json asks for: \S+ must be .*, is .*") as caught:
        load_model(tmp_path / "m")
    assert str(caught.value).count(" must be ") <= 3


def zeros(model: LanguageModel) -> LanguageModel:
    """A model of the same config whose bytes are the same in every short dtype."""
    empty = LanguageModel(model.config)
    with torch.no_grad():
        for p in empty.parameters():
            p.zero_()
    return empty


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
@pytest.mark.parametrize("text", ["[" * 10_000 + "]" * 10_000, "[]", "7", '{"model": 7}', '{"model": {"vocab": 7}}'])
def test_a_file_of_another_shape_or_depth_is_named(name: str, text: str, tmp_path: Path):
    save_model(tmp_path / "m", model_of(), TOKENIZER)
    (tmp_path / "m" / name).write_text(text)
    with pytest.raises(ValueError, match=name):
        load_model(tmp_path / "m")


def test_a_larger_tokenizer_than_the_model_is_refused_when_read(tmp_path: Path):
    save_model(tmp_path / "m", model_of(), TOKENIZER)
    Tokenizer.train([" ".join(f"word{n} word{n}" for n in range(99))], 300).save(tmp_path / "m/tokenizer.json")
    with pytest.raises(ValueError, match=r"tokenizer\.json: tokenizer has \d+ ids, more than the model's"):
        load_model(tmp_path / "m")


def test_thousands_of_layers_are_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    save_model(tmp_path / "m", model_of(), TOKENIZER)
    values = json.loads((tmp_path / "m/config.json").read_text())
    values["layers"] = values["layers"][:1] * 2000
    (tmp_path / "m/config.json").write_text(json.dumps(values))
    made, mixer = [], Config.mixer
    monkeypatch.setattr(Config, "mixer", lambda self, index: made.append(index) or mixer(self, index))
    with pytest.raises(ValueError, match=r"other weights than config.json asks for: \d+ tensors for 2,000 layers"):
        load_model(tmp_path / "m")
    assert made == [0]


def test_what_file_managers_leave_does_not_keep_a_model_from_being_replaced(tmp_path: Path):
    save_model(tmp_path / "m", model_of(), TOKENIZER)
    (tmp_path / "m/.DS_Store").touch()
    save_model(tmp_path / "m", model_of(), TOKENIZER)


def test_an_id_tells_models_apart():
    model = model_of()
    known = {model_id(model), model_id(model_of("gla")), model_id(model.double())}
    assert len(known) == 3
    longer = LanguageModel(dataclasses.replace(model.config, context=17))
    longer.load_state_dict(model.float().state_dict())
    assert model_id(longer) != model_id(model)
    assert len({model_id(zeros(model).to(dtype)) for dtype in (torch.float16, torch.bfloat16)}) == 2
    with torch.no_grad():
        model.norm.weight[0] = torch.nextafter(model.norm.weight[0], torch.tensor(9.0))
    assert model_id(model) not in known
    assert all(len(name) == 16 and int(name, 16) >= 0 for name in known)
