"""Resources mean what DeepSpeed's own launcher means by the same hostfile and flags."""

import os
import re
from pathlib import Path

import pytest

from neoxargs.base.problems import Place, Problems, render
from neoxargs.hosts import rank_env, slurm
from neoxargs.hosts.hostfile import parse_hostfile, read_hostfile, select
from neoxargs.hosts.hosts import Resources, resources
from neoxargs.registry.runner import Runner
from tests.support.configure import configure
from tests.support.refused import ids, refused
from tests.support.snapshots import pinned

HOSTFILES = [
    "worker-0 slots=4\nworker-1 slots=8\n",
    "# our machines\n\n  worker-0   slots=4  \n#worker-1 slots=4\n",
    "worker-0\tslots=2 max-slots=16\n",
    "worker-0 slots=4x\n",
    "b slots=1\na slots=1\n",
    "user@10.0.0.1 slots=1\nfe80::1%eth0 slots=2\n",
]
BAD_HOSTFILES = [
    ("worker-0\n", (1, 1)),
    ("worker-0 slots = 4\n", (1, 1)),
    ("# fine\nslots=4\n", (2, 1)),
    ("a slots=1\nb slots=2\n  a slots=3\n", (3, 3)),
    ("a max-slots=1 slots=4\n", (1, 1)),
    ("", (1, 1)),
    ("# nothing else\n", (1, 1)),
]
POOL = {"w0": 4, "w1": 2, "w2": 8}
FILTERS = [
    ("", ""),
    ("w0:0,2@w1:0,1", ""),
    ("w1:1@w0:3", ""),
    ("w0:1,1,0", ""),
    ("w0:7", ""),
    ("w0:0@w0:2", ""),
    ("w0: 1, 2", ""),
    ("", "w1"),
    ("", "w0@w2:0,1,2,3"),
    ("", "w1:0@w1:1"),
    ("", "w0:3@w1"),
]
BAD_FILTERS = [
    ("w9:0", ""),
    ("w9", ""),
    ("w0:", ""),
    ("w0:a", ""),
    ("w0:0-2", ""),
    ("w0:0:1", ""),
    ("@", ""),
    ("w0 ", ""),
    ("", "w9"),
    ("", "w0:4"),
]


@pytest.fixture(scope="module")
def runner():
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    return pytest.importorskip("deepspeed.launcher.runner")


