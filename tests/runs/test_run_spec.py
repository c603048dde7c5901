"""Files, hosts and rules are read together: one number of ranks, and all problems at once."""

from pathlib import Path

import pytest

from neoxargs.base.problems import Problems
from neoxargs.base.request import Request
from neoxargs.runs.run_spec import resolve_run
from tests.support import smallest
from tests.support.refused import refused
from tests.support.snapshots import pinned

MODEL = smallest.YAML
ON_CPU = {"DS_ACCELERATOR": "cpu"}


@pytest.fixture
def written(tmp_path: Path):
    """Resolve the model with further lines."""

    def spec(text: str, environ: dict[str, str] = ON_CPU, gpus: int | None = None):
        (tmp_path / "my.yml").write_text(MODEL + text)
        return resolve_run(Request([str(tmp_path / "my.yml")], gpus=gpus), environ)

    return spec


@pytest.mark.shows("model-parallel-size", "pipe-parallel-size", "num_gpus", "include")
@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        ("", 1),
        ("model_parallel_size: 2\npipe_parallel_size: 2\n", 4),
        ("num_gpus: 6\nmodel_parallel_size: 2\n", 6),
        ("global_num_gpus: 3\n", 3),
        ('include: "localhost:0,1,2"\n', 3),
    ],
)
def test_the_batch_is_computed_for_the_ranks_that_run(written, text, ranks):
    spec = written(text)
    config = spec.config
    assert spec.resources.gpus == config.parallel.world_size == ranks
    copy = config.parallel.model_parallel_size * max(1, config.parallel.pipe_parallel_size)
    assert config.batch.train_batch_size == 2 * ranks // copy


def test_a_number_of_gpus_on_the_command_line_replaces_looking_for_them(written):
    spec = written("dialect: neox-2021\nhostfile: /nowhere\nnum_gpus: 2\n", gpus=32)
    assert (spec.resources.gpus, spec.resources.device, spec.warnings) == (32, "cuda", [])


def test_warnings_point_at_the_line(written):
    warning, *_ = written('include: "localhost:0,1"\nnum_gpus: 4\n').warnings
    pinned(warning)
    assert (warning.where.line, warning.where.column) == (9, 1)


def test_hosts_and_values_are_wrong_at_once(written, tmp_path):
    (tmp_path / "hosts").write_text("worker-0 slots=two\n")
    assert {
        Path(problem.where.file).name for problem in refused(written, f"hostfile: {tmp_path}/hosts\nhiden_dropout: 0\n")
    } == {"hosts", "my.yml"}


def test_slurm_and_mpi_go_through_the_clusters_launcher_on_one_host_too(written, tmp_path):
    (tmp_path / "hosts").write_text("worker-0 slots=2\n")
    assert not written(f"hostfile: {tmp_path}/hosts\n").resources.remote
    spec = written(f"hostfile: {tmp_path}/hosts\ndeepspeed_slurm: true\nlauncher: slurm\n")
    assert spec.resources.remote
    assert spec.config.runner.force_multi


@pytest.mark.parametrize(("text", "remote"), [("", True), ("force_multi: false\n", False)])
def test_hosts_are_found_from_what_rules_derive_unless_it_is_set(written, tmp_path, text, remote):
    """deepspeed_mpi derives both: openmpi, which starts a rank on every slot, and force_multi."""
    (tmp_path / "hosts").write_text("worker-0 slots=2\n")
    spec = written(f"hostfile: {tmp_path}/hosts\ndeepspeed_mpi: true\n{text}")
    assert (spec.config.runner.launcher, spec.config.runner.force_multi) == ("openmpi", remote)
    assert (spec.resources.remote, spec.resources.gpus) == (remote, 2)
    if remote:
        with pytest.raises(Problems, match="launcher-needs-every-slot"):
            written(f"hostfile: {tmp_path}/hosts\ndeepspeed_mpi: true\nnum_gpus: 1\n")


@pytest.mark.parametrize("pipe", [0, 2])
def test_hosts_are_counted_for_sizes_as_the_rules_read_them(written, pipe):
    """A machine without GPUs gets as many processes as a replica has ranks, and 0 tensor parallel ranks are 1."""
    settled = written(f"model_parallel_size: 0\npipe_parallel_size: {pipe}\n")
    assert settled.resources.gpus == settled.config.parallel.world_size == max(pipe, 1)
    assert settled.config.batch.train_batch_size == 2


@pytest.mark.parametrize("text", ["gradient_accumulation_steps: 7\n", "num_gpus: 3\nmodel_parallel_size: 2\n"])
def test_what_does_not_fit_this_machine_may_be_for_another(written, text):
    [here] = refused(written, f"train_batch_size: 128\n{text}")
    [there] = refused(written, f"train_batch_size: 128\n{text}", gpus=3)
    assert ("--gpus" in here.hint, "--gpus" in there.hint) == (True, False)
