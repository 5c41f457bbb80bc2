"""What the pages show is what happens: their Python runs, and the model table is the recurrence it claims to be."""

import re
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, normalize

import rebracket
from rebracket import features
from rebracket.nn import presets

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
B, T, H, K, V = 2, 7, 3, 4, 5


def blocks(text: str) -> Iterator[tuple[int, str]]:
    """The Python blocks of a page and the line at which each begins."""
    for match in re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        yield text.count("\n", 0, match.start()) + 2, match[1]


def run_page(name: str, text: str) -> str | None:
    """Runs a page from top to bottom in one namespace; the first failure by page and line, or None."""
    namespace: dict[str, object] = {}
    for line, code in blocks(text):
        try:
            exec(compile("\n" * (line - 1) + code, name, "exec"), namespace)
        except Exception as error:
            lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == name]
            return f"{name}:{[line, *lines][-1]}: {type(error).__name__}: {error}"
    return None


def dead_links(text: str, folder: Path) -> list[str]:
    """Links of a page to files that are not there."""
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", text)
    return [link for link in links if "://" not in link and not (folder / link).exists()]


def model_table(text: str) -> dict[str, str]:
    """The calls of the model table by the model in front of them."""
    return dict(re.findall(r"^\| ([^|]+?) \| `(rb\.[^`]+)` \|", text, re.MULTILINE))


def table_presets(text: str) -> list[str]:
    """The presets that the rows of the model table name, in order."""
    cells = re.findall(r"^\| [^|]+ \| `rb\.[^`]+` \| ([^|]+) \|$", text, re.MULTILINE)
    return re.findall(r"`(\w+)`", " ".join(cells))


def tensors() -> dict[str, Tensor]:
    """Small tensors under the names that the table uses; float64, so that rounding hides nothing."""
    draw = torch.Generator().manual_seed(0)

    def randn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draw, dtype=torch.float64)

    x = {"q": randn(B, T, H, K), "k": normalize(randn(B, T, H, K), dim=-1), "v": randn(B, T, H, V), "u": randn(H, K)}
    x |= {"k2": normalize(randn(B, 2 * T, H, K), dim=-1), "v2": randn(B, 2 * T, H, V)}
    decays = {"per_head": (H,), "per_token": (B, T, H), "per_channel": (B, T, H, K)}
    x |= {name: logsigmoid(randn(*shape)) for name, shape in decays.items()}
    gates = {
        "beta": (B, T, H),
        "beta2": (B, 2 * T, H),
        "i": (B, T, H, 1),
        "e": (B, T, H, K),
        "w": (B, T, H, V),
        "b": (H, 1),
    }
    x |= {name: torch.sigmoid(randn(*shape)) for name, shape in gates.items()}
    return x | {"r": 0.5 * normalize(x["e"], dim=-1), "a": x["per_token"].exp()[..., None]}


def evaluate(call: str) -> rebracket.Output:
    """The result of a row's call."""
    return eval(call, {"rb": rebracket, "phi": features.make("elu1", K), **tensors()})


def recurrence(log_decay: Tensor | None, v: Tensor, r: Tensor, before_decay: Tensor | None = None) -> Tensor:
    """The recurrence above the table, token by token; log_decay [H], [B,T,H], [B,T,H,K] or None.

    What `before_decay` reads from the state before the decay is subtracted too.
    """
    x, decay = tensors(), torch.ones(B, T, H, K, dtype=torch.float64)
    if log_decay is not None:
        decay = decay * (log_decay if log_decay.ndim == 4 else log_decay[..., None]).exp()
    memory, out = torch.zeros(B, H, K, V, dtype=torch.float64), []
    for t in range(T):
        fed_back = 0 if before_decay is None else torch.einsum("bhkv,bhk->bhv", memory, before_decay[:, t])
        memory = decay[:, t, :, :, None] * memory
        written = v[:, t] - torch.einsum("bhkv,bhk->bhv", memory, r[:, t]) - fed_back
        memory = memory + torch.einsum("bhk,bhv->bhkv", x["k"][:, t], written)
        out.append(K**-0.5 * torch.einsum("bhkv,bhk->bhv", memory, x["q"][:, t]))
    return torch.stack(out, 1)