@pytest.fixture
def gpus(tmp_path: Path):
    """A /dev with four GPUs and what else the driver puts there."""
    for name in ("nvidia0", "nvidia1", "nvidia2", "nvidia3", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    return tmp_path


def hostfile(tmp_path: Path, text: str = "w0 slots=4\nw1 slots=2\nw2 slots=8\n") -> str:
    path = tmp_path / "hostfile"
    path.write_text(text)
    return str(path)


def messages(found: Resources) -> list[str]:
    return [warning.what for warning in found.warnings]


@pytest.mark.parametrize("text", HOSTFILES)
def test_a_hostfile_reads_as_deepspeed_reads_it(runner, tmp_path, text):
    path = hostfile(tmp_path, text)
    ours = read_hostfile(path)
    assert ours == runner.fetch_hostfile(path)
    assert list(ours) == list(runner.fetch_hostfile(path))


@pytest.mark.parametrize(("text", "place"), BAD_HOSTFILES)
def test_a_bad_hostfile_is_refused_with_its_place_where_deepspeed_refuses_it(runner, tmp_path, text, place):
    path = hostfile(tmp_path, text)
    with pytest.raises(ValueError, match="Hostfile"):
        runner.fetch_hostfile(path)
    where = refused(read_hostfile, path)[0].where
    assert (where.file, where.line, where.column) == (path, *place)


def test_every_invalid_line_is_reported_at_once():
    pinned(render(refused(parse_hostfile, "a\nb slots=2\nb slots=3\nc slots\n", "hosts")))


@pytest.mark.parametrize(("include", "exclude"), FILTERS)
def test_filters_choose_what_deepspeed_chooses(runner, include, exclude):
    theirs = runner.parse_inclusion_exclusion(POOL, include, exclude)
    assert list(select(POOL, include, exclude).items()) == list(theirs.items())


@pytest.mark.parametrize(("include", "exclude"), BAD_FILTERS)
def test_filters_are_refused_where_deepspeed_refuses_them(runner, include, exclude):
    with pytest.raises(ValueError):
        runner.parse_inclusion_exclusion(POOL, include, exclude)
    with pytest.raises(Problems):
        select(POOL, include, exclude)


def test_an_included_host_without_slots_is_the_whole_host(runner, tmp_path):
    """As documented; DeepSpeed 0.19.6 would select nothing, so it is told every slot."""
    assert not runner.parse_inclusion_exclusion(POOL, "w1", "")
    found = resources(Runner(hostfile=hostfile(tmp_path), include="w1@w0:0,2"), 1, {})
    assert found.hosts == {"w0": [0, 2], "w1": [0, 1]}
    assert runner.parse_inclusion_exclusion(POOL, found.selection["include"], "") == found.hosts


@pytest.mark.parametrize(("include", "exclude"), [
    ("elsewhere", ""), ("node@0,1", ""), ("", "big-node:4"), ("", "node:1"),
])  # fmt: skip
def test_the_problem_of_an_unknown_host_or_slot_lists_the_known_ones(include, exclude):
    pinned(refused(select, {"node": 1, "big-node": 4}, include, exclude))


def test_the_problem_of_a_host_that_needs_a_hostfile():
    pinned(refused(select, {"localhost": 8}, "192.0.2.7:0,1", "")[0])


def test_a_filter_that_leaves_nothing_is_a_problem_at_its_place():
    place = Place("my.yml", 7, 10)
    assert refused(select, POOL, "", "w0@w1@w2", lambda key: place if key == "exclude" else None)[0].where == place


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"w0": [0, 1, 2, 3], "w1": [0, 1], "w2": [0, 1, 2, 3, 4, 5, 6, 7]}),
        ({"num_nodes": 2}, {"w0": [0, 1, 2, 3], "w1": [0, 1]}),
        ({"num_gpus": 2}, {"w0": [0, 1], "w1": [0, 1], "w2": [0, 1]}),
        ({"num_nodes": 1, "num_gpus": 6}, {"w0": [0, 1, 2, 3, 4, 5]}),
        ({"num_nodes": 0, "num_gpus": 0}, {"w0": [0, 1, 2, 3], "w1": [0, 1], "w2": [0, 1, 2, 3, 4, 5, 6, 7]}),
    ],
)
def test_numbers_of_nodes_and_gpus(tmp_path, given, expected):
    found = resources(Runner(hostfile=hostfile(tmp_path), **given), 1, {})
    assert found.hosts == expected
    assert found.device == "cuda"
    assert any("number of slots" in message for message in messages(found)) == (given.get("num_gpus", 0) == 6)
    assert found.gpus == sum(map(len, expected.values()))
    assert {key: int(value) for key, value in found.selection.items() if key != "hostfile"} == {
        key: value for key, value in given.items() if value
    }


def test_more_nodes_than_the_hostfile_lists_uses_them_all_and_says_so(tmp_path):
    found = resources(Runner(hostfile=hostfile(tmp_path), num_nodes=5), 1, {})
    assert len(found.hosts) == 3
    pinned(messages(found))


@pytest.mark.parametrize(
    "given",
    [
        {"include": "w0", "exclude": "w1"},
        {"include": "w0", "num_nodes": 1},
        {"exclude": "w0", "num_nodes": 1},
        {"launcher": "openmpi", "num_nodes": 2},
        {"launcher": "slurm", "exclude": "w0"},
        {"launcher": "mpich"},
    ],
)
def test_contradictions_are_problems(tmp_path, given):
    with pytest.raises(Problems):
        resources(Runner(hostfile=hostfile(tmp_path), **given), 1, {})


def test_num_gpus_together_with_include_has_no_effect_on_arithmetic_or_launch(tmp_path):
    found = resources(Runner(hostfile=hostfile(tmp_path), include="w0:0,1", num_gpus=4), 1, {})
    assert found.gpus == 2
    assert "num_gpus" not in found.selection
    assert "num_gpus (4) has no effect, because include selects the slots" in messages(found)


