"""Text generation: the same on every layout as a loop that computes each token from the full sequence."""

import io
import json

import pytest
import torch

from neoxargs.base.problems import render
from neoxargs.config.config import Config
from neoxargs.data.tokenizer import ByteTokenizer
from neoxargs.facts.position import Position
from neoxargs.registry.generation import Generation
from neoxargs.resolve import resolve
from neoxargs.targets.wire_format import parse_rank_arguments, script_arguments
from neoxargs.train.checkpoint.commit import begin, commit
from neoxargs.train.checkpoint.save_load import Checkpoints
from neoxargs.train.engine import build as engine
from neoxargs.train.engine.steps import Pipelined
from neoxargs.train.generate import generate, prompts
from neoxargs.train.generation.chat import _read
from neoxargs.train.generation.generator import Generator, PipelinedModel, PlainModel, padded
from neoxargs.train.generation.loading import for_generation, load_model, make_generator, without_training
from neoxargs.train.losses.cross_entropy import Loss
from neoxargs.train.model.cache import Cache
from neoxargs.train.model.documents import needs_document_starts
from neoxargs.train.model.gpt import GPT
from neoxargs.train.model.shared import Shared
from neoxargs.train.parallel.layers import Weights
from neoxargs.train.process import mesh, setup
from neoxargs.train.process.mesh import Mesh
from tests.support.layouts import RPE
from tests.support.ranks import run_ranks
from tests.support.refused import refused
from tests.support.sampling import CPU, EOD, SEQ, UNTIED, Letters, greedy_tokens, one_process
from tests.support.small_gpt import VOCABULARY, build, small
from tests.support.snapshots import pinned

SPARSE = {
    "attention_config": ["sparse_fixed", "global"], "sparsity_config": {"block": 2, "num_local_blocks": 2},
}  # fmt: skip
#: A model of which every part of attention matters to what it generates.
EVERYTHING = {**UNTIED, **RPE, **SPARSE, "reset_attention_mask": True}
#: Models whose later passes must know where a token stands.
CACHED = {
    "learned": {"opt_pos_emb_offset": 2},
    "sinusoidal": {"pos_emb": "sinusoidal"},
    "rotary, shared keys": {"pos_emb": "rotary", "rotary_pct": 0.5, "num_kv_heads": 2},
    "qk norms": {"pos_emb": "rotary", "use_qk_layernorm": True},
    "window": {"pos_emb": "rotary", "sliding_window_width": 3},
    "window in every other layer": {
        "pos_emb": "rotary", "sliding_window_width": 3, "window_attn_skip_freq": 2, "rope_local_base_freq": 50,
    },
    "bounded": {"pos_emb": "rotary", "attn_logit_softcapping": 1.0, "final_logit_softcapping": 2.0},
    "alibi": {"pos_emb": "alibi"},
    "alibi, window": {"pos_emb": "alibi", "sliding_window_width": 3},
    "rpe": RPE,
    "rpe, sparse": RPE | SPARSE,
    "sparse per head": SPARSE | {
        "sparsity_config": {
            "block": 2, "num_local_blocks": 2, "different_layout_per_head": True, "num_different_global_patterns": 2,
        },
    },
    "shared layers": {"num_layers": 4, "num_unique_layers": 2},
    "mamba": {"attention_config": ["mamba", "global"], "mamba_inner_size": 48},
    "rwkv": {"attention_config": ["rwkv", "rwkv"], "dim_att": 32, "head_size": 8, "ffn_dim": 96},
    "shared mamba layers": {
        "num_layers": 4, "num_unique_layers": 2, "attention_config": ["mamba", "global"] * 2, "mamba_inner_size": 48,
    },
}  # fmt: skip


def ids(generator: Generator, *contexts: str) -> list[list[int]]:
    samples = [generator.sample(context) for context in contexts]
    generator.finish(samples)
    return [sample.ids for sample in samples]