def claims() -> dict[str, tuple[Tensor | None, *tuple[Tensor, ...]]]:
    """Arguments of `recurrence` for the models that are one plain write a token, as their papers have them."""
    x = tensors()
    k, v, beta, nothing = x["k"], x["v"], x["beta"][..., None], torch.zeros_like(x["k"])
    return {
        "RetNet, Lightning Attention (MiniMax)": (x["per_head"], v, nothing),
        "Mamba-2, simple GLA, Gated RFA": (x["per_token"], x["i"] * v, nothing),
        "GLA, HGRN2": (x["per_channel"], v, nothing),
        "DeltaNet": (None, beta * v, beta * k),
        "Gated DeltaNet (Qwen3-Next, OLMo hybrid)": (x["per_token"], beta * v, beta * k),
        "Kimi Delta Attention": (x["per_channel"], beta * v, beta * k),
        "Gated DeltaNet-2": (x["per_channel"], x["w"] * v, x["e"] * k),
        "Comba": (x["per_token"], beta * v, nothing, x["b"] * beta * k),
    }


CALLS = model_table((ROOT / "README.md").read_text("utf-8"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_python_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert run_page(page.name, page.read_text("utf-8")) is None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_links_of_a_page_lead_somewhere(page: Path):
    assert dead_links(page.read_text("utf-8"), page.parent) == []


def test_the_readme_has_an_example():
    assert list(blocks((ROOT / "README.md").read_text("utf-8")))


@pytest.mark.parametrize("model", CALLS)
def test_a_row_of_the_model_table_runs(model: str):
    out, state = evaluate(CALLS[model])
    assert out.shape == (B, T, H, V)
    assert out.isfinite().all()
    assert state.nbytes > 0


def test_the_rows_of_the_model_table_differ():
    outs = {model: evaluate(call).out for model, call in CALLS.items()}
    same = [(a, b) for a in outs for b in outs if a < b and torch.allclose(outs[a], outs[b])]
    assert len(outs) == 13
    assert same == []


def test_the_model_table_names_every_preset_once():
    assert sorted(table_presets((ROOT / "README.md").read_text("utf-8"))) == list(presets.names())


@pytest.mark.parametrize("model", claims())
def test_a_row_of_the_model_table_is_its_recurrence(model: str):
    torch.testing.assert_close(evaluate(CALLS[model]).out, recurrence(*claims()[model]), rtol=1e-10, atol=1e-10)


def test_a_planted_failure_is_found_where_it_stands():
    page = "# Page\n\n```python\nx = 1\n```\n\n```python\ny = x\nassert y == 2, 'no'\n```\n"
    assert run_page("page.md", page) == "page.md:9: AssertionError: no"
    assert run_page("page.md", page.replace("y == 2", "y == 1")) is None
    assert "SyntaxError" in str(run_page("page.md", "```python\nx =\n```\n"))
    assert run_page("page.md", "```sh\nx =\n```\n") is None


def test_a_planted_dead_link_is_found(tmp_path: Path):
    (tmp_path / "there.md").touch()
    page = "[a](there.md#part) ![b](gone.svg) [c](https://example.org) [d](also/gone.md)"
    assert dead_links(page, tmp_path) == ["gone.svg", "also/gone.md"]


def test_a_planted_row_of_another_model_is_found():
    planted = model_table("| model | call |\n|---|---|\n| Comba | `rb.linear_attention(q, k, v)` |\n")
    assert planted == {"Comba": "rb.linear_attention(q, k, v)"}
    assert table_presets("| Comba | `rb.step(q)` | `comba`, `gla` |\n| RWKV-7 | `rb.step(q)` | not yet |\n") == [
        "comba",
        "gla",
    ]
    for model, claim in claims().items():
        assert not torch.allclose(evaluate(planted["Comba"]).out, recurrence(*claim)), model