@pytest.mark.parametrize(
    ("given", "replica", "text", "name"),
    [
        ({"num_gpus": 10**30}, 1, "", "num_gpus"),
        ({"num_nodes": 10**30}, 1, "w0 slots=1\nw1 slots=1\n", "num_nodes"),
        ({"launcher": "srun", "num_nodes": 10**4, "num_gpus": 10**4}, 1, "", "num_nodes"),
        ({}, 10**30, "", "global_num_gpus"),
        ({}, 1, "w0 slots=" + "9" * 5000, "hostfile"),
    ],
)
def test_more_ranks_than_can_be_counted_are_refused(tmp_path, given, replica, text, name):
    path = hostfile(tmp_path, text) if text else "None"
    [problem] = refused(resources, Runner(hostfile=path, **given), replica, {"DS_ACCELERATOR": "cpu"})
    assert (problem.id, problem.about[0]) == ("too-many-ranks", name)
    assert re.match(
        r"the run would have (more than 10\^18|1,000,001|[\d,]{11,}) ranks; the maximum is 1,000,000", problem.what
    )


def test_the_environment_names_hostfile_and_master(tmp_path):
    environ = {"DLTS_HOSTFILE": hostfile(tmp_path, "w5 slots=3\n"), "MASTER_ADDR": "10.1.2.3"}
    found = resources(Runner(hostfile="/nowhere"), 1, environ)
    assert found.hosts == {"w5": [0, 1, 2]}
    assert found.selection == {"hostfile": environ["DLTS_HOSTFILE"], "master_addr": "10.1.2.3"}


def test_a_missing_hostfile_means_this_machine_with_a_warning_if_hostfile_is_set(gpus):
    for environ in ({}, {"CUDA_VISIBLE_DEVICES": "2"}, {"DS_ACCELERATOR": "cpu"}):
        pinned(messages(resources(Runner(hostfile="/mock_path"), 2, environ, dev=gpus)))
    assert messages(resources(Runner(), 1, {}, dev=gpus)) == []


def test_a_missing_hostfile_of_the_environment_is_called_that(gpus, tmp_path):
    """Nothing in the configuration names it."""
    for path, state in (("/nowhere/hosts", "does not exist"), (str(tmp_path), "is not a file")):
        [warning] = resources(Runner(hostfile="hosts"), 1, {"DLTS_HOSTFILE": path}, dev=gpus).warnings
        assert warning.what.startswith(f"the hostfile {path} that DLTS_HOSTFILE names {state}; only this machine")
        assert warning.where is None


@pytest.mark.parametrize("line", [
    "node[1-4] slots=8", "w0 slots = 8", "w0 slots=-1", "w0 slots=eight", "worker-3: slots=8",
    "-oProxyCommand=x slots=8", "user@-w0 slots=8", "a,b slots=8", "w0;reboot slots=8", "[fe80::1] slots=8",
    "w0 slots=8 w1 slots=8", "w0 slots=0", "w0 8",
])  # fmt: skip
def test_what_is_wrong_with_a_line_of_a_hostfile(line):
    pinned(refused(parse_hostfile, line, "hosts"))


def test_a_name_in_capitals_is_the_same_host():
    pinned(refused(parse_hostfile, "node1 slots=8\nNode1 slots=8\n", "hosts"))


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_byte_order_mark_is_named(tmp_path, encoding):
    """DeepSpeed would take it for the beginning of the first host's name."""
    (tmp_path / "hosts").write_text("w0 slots=4\nw1 slots=4\n", encoding=encoding)
    with pytest.raises(Problems, match=r"hosts:1:1: error: the hostfile .*hosts begins with a byte order mark"):
        read_hostfile(str(tmp_path / "hosts"))


def test_a_filter_with_commas_between_hosts_says_what_to_write():
    pinned(refused(select, POOL, "w0,w2", ""))


def test_a_file_that_is_no_hostfile_is_not_shown():
    """A configuration of a stranger may name any file."""
    problems = refused(parse_hostfile, "machine host.example\n  login me\n  password hunter2\n\nroot:x:0[1]\n", "hosts")
    assert [problem.where.line for problem in problems] == [1, 2, 3, 5]
    assert not re.search("hunter|login|example|root", render(problems))


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_a_hostfile_that_never_ends_is_not_read(tmp_path, kind):
    if kind == "pipe":
        os.mkfifo(tmp_path / "hosts")
    path = str(tmp_path / "hosts") if kind == "pipe" else "/dev/zero"
    assert read_hostfile(path) is None