def test_greedy_decoding_takes_the_most_likely_token_each_time() -> None:
    generator = one_process(maximum_tokens=8)
    sample = generator.sample("abc")
    generator.finish([sample])
    expected, logits = greedy_tokens([0, 1, 2], 8)
    assert EOD not in expected
    assert sample.ids == expected
    assert sample.logits == pytest.approx(logits, abs=1e-5)


def test_prompts_of_different_lengths_do_not_affect_each_other() -> None:
    contexts = ("abc", "x", "hello world".replace(" ", ""), "")
    together = ids(one_process(maximum_tokens=6), *contexts)
    assert together == [ids(one_process(maximum_tokens=6), context)[0] for context in contexts]
    assert together[3] == greedy_tokens([EOD], 6)[0]


def test_beyond_the_models_length_the_window_slides() -> None:
    assert ids(one_process(maximum_tokens=30), "abcdefghijklmnopqrst") == [greedy_tokens(list(range(20)), 30)[0]]


def test_other_rows_continue_after_a_row_beyond_the_models_length_ends() -> None:
    ended, expected = greedy_tokens(list(range(15)), 5)[0], greedy_tokens([23], 10)[0]

    class EndsThere(Letters):
        eod = ended[-1]

    assert EndsThere.eod not in [*ended[:-1], *expected]
    generator = one_process(EndsThere(), maximum_tokens=10)
    shapes = spied(generator)
    assert ids(generator, "abcdefghijklmno", "x") == [ended[:-1], expected]
    assert shapes == [(2, 15), (2, 1), *[(2, 16)] * 3, *[(1, length) for length in range(6, 11)]]


def spied(generator: Generator) -> list[tuple[int, int]]:
    """Record the shapes of the tokens that enter the model from now on."""
    shapes, logits = [], generator.model.logits

    def spy(tokens, last):
        shapes.append(tuple(tokens.shape))
        return logits(tokens, last)

    generator.model.logits = spy
    return shapes


@pytest.mark.parametrize("name", CACHED)
def test_with_and_without_the_cache_the_text_is_the_same(name) -> None:
    contexts, model = ("abc", "hellofyou", "", "xx"), UNTIED | CACHED[name]
    without = one_process(model=model, maximum_tokens=6, recompute=True)
    shapes = spied(without)
    expected = ids(without, *contexts)
    assert len(shapes) == 6 and min(length for _, length in shapes) > 3  # whole rows
    generator = one_process(model=model, maximum_tokens=6)
    shapes = spied(generator)
    assert ids(generator, *contexts) == expected
    assert [length for _, length in shapes] == [9, 1, 1, 1, 1, 1]
    assert ids(generator, *contexts) == expected  # nothing is left of the batch before


@pytest.mark.parametrize("factor", [1, 4])
def test_dropped_tokens_depend_on_the_pass_unless_none_can_be(factor: int) -> None:
    """What `experts-drop-tokens` says, and that its hint helps: 4 experts of which each token chooses one."""
    experts = {"moe_num_experts": 4, "moe_top_k": 1, "moe_token_dropping": True, "moe_min_capacity": 2}
    model = UNTIED | experts | {"moe_eval_capacity_factor": factor}

    def logits(*contexts: str, recompute: bool = False) -> list[list[float]]:
        generator = one_process(model=model, maximum_tokens=6, recompute=recompute)
        generator.finish(samples := [generator.sample(context) for context in contexts])
        return [sample.logits for sample in samples]

    contexts = ("abcaaaa", "helloaa")
    cached, anew = logits(*contexts), logits(*contexts, recompute=True)
    alone = [logits(context)[0] for context in contexts]
    for other in (anew, alone):
        assert all(x == pytest.approx(y, abs=1e-4) for x, y in zip(cached, other, strict=True)) == (factor == 4)


