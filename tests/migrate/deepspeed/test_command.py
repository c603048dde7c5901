"""Every form of a DeepSpeed JSON is converted to YAML that loads."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from neoxargs.base.files import Text
from neoxargs.base.problems import Problems
from neoxargs.cli import main
from neoxargs.migrate.deepspeed.command import DeepSpeed
from neoxargs.migrate.deepspeed.convert import convert_version
from neoxargs.migrate.deepspeed.lenient_json import blocks, leaves
from neoxargs.migrate.deepspeed.versions import Version, chosen, versions
from neoxargs.migrate.result import Result
from neoxargs.migrate.source import Options
from neoxargs.resolve import File, complete, draft, read_files
from neoxargs.resolve.derive import Unresolved
from neoxargs.resolve.values.auto import AUTO_VALUES
from neoxargs.resolve.yaml.nodes import Scalar
from tests.support.paths import NEOX_2021, REFERENCE, needs_corpus
from tests.support.refused import ids, refused
from tests.support.snapshots import pinned

JSONS = sorted(NEOX_2021.glob("deepspeed_configs/*.json"))
MODEL = "{num_layers: 2, hidden_size: 64, num_attention_heads: 4, seq_length: 16, train_iters: 10}"

#: What every file without gradient_clipping gets.
NO_CLIPPING = "gradient_clipping: 0.0  # DeepSpeed's default before 0.19.3\n"
#: What every file with an optimizer and without a scheduler gets.
CONSTANT = (
    "lr_decay_style: constant  # DeepSpeed has no schedule without a scheduler section\n"
    "warmup: 0.0  # DeepSpeed has no schedule without a scheduler section\n"
)


def versions_of(text: str) -> list[Version]:
    return versions(blocks(Text("ds.json", text)))


def yaml(text: str) -> str:
    result = convert_version(chosen(versions_of(text), None, "ds.json"), "ds.json").text
    assert draft([File("new.yml", result)]).problems == []
    text = result.removeprefix("# Converted from ds.json by deepy migrate.\n").removesuffix("dialect: neox-2026\n")
    return text.replace(NO_CLIPPING, "")


def problems(text: str, number: int | None = None) -> list[tuple[str, str, str]]:
    return [
        (str(problem.where), problem.what, problem.hint)
        for problem in refused(lambda: chosen(versions_of(text), number, "ds.json"))
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"train_batch_size": 8}', "train_batch_size: 8\n"),
        ('{"fp16": {"enabled": true,},}', "fp16:\n  enabled: true\n"),
        ("{'fp16': {'enabled': True}}", "fp16:\n  enabled: true\n"),
        ('config = {"train_batch_size": 8}\nprint(config)', "train_batch_size: 8\n"),
        ('{"train_batch_size": 8 // all of it\n}', "train_batch_size: 8  # all of it\n"),
        ('{\n# how\n# many\n"train_batch_size": 8}', "# how\n# many\ntrain_batch_size: 8\n"),
        (
            'ZERO=1\nZERO=2\ncat <<EOF\n{"zero_optimization": {"stage": ${ZERO}}}\nEOF',
            "zero_optimization:\n  stage: 2\n",
        ),
        ('{"train_batch_size": ${BATCH:-64}}', "train_batch_size: 64\n"),
        ('{ /* how many */\n"train_batch_size": 8}', "train_batch_size: 8\n"),
        ('{"zero_optimization": {"reduce_bucket_size": 5e8}}', "zero_optimization:\n  reduce_bucket_size: 5e8\n"),
        ('{"gradient_clipping": 1.0, "fp16": {}}', "fp16: {}\ngradient_clipping: 1.0\n"),
        (
            '{"optimizer": {"type": "Adam", "params": {"lr": 1e-3, "betas": (0.9, 0.95), "max_grad_norm": 2}}}',
            "optimizer:\n  type: Adam\n  params:\n    lr: 1e-3\n    betas: [0.9, 0.95]\n"
            f"    weight_decay: 0.0  # DeepSpeed's default\n{CONSTANT}gradient_clipping: 2.0\n",
        ),
        (
            '{"zero_optimization": {"stage": 2, "cpu_offload": true}}',
            "zero_optimization:\n  stage: 2\n  offload_optimizer: {device: cpu}\n",
        ),
        ("# Notes\n\nMP_SIZE=4\n```json\n{\n}\n```\n", "model_parallel_size: 4\n"),
    ],
)
def test_json_as_yaml(text: str, expected: str) -> None:
    assert yaml(text) == expected


@pytest.mark.parametrize("text", [
    '{"a": 1', '{"train_batch_size": 2**4}', '{"train_batch_size": Open}', '{"train_batch_size": open}',
    '{"train_batch_size" 4}', '{"train_batch_size": 1,024}',
    '{"optimizer": {"params": {"lr": 0,0006, "eps": 1e-8}}}', '{"fp16": [1 2]}', '{"fp16": }', "{: 1}",
    '{"a": ' + "[" * 40 + "}",
])  # fmt: skip
def test_syntax_errors(text: str) -> None:
    pinned(refused(versions_of, text)[0])


def test_a_python_condition_is_not_evaluated() -> None:
    hint = "write a number, or text in quotes; names and expressions are not evaluated"
    what = "expected `,` or the closing `}` before this character"
    assert problems('{"a": "cpu" if x else "none"}') == [("ds.json:1:13", what, hint)]


TEMPLATE = """{"train_batch_size": GLOBAL_BATCH, "steps_per_print": ${EVERY:-7}, "zero_optimization": {"stage": "$Z"},
"fp16": {"enabled": $(is_fp16), "loss_scale": 0}}"""


def migrated(text: str, **given: str) -> Result:
    return DeepSpeed().converts([Text("ds.json", text)], Options(variables=given))


def settings_in(result: Result) -> dict[str, object]:
    return {name: value.value for name, value in draft([File("new.yml", result.text)]).values.items()}


def test_values_that_a_script_inserts_are_left_out() -> None:
    result = migrated(TEMPLATE)
    pinned(result.text)
    warnings = [problem for problem in result.problems if problem.id == "migrate-variable-unset"]
    pinned(warnings)


OPEN = """{"gradient_clipping": $CLIP, "train_batch_size": 8, "bf16": {"enabled": CONFIG_BF16}, "fp16": {},
"optimizer": {"type": $OPTIMIZER, "params": {"lr": 1e-4}}, "scheduler": {"type": $SCHEDULE},
"zero_optimization": {"offload_optimizer": {"device": "$DEVICE"}, "cpu_offload": $OFFLOAD}}"""


def test_what_a_script_inserts_gets_neither_a_default_nor_an_empty_section() -> None:
    result = migrated(OPEN)
    pinned(result.text)
    assert [f"# {line}" for line in result.to_do] == [line for line in result.text.splitlines() if "TODO" in line]
    assert "migrate-optimizer-missing" not in ids(result.problems)
    given = {"CLIP": "2", "CONFIG_BF16": "true", "OPTIMIZER": "Adam", "SCHEDULE": "WarmupLR", "DEVICE": "cpu"}
    assert migrated(OPEN, **given, OFFLOAD="false").to_do == []


def test_both_precisions_are_refused() -> None:
    for name in ("bf16", "bfloat16"):
        pinned(refused(migrated, f'{{"fp16": {{"enabled": true}},\n "{name}": {{"enabled": true}}}}'))
    assert migrated('{"fp16": {"enabled": true}, "bf16": {"enabled": false}}').text


def test_another_name_of_a_key_is_printed() -> None:
    changes = migrated('{"train_batch_size": 8,\n "aio": {"thread_count": 2}}').changes
    pinned([str(change) for change in changes if change.before])


def test_values_for_what_a_script_inserts() -> None:
    text = migrated("EVERY=9\n" + TEMPLATE.replace('"$Z"', "$Z"), GLOBAL_BATCH="48", Z="2", EVERY="5").text
    assert "train_batch_size: 48\n" in text
    assert "  stage: 2\n" in text
    assert "steps_per_print: 5\n" in text


def test_nested_arithmetic_that_a_script_inserts() -> None:
    text = '{"train_batch_size": $((A * B / (C * (D + 1)))), "steps_per_print": 4}'
    assert "# TODO: set train_batch_size ($((A * B / (C * (D + 1)))) in DeepSpeed's JSON).\n" in migrated(text).text


FREE = """{"train_batch_size": BATCH_SIZE, "fp16": {"enabled": true}, "optimizer": {"type": "Adam", "params": {
"betas": [0.9, BETA_2]}}, "compression_training": {"sparse_pruning": {"different_groups": {
"KEY_OF_GROUP": {"modules": ["a"]}, "sp1": {"params": {"dense_ratio": DENSE_RATIO}, 
"modules": ["attention.self", "MODULE_NAME"]}}}},
"tensorboard": {"output_path": "$OUT/logs", "job_name": "JOB_NAME"}, "wandb": {"project": "ABC"}}"""


def test_placeholders_inside_free_sections_lists_and_keys_are_left_out_too() -> None:
    result = migrated(FREE)
    group = "compression_training.sparse_pruning.different_groups"
    assert [line for line in result.text.splitlines() if "TODO" in line] == [
        "# TODO: set train_batch_size (BATCH_SIZE in DeepSpeed's JSON).",
        "# TODO: set optimizer.params.betas (BETA_2 in DeepSpeed's JSON).",
        f"# TODO: set {group} (KEY_OF_GROUP in DeepSpeed's JSON).",
        f"# TODO: set {group}.sp1.params.dense_ratio (DENSE_RATIO in DeepSpeed's JSON).",
        f"# TODO: set {group}.sp1.modules (MODULE_NAME in DeepSpeed's JSON).",
        "# TODO: set tensorboard.output_path ($OUT/logs in DeepSpeed's JSON).",
        "# TODO: set tensorboard.job_name (JOB_NAME in DeepSpeed's JSON).",
    ]
    body = "\n".join(line for line in result.text.splitlines() if not line.startswith("#"))
    assert not re.search("[A-Z]+_[A-Z]|\\$", body)
    assert "project: ABC" in body
    given = {"BATCH_SIZE": "8", "BETA_2": "0.95", "KEY_OF_GROUP": "sp0", "DENSE_RATIO": "0.5", "MODULE_NAME": "mlp"}
    result = migrated(FREE, **given, OUT="/runs", JOB_NAME="first")
    assert "TODO" not in result.text
    assert "betas: [0.9, 0.95]" in result.text and settings_in(result)["tensorboard.output_path"] == "/runs/logs"
    assert "{sp0: {modules: [a]}, sp1: {params: {dense_ratio: 0.5}, modules: [attention.self, mlp]}}" in result.text


def test_a_word_in_capitals_of_a_plain_file_is_no_placeholder() -> None:
    assert "project: MY_PROJECT" in yaml('{"wandb": {"project": "MY_PROJECT"}}')


def test_a_value_in_quotes_is_known_from_var() -> None:
    assert "  stage: 2\n" in migrated(TEMPLATE, Z="2").text


def test_a_misspelt_key_of_a_template_is_an_error() -> None:
    pinned(refused(migrated, '{"train_batch_sise": GLOBAL_BATCH}'))


def test_a_file_with_too_many_configurations() -> None:
    ((_, what, _),) = problems("{}\n" * 101)
    pinned(what)


def test_a_contradiction_between_old_and_current_names_has_the_places_in_the_json() -> None:
    (version,) = versions_of('{"gradient_accumulation_steps": 4,\n "fp16": {},\n "gas": 8}')
    (problem,) = refused(convert_version, version, "ds.json")
    assert [str(place) for place in (problem.where, *problem.also)] == ["ds.json:3:2", "ds.json:1:2"]


def test_characters_that_yaml_does_not_allow() -> None:
    text = '{"wandb": {"team": "a\\u0007b"}, # not\x07here\n"train_batch_size": 8}'
    assert yaml(text) == 'train_batch_size: 8\nwandb:\n  team: "a\\u0007b"  # not\N{REPLACEMENT CHARACTER}here\n'
    ((where, what, _),) = problems('{"wandb": {"team": "\\ud83d"}}')
    assert where == "ds.json:1:20"
    pinned(what)


@pytest.mark.parametrize("word", ["CL_MIN", "CL_1st_MIN", "Batch1", "Batch_Size"])
def test_words_of_a_template_may_have_lower_case_letters(word: str) -> None:
    assert (
        f"# TODO: set train_batch_size ({word} in DeepSpeed's JSON).\n"
        in migrated(f'{{"train_batch_size": {word}, "steps_per_print": 4}}').text
    )


@pytest.mark.parametrize("word", ["Adam", "cl_min", "Infinity"])
def test_other_words_are_no_values(word: str) -> None:
    ((_, what, _),) = problems(f'{{"train_batch_size": {word}}}')
    assert what == f"expected a JSON value, got `{word}`"


@pytest.mark.parametrize(
    ("string", "value"),
    [(r'"a\/b"', "a/b"), (r"'\/a\/b'", "/a/b"), (r'"a\\/b"', r"a\/b"), (r'r"a\/b"', r"a\/b"), (r'"a\"\/"', 'a"/')],
)
def test_escaped_slashes(string: str, value: str) -> None:
    (block,) = blocks(Text("ds.json", f'{{"a": {string}}}'))
    ((_, entry),) = leaves(block.tree)
    assert isinstance(entry.value, Scalar)
    assert entry.value.value == value


def test_an_empty_configuration() -> None:
    (version,) = versions_of("{}")
    assert ids(refused(convert_version, version, "ds.json")) == ["file-without-parameters"]


def test_nothing_is_executed(tmp_path: Path) -> None:
    target = tmp_path / "made"
    text = f'{{"train_batch_size": __import__("pathlib").Path("{target}").touch()}}'
    with pytest.raises(Problems):
        versions_of(text)
    assert not target.exists()


def test_several_versions_of_a_section_are_offered_by_number() -> None:
    text = """{
    "zero_optimization": {"stage": 0}

    "zero_optimization": {"stage": 1, "recude_bucket_size": 5e8},
    "zero_optimization": {"stage": 3},
    "gradient_clipping": 1.0
}"""
    offer, misspelt = problems(text)
    pinned(offer)
    pinned(misspelt)
    assert problems(text, 2) == [misspelt]
    pinned(problems(text, 4))
    assert problems('{"zero_optimization": {"stage": 1}}', 2) == [("ds.json", "--choose (2) must be 1", "")]
    third = convert_version(chosen(versions_of(text), 3, "ds.json"), "ds.json")
    assert "stage: 3\n" in third.text
    pinned([problem.what for problem in third.problems][:1])


def test_versions_beyond_the_offered_ones_are_counted() -> None:
    sections = [f'"zero_optimization": {{"stage": {stage}}}, "gradient_clipping": {stage}.5' for stage in (0, 1, 2, 3)]
    text = Text("ds.json", "{" + ",\n".join(sections) + "}")
    (offer,) = refused(lambda: chosen(versions(blocks(text)), None, text.name))
    first, *_, last = offer.what.splitlines()
    pinned(first)
    remove = "to choose one of them, first remove the duplicate keys that you do not need"
    assert last.strip() == f"and 4 more: {remove}"


def test_every_auto_has_a_value_that_fits() -> None:
    """A JSON with `auto` for one parameter becomes YAML that loads and has the reason as a comment."""
    for name, auto in AUTO_VALUES.items():
        *sections, key = name.split(".")
        inner = f'"{key}": "auto"'
        if sections[:1] == ["scheduler"]:
            inner = inner + '}, "type": "WarmupDecayLR"'
        text = "{" + "".join(f'"{section}": {{' for section in sections) + inner
        text += "}" * (text.count("{") - text.count("}"))
        lines = yaml(text).splitlines()
        assert any(auto.why in line for line in lines), name


def test_auto_is_the_value_of_a_command_in_the_same_document() -> None:
    keys = (
        '{"train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto", "gradient_clipping": "auto"}'
    )
    command = "\nrun.py --per_device_train_batch_size 2 --gradient_accumulation_steps=4 --max_grad_norm $NORM --fp16\n"
    pinned(yaml(keys + command).splitlines())
    assert ", line" not in yaml('{"gradient_clipping": "auto"}\na --max_grad_norm 2\nb --max_grad_norm 3\n')


def document(name: str) -> Text:
    return read_files([REFERENCE / name])[0]


@pytest.mark.parametrize("number", range(1, 20))
def test_a_document_with_19_configurations(number: int) -> None:
    """Each has its own PIPELINE_MP_SIZE line; those of stage 0 offload parameters, which `check` refuses."""
    offered = versions(blocks(document("deepspeed_19_runs.txt")))
    assert len(offered) == 19
    version = offered[number - 1]
    result = convert_version(version, "runs.md").text
    drafted = draft(
        [File("new.yml", result), File("model.yml", MODEL.replace("attention_heads: 4", "attention_heads: 32"))]
    )
    assert drafted.problems == []
    size = int(version.block.settings["PIPELINE_MP_SIZE"][0])
    assert drafted.values["model_parallel_size"].value == size
    plain = {name: value.value for name, value in version.draft.values.items()}
    assert {name: drafted.values[name].value for name in plain} == plain
    try:
        config = complete(drafted, 64)
        assert config.get("zero_optimization.stage") == 3
    except Unresolved as stop:
        assert number >= 17
        errors = [problem.what for problem in stop.problems if problem.severity == "error"]
        assert ["needs zero_optimization.stage" in what for what in errors] == [True, True]


def test_a_dict_with_four_stages() -> None:
    offered = versions(blocks(document("deepspeed_four_stages.txt")))
    assert len(offered) == 4
    assert [problem.hint for problem in refused(chosen, offered, None, "seed")] == [
        "add --choose N",
        "did you mean reduce_bucket_size?",
    ]
    for number in (1, 3, 4):
        text = convert_version(chosen(offered, number, "seed"), "seed").text
        config = complete(draft([File("new.yml", text), File("model.yml", MODEL), File("b.yml", "batch_size: 1")]), 2)
        assert config.get("zero_optimization.stage") == (0, 1, 2, 3)[number - 1]
        assert config.get("lr") == 5e-5
        assert "# note 15\n" in text


def test_a_configuration_inside_markdown() -> None:
    notes = document("deepspeed_in_markdown.txt")
    (version,) = versions(blocks(notes))
    result = convert_version(version, "notes.md")
    config = complete(draft([File("new.yml", result.text), File("model.yml", MODEL)]), 2)
    assert config.get("zero_optimization.reduce_bucket_size") == 64**2
    assert config.get("zero_optimization.stage3_prefetch_bucket_size") == 64**2 * 9 // 10
    assert config.get("zero_optimization.stage3_param_persistence_threshold") == 640
    assert config.get("scheduler.params.total_num_steps") == 10
    assert config.get("scheduler.params.warmup_max_lr") == config.get("lr") == 5e-5
    assert config.get("train_batch_size") == 16
    assert len(result.changes) == sum('"auto"' in line for line in notes.text.splitlines())


@needs_corpus
@pytest.mark.parametrize("path", JSONS, ids=lambda path: path.name)
def test_published_json(path: Path) -> None:
    (version,) = versions(blocks(read_files([path])[0]))
    drafted = draft([File("new.yml", convert_version(version, path.name).text)])
    assert drafted.problems == []
    plain = {n: v.value for n, v in version.draft.values.items() if n != "optimizer.params.max_grad_norm"}
    assert {name: drafted.values[name].value for name in plain} == plain


@pytest.mark.parametrize(
    ("sections", "names"),
    [
        ('"fp16": {"enabled": "auto"}, "bf16": {"enabled": "auto"}', ["fp16.enabled and bf16.enabled"]),
        ('"bf16": {"enabled": "auto"}, "fp16": {"enabled": false}', ["bf16.enabled"]),
        ('"bf16": {"enabled": "auto"}, "fp16": {"enabled": true}', []),
        ('"fp16": {"enabled": false}', []),
        ('"bf16": {"enabled": "auto"}}\ntrain.py --bf16 \\\n#{', []),
    ],
)
def test_auto_that_becomes_fp32_is_a_warning(sections: str, names: list[str]) -> None:
    warnings = convert_version(chosen(versions_of(f"{{{sections}}}"), None, "ds.json"), "ds.json").problems
    whats = [problem.what for problem in warnings if problem.id == "migrate-auto-precision-off"]
    end = " becomes false, Hugging Face's default, so this run trains in fp32"
    assert [what.removeprefix('"auto" for ').removesuffix(end) for what in whats] == names


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ds.json").write_text('{"train_batch_size": "auto", "fp16": {"enabled": true}}')
    assert main(["migrate", "ds.json"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("# Converted from ds.json by deepy migrate.\n")
    assert err.startswith('ds.json:1:2: train_batch_size: "auto" → auto, unchanged (resolved at launch: ')
    assert main(["migrate", "ds.json", "-o", "new.yml"]) == 0
    assert Path("new.yml").read_text() == out
    assert capsys.readouterr().err.endswith("new.yml written\n")
    assert main(["migrate", "ds.json", "-o", "new.yml"]) == 1
    pinned(capsys.readouterr().err, "[output-file-exists]")
    Path("template.json").write_text('{"train_batch_size": 8, "bf16": {"enabled": CONFIG_BF16}}')
    assert main(["migrate", "template.json"]) == 1
    pinned(capsys.readouterr().err, "not complete")
    assert main(["migrate", "template.json", "--var", "CONFIG_BF16=true"]) == 0
    capsys.readouterr()
    Path("part.json").write_text('{"num-layers": 4, "save": "x", "save-interval": 5}')
    assert main(["migrate", "part.json"]) == 0
    assert '+{"num-layers": 4, "save": "x", "checkpoint-factor": 5}' in capsys.readouterr().out
    Path("notes.md").write_text("# nothing here\n")
    assert main(["migrate", "notes.md", "--from", "deepspeed"]) == 1
    pinned(capsys.readouterr().err, "[migrate-no-configuration]")