TWO_NODES = {"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "node[1-2]", "DS_ACCELERATOR": "cpu"}


@pytest.mark.parametrize(("given", "environ"), [
    ({}, TWO_NODES), ({"launcher": "slurm"}, {}), ({"launcher": "ssh"}, {}), ({"force_multi": True}, {}),
    ({"launcher": "torchrun"}, {}), ({"num_nodes": 1}, TWO_NODES), ({"no_ssh": True}, TWO_NODES),
    ({}, {**TWO_NODES, "SLURM_STEP_ID": "0"}),
])  # fmt: skip
def test_a_launcher_of_several_machines_without_a_hostfile_is_a_warning(given, environ):
    pinned(resources(Runner(**given), 1, {"DS_ACCELERATOR": "cpu", **environ}).warnings)


@pytest.mark.parametrize(
    ("given", "environ", "devices"),
    [
        ({}, {}, [0, 1, 2, 3]),
        ({"num_gpus": 2}, {}, [0, 1]),
        ({"include": "localhost:1,3"}, {}, [1, 3]),
        ({"exclude": "localhost:0"}, {}, [1, 2, 3]),
        ({}, {"CUDA_VISIBLE_DEVICES": "2,3"}, [2, 3]),
        ({}, {"CUDA_VISIBLE_DEVICES": "1,-1,2"}, [1]),
        ({"num_gpus": 1}, {"CUDA_VISIBLE_DEVICES": "2,3"}, [2]),
        ({"num_gpus": 2}, {"CUDA_VISIBLE_DEVICES": "3,2"}, [3, 2]),
        ({"include": "localhost:3"}, {"CUDA_VISIBLE_DEVICES": "2,3"}, [3]),
        ({"include": "localhost"}, {"CUDA_VISIBLE_DEVICES": "2,3"}, [2, 3]),
        ({"exclude": "localhost:0,3"}, {"CUDA_VISIBLE_DEVICES": "2,3"}, [2]),
        ({"num_gpus": 8}, {}, list(range(8))),
    ],
)
def test_the_gpus_of_this_machine(gpus, given, environ, devices):
    found = resources(Runner(**given), 1, environ, dev=gpus)
    assert (found.hosts, found.device, found.remote) == ({"localhost": devices}, "cuda", False)
    assert bool(found.warnings) == (len(devices) > 4)


@pytest.mark.parametrize("given", [
    {"num_gpus": 3}, {"include": "localhost:1,2"}, {"exclude": "localhost:2,3"},
    {"hostfile": "localhost slots=3\n"}, {"hostfile": "localhost slots=4\n", "num_gpus": 1},
])  # fmt: skip
def test_no_gpu_is_used_that_is_not_visible(gpus, given):
    """On a shared machine, these are other people's."""
    if "hostfile" in given:
        given = {**given, "hostfile": hostfile(gpus, given["hostfile"])}
    pinned(refused(resources, Runner(**given), 1, {"CUDA_VISIBLE_DEVICES": "2,3"}, dev=gpus))


def test_a_visible_gpu_of_a_hostfile_is_used(gpus):
    runner = Runner(hostfile=hostfile(gpus, "localhost slots=4\n"), include="localhost:2")
    assert resources(runner, 1, {"CUDA_VISIBLE_DEVICES": "2,3"}, dev=gpus).hosts == {"localhost": [2]}


@pytest.mark.parametrize(("visible", "warns"), [("2,3", True), ("0,1,2,3", False)])
def test_visible_devices_have_no_effect_on_several_hosts_which_is_a_warning(gpus, visible, warns):
    runner = Runner(hostfile=hostfile(gpus, "localhost slots=4\nw1 slots=4\n"))
    found = resources(runner, 1, {"CUDA_VISIBLE_DEVICES": visible}, dev=gpus)
    assert found.gpus == 8
    assert ids(found.warnings) == ["devices-not-visible"] * warns


def test_no_gpus_at_all_is_refused():
    pinned(refused(configure, "num_gpus: 0"))


def test_visible_devices_that_are_not_numbers_are_a_problem(gpus):
    for given in ({}, {"num_gpus": 1}, {"include": "localhost:0"}):
        with pytest.raises(Problems, match="CUDA_VISIBLE_DEVICES"):
            resources(Runner(**given), 1, {"CUDA_VISIBLE_DEVICES": "GPU-8f2a"}, dev=gpus)


def test_a_gpu_that_is_visible_twice_is_a_problem(gpus):
    """NCCL refuses two ranks on the same GPU, after the start."""
    pinned(refused(resources, Runner(), 1, {"CUDA_VISIBLE_DEVICES": "1,0,1"}, dev=gpus))


@pytest.mark.parametrize("visible", ["7", "0,7,1", "4"])
def test_a_visible_gpu_that_does_not_exist_is_a_problem(gpus: Path, visible: str) -> None:
    """CUDA would use the GPUs before it, or none, so that the run would train with fewer ranks or on the CPU."""
    assert ids(refused(resources, Runner(), 1, {"CUDA_VISIBLE_DEVICES": visible}, dev=gpus)) == [
        "visible-devices-absent"
    ]
    on_cpu = resources(Runner(), 1, {"CUDA_VISIBLE_DEVICES": visible, "DS_ACCELERATOR": "cpu"}, dev=gpus)
    assert on_cpu.device == "cpu"


@pytest.mark.parametrize(
    ("given", "environ", "ranks"),
    [
        ({}, {}, 6),
        ({"num_gpus": 2}, {}, 2),
        ({"include": "localhost:1"}, {}, 1),
        ({"exclude": "localhost:5"}, {}, 5),
        ({}, {"CUDA_VISIBLE_DEVICES": "0"}, 6),
    ],
)
def test_without_gpus_ranks_are_processes_as_many_as_the_layout_takes(tmp_path, given, environ, ranks):
    found = resources(Runner(**given), 6, environ, dev=tmp_path)
    assert found == Resources({"localhost": list(range(ranks))}, "cpu", {"num_gpus": str(ranks)})


def test_a_machine_with_gpus_can_be_told_to_compute_on_its_cpu(gpus):
    assert resources(Runner(), 2, {"DS_ACCELERATOR": "cpu"}, dev=gpus).device == "cpu"
    assert resources(Runner(), 2, {"CUDA_VISIBLE_DEVICES": ""}, dev=gpus).device == "cpu"


def test_a_hostfile_of_this_machine_alone_needs_no_ssh_on_a_cpu(tmp_path):
    path = hostfile(tmp_path, "localhost slots=3\n")
    found = resources(Runner(hostfile=path), 1, {}, dev=tmp_path)
    assert (found.gpus, found.device, found.remote) == (3, "cpu", False)
    assert found.selection == {"hostfile": os.devnull, "num_gpus": "3"}


def test_several_nodes_need_a_hostfile(tmp_path):
    pinned(refused(resources, Runner(num_nodes=2), 1, {}, dev=tmp_path))


def test_mpirun_starts_ranks_on_this_machine_too(tmp_path):
    """On every slot of the hostfile, which DeepSpeed hands on; the ranks are processes of this machine."""
    path = hostfile(tmp_path, "localhost slots=3\n")
    runner = Runner(hostfile=path, force_multi=True, launcher="openmpi")
    found = resources(runner, 1, {"DS_ACCELERATOR": "cpu"}, dev=tmp_path)
    assert found == Resources({"localhost": [0, 1, 2]}, "cpu", {"hostfile": path})


def test_an_included_slot_beyond_the_hostfile_is_used_with_a_warning(tmp_path):
    """As in DeepSpeed: slots are device numbers, and a host with `slots=2` may have a device 12."""
    found = resources(Runner(hostfile=hostfile(tmp_path), include="w0@w1:12"), 1, {})
    assert found.hosts == {"w0": [0, 1, 2, 3], "w1": [12]}
    what = f"`include` names slot 12 of w1, but {tmp_path}/hostfile has slots=2 for this host; slot 12 is used anyway"
    assert messages(found) == [what]


def test_the_environment_overrides_the_rendezvous_address_and_the_summary_says_so(tmp_path):
    environ = {"DLTS_HOSTFILE": hostfile(tmp_path), "MASTER_ADDR": "10.1.2.3", "MASTER_PORT": "1234"}
    found = resources(Runner(master_port=5), 1, environ)
    assert found.selection == {"hostfile": environ["DLTS_HOSTFILE"], "master_addr": "10.1.2.3", "master_port": "1234"}
    assert found.overrides == tuple(f"{name} {value}  (environment)" for name, value in environ.items())
    alone = resources(Runner(), 2, {"MASTER_ADDR": "10.1.2.3", "MASTER_PORT": "1234"}, dev=tmp_path)
    assert alone.selection == {"num_gpus": "2", "master_port": "1234"}
    assert alone.overrides == ("MASTER_PORT 1234  (environment)",)


@pytest.mark.parametrize(
    ("given", "environ", "hosts"),
    [
        ({"num_nodes": 2, "num_gpus": 4}, {}, {"node 0": [0, 1, 2, 3], "node 1": [0, 1, 2, 3]}),
        ({}, {"SLURM_JOB_NODELIST": "gpu[01-02]", "SLURM_GPUS_PER_NODE": "a100:2"}, {"gpu01": [0, 1], "gpu02": [0, 1]}),
        ({"num_nodes": 1}, {"SLURM_JOB_NODELIST": "a,b", "SLURM_NTASKS_PER_NODE": "2"}, {"a": [0, 1]}),
        ({"num_gpus": 1}, {"SLURM_JOB_NODELIST": "a,b", "SLURM_GPUS_ON_NODE": "8"}, {"a": [0], "b": [0]}),
    ],
)
def test_srun_takes_its_nodes_from_the_job_or_requests_num_nodes(given, environ, hosts):
    found = resources(Runner(launcher="srun", **given), 1, environ)
    assert (found.hosts, found.remote, found.scheduler_picks_hosts) == (hosts, True, True)


def test_srun_gets_no_more_nodes_than_its_job_has():
    pinned(refused(resources, Runner(launcher="srun", num_nodes=3, num_gpus=1), 1, {"SLURM_JOB_NODELIST": "a,b"}))


def test_a_machine_without_slots_is_a_problem(tmp_path):
    """DeepSpeed's launcher would number it among the others."""
    runner = Runner(hostfile=hostfile(tmp_path, "w0 slots=0\nw1 slots=2\nw2 slots=0\n"))
    assert ids(refused(resources, runner, 1, {})) == ["hostfile-host-without-slots"] * 2


def test_a_single_remote_host_is_not_used_which_is_a_warning(tmp_path):
    path = hostfile(tmp_path, "w5 slots=2\n")
    what = "w5 is the only host, but with a single host DeepSpeed ignores the host name and starts the ranks on "
    what += "this machine"
    assert messages(resources(Runner(hostfile=path), 1, {})) == [what]
    assert messages(resources(Runner(hostfile=path, force_multi=True), 1, {})) == []
    assert messages(resources(Runner(hostfile=hostfile(tmp_path, f"{os.uname().nodename} slots=1\n")), 1, {})) == []


def test_srun_without_a_job_or_numbers_is_a_problem():
    pinned(refused(resources, Runner(launcher="srun"), 1, {}))


def test_srun_takes_a_hostfile_too(tmp_path):
    found = resources(Runner(launcher="srun", hostfile=hostfile(tmp_path, "w0 slots=2\nw1 slots=2\n")), 1, {})
    assert (found.hosts, found.scheduler_picks_hosts) == ({"w0": [0, 1], "w1": [0, 1]}, False)
    pinned(refused(lambda: resources(Runner(launcher="srun", hostfile=hostfile(tmp_path), include="w0"), 1, {})))


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("gpu[01-03,7],login", ["gpu01", "gpu02", "gpu03", "gpu7", "login"]),
        ("r[1-2]n[08-09]", ["r1n08", "r1n09", "r2n08", "r2n09"]),
        ("vm", ["vm"]),
        ("", []),
    ],
)
def test_slurms_lists_of_nodes(text, hosts):
    assert slurm.expanded(text) == hosts


@pytest.mark.parametrize(
    ("environ", "started"),
    [
        ({}, False),
        ({"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}, True),
        ({"RANK": "1", "WORLD_SIZE": "4"}, False),  # a pod of several, each of which starts its own ranks
        ({"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}, False),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_LOCALID": "0"}, False),  # the script of sbatch
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_LOCALID": "0", "SLURM_STEP_ID": "0"}, True),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_LOCALID": "0", "SLURM_STEP_ID": "4294967290"}, False),
    ],
)
def test_a_rank_is_distinguished_from_a_shell_inside_a_job(environ, started):
    assert (rank_env.names(environ) is not None) == started