@pytest.mark.parametrize(("start", "key"), [("visible", "one window"), ("rotary", "one rotation")])
def test_layers_that_share_the_wrong_thing_are_found(start, key, monkeypatch) -> None:
    contexts, model = ("abc", "hellofyou", "", "xx"), UNTIED | CACHED["window in every other layer"]
    expected, once = ids(one_process(model=model, maximum_tokens=6), *contexts), Cache.once

    def planted(cache, own, build):
        begins = (own if isinstance(own, str) else own[0]).startswith(start)
        return once(cache, key if begins else own, build)

    monkeypatch.setattr(Cache, "once", planted)
    assert ids(one_process(model=model, maximum_tokens=6), *contexts) != expected


SCALING = {"pos_emb": "rotary", "rope_scaling.original_max_position_embeddings": 11}
#: Name -> the model, and the lengths of passes. The longest row ends its document after twelve tokens.
BY_LENGTH = {
    "longrope": (
        {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [1.0, 4.0, 16.0, 64.0]},
        [9, 1, 1, 12, 7, 1],
    ),
    "dynamic": ({"rope_type": "dynamic", "factor": 1000.0}, [9, 1, 1, 12, 7, 8]),
}


@pytest.mark.parametrize("name", BY_LENGTH)
def test_keys_of_another_length_are_not_read_from_the_cache(name) -> None:
    settings, lengths = BY_LENGTH[name]
    model = UNTIED | SCALING | {f"rope_scaling.{key}": value for key, value in settings.items()}
    contexts = ("abc", "hellofyou", "", "xx")
    expected = ids(one_process(model=model, maximum_tokens=6, recompute=True), *contexts)
    generator = one_process(model=model, maximum_tokens=6)
    shapes = spied(generator)
    assert ids(generator, *contexts) == expected
    assert [length for _, length in shapes] == lengths
    planted = one_process(model=model, maximum_tokens=6)
    planted.context = planted.longest_cached = SEQ
    assert ids(planted, *contexts) != expected


@pytest.mark.parametrize("reset", ["reset_attention_mask", "reset_position_ids"])
def test_models_with_document_masks_use_no_cache(reset) -> None:
    generator = one_process(model={**UNTIED, reset: True}, maximum_tokens=3)
    shapes = spied(generator)
    ids(generator, "hellofyou")
    assert shapes == [(1, 9), (1, 10), (1, 11)]


def test_a_sample_finishes_at_the_end_of_its_document() -> None:
    ended = greedy_tokens([0, 1, 2], 3)[0]

    class EndsThere(Letters):
        eod = ended[2]

    expected = greedy_tokens([23], 6)[0]
    assert EndsThere.eod not in [*ended[:2], *expected]
    generator = one_process(EndsThere(), maximum_tokens=6)
    shapes = spied(generator)
    samples = [generator.sample(context) for context in ("abc", "x")]
    generator.finish(samples)
    assert [sample.ids for sample in samples] == [ended[:2], expected]
    assert [sample.finished for sample in samples] == [True, False]
    assert shapes == [(2, 3), (2, 1), (2, 1), (1, 1), (1, 1), (1, 1)]


def test_the_same_seed_gives_the_same_text_and_two_samples_differ() -> None:
    first, second = (ids(one_process(temperature=1.0, maximum_tokens=12), "ab", "ab") for _ in range(2))
    assert first == second
    assert first[0] != first[1]
    assert ids(one_process(temperature=1.0, maximum_tokens=12), "ab") == first[:1]  # alone as beside another


def on_a_rank(
    sizes: dict[str, int], contexts: list[str], every_options: list[dict[str, float]]
) -> list[list[list[int]]]:
    """Return this rank's texts for each model and each of the options."""
    found = []
    for model in MODELS:
        found += generated(small(**model, **sizes), contexts, every_options)
        mesh.destroy_groups()
    return found


MODELS = (UNTIED, EVERYTHING, UNTIED | CACHED["rpe, sparse"], UNTIED | CACHED["rotary, shared keys"])


def generated(config: Config, contexts: list[str], every_options: list[dict[str, float]]) -> list[list[list[int]]]:
    module = build(config).eval()
    here = mesh.build_mesh(config)
    torch.manual_seed(torch.distributed.get_rank())
    if config.parallel.pipe_parallel_size:
        loss = Loss(VOCABULARY, here.tensor)
        model = PipelinedModel(module, loss, here, CPU, config.shape.hidden_size, needs_document_starts(config.data))
    else:
        model = PlainModel(module, module, CPU)
    generators = [Generator(model, Letters(), Generation(**options), SEQ, here, seed=3) for options in every_options]
    shapes = spied(generators[0])
    found = [ids(generator, *contexts) for generator in generators]
    assert shapes[0][0] == len(contexts[here.data.rank :: here.data.size])
    return found


@pytest.mark.parametrize(("tensor", "pipe"), [(2, 0), (2, 2)], ids=["tp2 dp2", "tp2 pp2"])
def test_every_layout_gives_the_same_text(tensor, pipe) -> None:
    contexts = ["abc", "", "hellofyou"]  # f ends documents
    options = [{"maximum_tokens": 5, "temperature": temperature} for temperature in (0.0, 1.0)]
    expected = [ids(one_process(model=model, **each), *contexts) for model in MODELS for each in options]
    assert expected[0] != expected[2]
    sizes = {"model_parallel_size": tensor, "pipe_parallel_size": pipe}
    for found in run_ranks(on_a_rank, 4, sizes, contexts, options, timeout=240):
        assert found == expected


RUN = """
dialect: neox-2026
num_layers: 2
hidden_size: 32
num_attention_heads: 4
seq_length: 16
max_position_embeddings: 16
train_micro_batch_size_per_gpu: 1
train_iters: 1
tokenizer_type: ByteLevelTokenizer
optimizer: {type: Adam, params: {lr: 1.0e-3}}
checkpoint_factor: 1
maximum_tokens: 5
no_weight_tying: true
"""


LAYOUTS = {
    "pp2": ["pipe_parallel_size=2"],
    "pp2, bf16": ["pipe_parallel_size=2", "precision=bfloat16"],
    "dp2, ZeRO-2": ["pipe_parallel_size=0", "zero_optimization.stage=2"],
    "dp2, bf16": ["pipe_parallel_size=0", "precision=bfloat16", "zero_optimization.stage=0"],
    "dp2, ZeRO-3": ["pipe_parallel_size=0", "zero_optimization.stage=3", "init_method_std=0.3"],
}
CONTEXTS = ("abc", "x", "hello")
Texts = list[list[int]]


def saved_and_loaded(folder: str) -> dict[str, tuple[Texts, Texts, bool]]:
    """What each layout's model generates when it is saved, with weights that no seed gives, and after it has been
    loaded; and whether it was loaded with an optimizer."""
    process = setup.start("gloo", seed=1)
    found = {}
    for name, overrides in LAYOUTS.items():
        config = resolve([f"{folder}/my.yml"], [*overrides, f"save={folder}/{name}"], gpus=2)
        arguments = parse_rank_arguments(script_arguments(config))
        here = mesh.build_mesh(config)
        trained = engine.build(config, arguments.deepspeed, engine.vocabulary(config, 257), here)
        module = trained.deepspeed.module
        if config.zero_optimization.stage < 3:
            with torch.no_grad():
                for parameter in module.parameters():
                    parameter.mul_(7)
        Checkpoints(config, trained.deepspeed, process).save(Position(1, 2))
        module.eval()
        if isinstance(trained, Pipelined):
            model = PipelinedModel(module, Loss(engine.vocabulary(config, 257)), here, CPU, 32)
        elif config.zero_optimization.stage < 3:
            model = PlainModel(module, module, CPU)
        else:  # no rank has all of the weights: the same model once more
            whole = GPT(config, engine.vocabulary(config, 257), Weights(config.training.seed), Shared()).eval()
            model, here = PlainModel(whole, whole, CPU), Mesh()
        saved = Generator(model, ByteTokenizer(257, 256), config.generation, SEQ, here, seed=1)
        before = ids(saved, *CONTEXTS)
        mesh.destroy_groups()
        wanted, json = for_generation(arguments.config), without_training(arguments.deepspeed)
        here, tokenizer = mesh.build_mesh(wanted), ByteTokenizer(257, 256)
        built, _ = load_model(wanted, json, tokenizer, here, process)
        loaded = make_generator(built, wanted, tokenizer, here, process)
        shapes = spied(loaded)
        found[name] = before, ids(loaded, *CONTEXTS), built.deepspeed.basic_optimizer is not None
        assert shapes[0][0] == len(CONTEXTS[here.data.rank :: here.data.size])
        mesh.destroy_groups()
    return found


def test_a_checkpoint_generates_what_was_saved_without_anything_for_training(tmp_path) -> None:
    (tmp_path / "my.yml").write_text(RUN)
    for found in run_ranks(saved_and_loaded, 2, str(tmp_path), timeout=240):
        for name, (before, after, with_optimizer) in found.items():
            assert before == after, name
            assert all(before) and with_optimizer == (name == "dp2, ZeRO-3")


def test_what_only_training_needs_is_left_out(tmp_path) -> None:
    begin(tmp_path, 3)
    commit(tmp_path, 3)
    config = for_generation(small(save=str(tmp_path), no_load_optim=False))
    assert config.checkpoint.load == str(tmp_path) and config.checkpoint.no_load_optim
    json = {"zero_optimization": {"stage": 2}, "optimizer": {"type": "OneBitAdam"}, "bf16": {"enabled": True}}
    assert without_training(json) == {"bf16": {"enabled": True}}
    stage_3 = {"zero_optimization": {"stage": 3}, "optimizer": {"type": "Adam"}}
    assert without_training(stage_3) == stage_3


class TestNoCheckpoint:
    def what(self, **values) -> str:
        return render(refused(for_generation, small(**values)))

    def test_no_folder(self) -> None:
        pinned(self.what())

    def test_an_empty_folder(self, tmp_path) -> None:
        pinned(self.what(save=str(tmp_path)))


def test_padding() -> None:
    tokens, last = padded([[5, 6, 7], [8]])
    assert tokens.tolist() == [[5, 6, 7], [8, 0, 0]]
    assert last.tolist() == [2, 0]


class TestPrompts:
    def test_without_any(self) -> None:
        assert list(prompts(Generation(num_samples=3), True)) == ["", "", ""]

    def test_one_given(self) -> None:
        options = Generation(prompt="def f", num_samples=2, text_gen_type="unconditional")
        assert list(prompts(options, True)) == ["def f", "def f"]

    def test_a_file(self, tmp_path) -> None:
        (tmp_path / "in.txt").write_text("one\n\n  two  \n")
        options = Generation(text_gen_type="input-file", sample_input_file=str(tmp_path / "in.txt"))
        assert list(prompts(options, True)) == ["one", "two"]

    def test_typed(self, monkeypatch, capsys) -> None:
        monkeypatch.setattr("sys.stdin", io.StringIO("one\ntwo\nlines END\nlast"))
        assert list(prompts(Generation(text_gen_type="interactive"), True)) == ["one", "two", "lines END", "last"]
        monkeypatch.setattr("sys.stdin", io.StringIO("one\ntwo\nlines END\nlast"))
        options = Generation(text_gen_type="interactive", prompt_end=" END\n")
        assert list(prompts(options, True)) == ["one\ntwo\nlines", "last"]
        monkeypatch.setattr("sys.stdin", io.StringIO("one\ntwo"))
        assert list(prompts(Generation(text_gen_type="interactive", prompt_end=""), True)) == ["one\n", "two"]
        assert capsys.readouterr().out.startswith("prompt> ")

    @pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
    def test_typed_bytes_that_are_no_text(self, monkeypatch, errors) -> None:
        """Python's errors="surrogateescape" is for locales such as C."""
        interactive = Generation(text_gen_type="interactive")
        for program in (lambda: list(prompts(interactive, True)), lambda: [_read(), _read()]):
            stdin = io.TextIOWrapper(io.BytesIO(b"alpha\nbeta\xff\n"), "utf-8", errors=errors)
            monkeypatch.setattr("sys.stdin", stdin)
            assert program() == ["alpha", "beta\ufffd"]

    def test_a_closed_standard_input_is_empty(self, monkeypatch) -> None:
        monkeypatch.setattr("sys.stdin", None)
        assert list(prompts(Generation(text_gen_type="interactive"), True)) == [] and _read() is None

    @pytest.mark.parametrize(
        ("options", "told"),
        [
            ({"text_gen_type": "precompute"}, "text_gen_type (precompute) is not supported by generate.py"),
            ({"text_gen_type": "input-file"}, "text_gen_type (input-file) needs sample_input_file"),
            ({"text_gen_type": "input-file", "sample_input_file": "absent"},
             "sample_input_file (absent) cannot be read: [Errno 2]"),
        ],
    )  # fmt: skip
    def test_problems(self, options, told) -> None:
        assert told in render(refused(lambda: list(prompts(Generation(**options), True))))

    def test_an_empty_file(self, tmp_path) -> None:
        (tmp_path / "in.txt").write_text("\n \n")
        options = Generation(text_gen_type="input-file", sample_input_file=str(tmp_path / "in.txt"))
        pinned(refused(lambda: list(prompts(options, True))))


class TestLongPrompts:
    """The model has a context of 16 tokens, and the last new token is never read."""

    def test_what_the_model_does_not_see_is_said_with_the_numbers(self) -> None:
        generator = one_process(maximum_tokens=5)
        assert list(generator.overlong([generator.sample("a" * 12)])) == []
        [warning] = generator.overlong([generator.sample("a" * 13), generator.sample("a")])
        pinned(warning)
        generator.prefix = [0, 0]  # a soft prompt takes a part of the context
        assert "context of 14 tokens" in next(generator.overlong([generator.sample("a" * 11)]))

    def test_scaling_by_length_covers_a_longer_text(self) -> None:
        generator = one_process(maximum_tokens=5)
        generator.context, generator.each_length = 12, True
        assert "seq_length: 19 and max_position_embeddings: 12" in next(
            generator.overlong([generator.sample("a" * 15)])
        )

    def test_generate_says_it_on_standard_error(self, capsys) -> None:
        generate(one_process(maximum_tokens=1), iter(["a" * 17, "b"]), None, True)
        assert capsys.readouterr().err.count("warning: the prompt") == 1
        generate(one_process(maximum_tokens=1), iter(["a" * 17]), None, False)
        assert capsys.readouterr().err == ""


class TestOutput:
    def test_a_line_of_json_for_each_sample_and_the_text_for_the_reader(self, capsys) -> None:
        output = io.StringIO()
        generate(one_process(maximum_tokens=4), iter(["abc", "x"]), output, main=True)
        records = [json.loads(line) for line in output.getvalue().splitlines()]
        assert [record["context"] for record in records] == ["abc", "x"]
        expected = Letters().detokenize(greedy_tokens([0, 1, 2], 4)[0])
        assert records[0]["text"] == expected
        assert {key: records[0][key] for key in ("length", "finished", "message")} == {
            "length": 4, "finished": False, "message": None,
        }  # fmt: skip
        assert "logits" not in records[0]
        assert capsys.readouterr().out.splitlines()[0] == f"abc{expected}"

    def test_logits_when_asked_for(self) -> None:
        output = io.StringIO()
        generate(one_process(maximum_tokens=4, return_logits=True), iter(["abc"]), output, main=True)
        assert json.loads(output.getvalue())["logits"] == pytest.approx(greedy_tokens([0, 1, 2], 4)[1], abs=1e-5)

    def test_more_prompts_than_fit_together(self) -> None:
        output = io.StringIO()
        generate(one_process(maximum_tokens=1), iter(["a"] * 19), output, main=True)
        assert len(output.getvalue().splitlines()) == 19

    def test_other_ranks_write_nothing(self, capsys) -> None:
        generate(one_process(maximum_tokens=1), iter(["a"]), None, main=False)
        assert capsys.readouterr().out == ""
