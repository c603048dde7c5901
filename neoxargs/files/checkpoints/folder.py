"""The checkpoints in a folder, and which of them are complete; used before a start and by every rank.

    global_step100/           one checkpoint, under DeepSpeed's and GPT-NeoX's name
        files.json            name, size and checksum of every other file in it
        config.json           the values of the run that differ from the defaults
        tokenizer/            the files of the tokenizer
        base.json             if a part of the model is frozen: the checkpoint that has this part
        run.json              the format of the checkpoint, and the run that has written it
    latest                    the name of the newest checkpoint, as DeepSpeed expects it

    .writing-global_step200/     being written, or left by a killed run
    .removing-global_step100/    being removed, or left by a killed run

`train/checkpoint/commit.py` adds a checkpoint, and makes sure that an incomplete one is never found.
"""

from __future__ import annotations

import contextlib
import heapq
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from neoxargs.base.files import replace_text
from neoxargs.base.problems import Problem, Problems
from neoxargs.base.record import Record, as_dict
from neoxargs.base.regular_files import read_regular
from neoxargs.facts.batch_sizes import BatchSizes
from neoxargs.facts.lr_schedule import Get
from neoxargs.facts.position import Position
from neoxargs.files.checkpoints.checksums import Digest, archive_damage, digest_of
from neoxargs.registry import REGISTRY

PREFIX = "global_step"
LATEST = "latest"
FILES = "files.json"
CONFIG = "config.json"
DATA = "data.json"
BASE = "base.json"
TOKENIZER = "tokenizer"
RUN = "run.json"
#: The format of the checkpoints that this deepy writes. It reads this one and all before it (docs/reliability.md).
FORMAT = 1
WRITING = ".writing-"
REMOVING = ".removing-"
#: The most bytes of a file of a checkpoint other than weights and optimizer state.
MAX_BYTES = 1 << 30
#: The most characters of a wrong name in `latest` that are shown.
NAME_SHOWN = 80
#: Files that only deepy writes: which file holds which weight.
INVENTORIES = "layout-*.json"


def tag(iteration: int) -> str:
    """Return the name of a checkpoint's folder."""
    return f"{PREFIX}{iteration}"


def iteration_of(checkpoint: Path) -> int:
    return int(checkpoint.name[len(PREFIX) :])


def checkpoints(folder: Path) -> list[Path]:
    """Return every checkpoint, damaged or not, in the order of iterations."""
    if not os.path.isdir(folder):  # Path.glob raises OSError if the name is too long
        return []
    found = [path for path in folder.glob(f"{PREFIX}*") if path.is_dir() and path.name[len(PREFIX) :].isdigit()]
    return sorted(found, key=iteration_of)


class Written(Record):
    """What a checkpoint records of the run that wrote it."""

    run: str = ""
    """Identifies the run, from its start to its end, with restarts; empty if it is not known."""
    start: int = 0
    """The iteration at which the run began. Checkpoints of other runs are part of what it continues up to this one."""
    job: str = ""
    """The Slurm job, by which a requeued job knows its checkpoints; empty if there is none."""
    format: int = FORMAT
    """0 in the checkpoints of other programs, and of versions that recorded no format."""
    validation_loss: float | None = None
    """None if the run was not evaluated in this iteration."""
    samples: int | None = None
    """Training samples that were consumed before it; None if it is not known."""
    left_out: int = 0
    """Training samples that were left out before it."""

    def to_json(self) -> str:
        return json.dumps(as_dict(self))


def written_by(checkpoint: Path) -> Written:
    """Return what a checkpoint records of its run."""
    try:
        found = json.loads(_text(checkpoint / RUN))
        run, start, version = found.get("run", ""), found.get("start", 0), found.get("format", 0)
        loss, samples = found.get("validation_loss"), found.get("samples")
        return Written(
            str(run),
            int(start),
            str(found["job"]),
            int(version),
            None if loss is None else float(loss),
            None if samples is None else int(samples),
            int(found.get("left_out", 0)),
        )
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return Written(format=0)


def position_of(checkpoint: Path, get: Get) -> Position:
    """Return the position of a run that continues a checkpoint with the parameters that `get` looks up.

    Checkpoints of other programs and of earlier versions do not say how many samples were consumed: that follows from
    the batch size of the run that wrote them, or if that is not known, from `get`.
    """
    iteration, by = iteration_of(checkpoint), written_by(checkpoint)
    samples = by.samples
    if samples is None:
        values = configuration(checkpoint) or {}
        known = isinstance(values.get("train_batch_size"), int)
        samples = BatchSizes.of(_lookup(values) if known else get).samples_after(iteration)
    return Position(iteration, samples, by.left_out)


def newest_first(folder: Path) -> list[Path]:
    """Return every checkpoint, damaged or not, in the order in which runs continue from them and keep them.

    First the one that `latest` names with those before it (`line`), then the others, the last iteration first.
    """
    found = list(reversed(checkpoints(folder)))
    name = latest(folder)
    first = next((line(named) for named in found if named.name == name), [])
    return [*first, *(other for other in found if other not in first)]


def outdated(found: Sequence[Path], newest: int, best: int) -> list[Path]:
    """Return all of these checkpoints but the newest and those with the lowest validation losses, so many of each.

    found: as of `newest_first`.
    """
    losses = {checkpoint: written_by(checkpoint).validation_loss for checkpoint in found} if best else {}
    rated = sorted((loss, order) for order, loss in enumerate(losses.values()) if loss is not None)
    kept = {*found[:newest], *(found[order] for _, order in rated[:best])}
    return [checkpoint for checkpoint in found if checkpoint not in kept]


def line(checkpoint: Path) -> list[Path]:
    """Return a checkpoint and those of its folder that led to it, the last one first.

    They are those of its own run, and of others those up to the iteration at which the run began: a run that began
    again at an earlier iteration does not continue the later checkpoints that were there.
    """
    found: list[Path] = []
    run, start = "", iteration_of(checkpoint)
    for earlier in reversed(checkpoints(checkpoint.parent)):
        by, iteration = written_by(earlier), iteration_of(earlier)
        if iteration <= start or (found and by.run == run):
            found.append(earlier)
            run, start = by.run, by.start if by.run else iteration
    return found


def wrong_latest(folder: Path) -> str:
    """Return what is wrong with `latest`, as words that follow its name; "" if it names a checkpoint of the folder."""
    try:
        text = read_regular(folder / LATEST, MAX_BYTES)
    except OSError as error:
        exists = os.path.lexists(folder / LATEST)
        return f"cannot be read ({(error.strerror or str(error)).lower()})" if exists else ""
    name = text.decode(errors="backslashreplace").strip()
    known = name in {path.name for path in checkpoints(folder)}
    # GPT-NeoX's published checkpoints have other names.
    plain = name not in ("", "..") and name == Path(name).name and os.path.isdir(folder / name)
    if known or (plain and next((folder / name).glob("*.pt"), None)):
        return ""
    shown = repr(name if len(name) <= NAME_SHOWN else f"{name[:NAME_SHOWN]}...")
    return f"names {shown}, which is not the name of a checkpoint in this folder" if name else "is empty"


def is_in_latest(checkpoint: Path) -> bool:
    """Whether `latest` names a checkpoint of its folder, or as a path leads to it or into it."""
    try:
        text = read_regular(checkpoint.with_name(LATEST), MAX_BYTES).strip()
        named = Path(checkpoint.parent, os.fsdecode(text)).resolve()
    except (OSError, ValueError, RuntimeError):  # not a path; RuntimeError: links in a circle
        return False
    return checkpoint.resolve() in (named, *named.parents)


def newest(folder: Path) -> Path | None:
    """Return the checkpoint to continue from: the one that `latest` names, or the last one with all its files.

    Checksums are not verified: that takes as long as reading the checkpoint.
    """
    return next((candidate for candidate in newest_first(folder) if not damage(candidate)), None)


def digests(checkpoint: Path) -> dict[str, Digest]:
    """Return what files.json records of each file; raises ValueError if it cannot be read.

    Other programs write no files.json, and earlier versions of deepy recorded sizes only.
    """
    try:
        text = _text(checkpoint / FILES)
    except FileNotFoundError:
        if lists_weights(checkpoint):
            raise ValueError(f"{FILES} is missing") from None
        return {}
    except (OSError, ValueError):
        raise ValueError(f"{FILES} cannot be read") from None
    try:
        found = {name: _digest(record) for name, record in json.loads(text).items()}
    except (ValueError, AttributeError, TypeError, KeyError):
        raise ValueError(f"{FILES} cannot be read") from None
    # The file has no checksum of its own, but deepy writes it in exactly one form.
    if any(digest.crc32 is not None for digest in found.values()) and text != _as_text(found):
        raise ValueError(f"{FILES} was changed")
    return found


def _digest(record: Any) -> Digest:
    if isinstance(record, int):
        return Digest(record, None)
    return Digest(int(record["bytes"]), int(record["crc32"], 16))


def write_digests(checkpoint: Path, found: Mapping[str, Digest]) -> None:
    """Write files.json."""
    (checkpoint / FILES).write_text(_as_text(found), encoding="utf-8")


def _as_text(found: Mapping[str, Digest]) -> str:
    """Return the contents of files.json, with one line for each file."""
    lines = [f"{json.dumps(name)}: {json.dumps(digest.to_json())}" for name, digest in sorted(found.items())]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def damage(checkpoint: Path) -> str:
    """Return what is wrong with a checkpoint (a file is missing or has a wrong size), "" if nothing is.

    Checkpoints of other programs have no files.json and are assumed to be complete, unless they have no file at all.
    Raises Problems if the format is newer than this deepy: such a checkpoint is neither damaged nor usable.
    """
    if not checkpoint.is_dir():
        return "it does not exist"
    if (version := written_by(checkpoint).format) > FORMAT:
        what = f"{checkpoint} has checkpoint format {version}, but this version of deepy reads formats up to {FORMAT}"
        hint = "use the version of deepy that wrote it, or a later one"
        raise Problems(Problem(what, hint=hint, id="checkpoint-format-newer", about=("load",)))
    try:
        recorded = digests(checkpoint)
    except ValueError as error:
        return str(error)
    if not recorded and not any(path.is_file() for path in checkpoint.rglob("*")):
        return "it is empty"
    for name, digest in recorded.items():
        file = checkpoint / name
        if not file.exists():
            return f"{name} is missing"
        if different := digest._replace(crc32=None).difference(Digest(file.stat().st_size, None)):
            return f"{name} {different}"
    return ""


def verify(
    checkpoint: Path,
    share: tuple[int, int] = (0, 1),
    advance: Callable[[int], object] = lambda size: None,
    threads: int = 4,
) -> str:
    """Return what is wrong with a checkpoint, "" if nothing is: like `damage`, with the checksum of every file.

    Without files.json, in checkpoints of other programs, the checksums are those that torch.save records in its files.

    share: (number, count), to read only one of `count` parts of about equal size. advance: called with the size of each
    file that has been read.
    """
    if found := damage(checkpoint):
        return found
    recorded = digests(checkpoint)
    sizes = {name: digest.size for name, digest in recorded.items() if digest.crc32 is not None}
    if not recorded:
        sizes = {str(path.relative_to(checkpoint)): path.stat().st_size for path in checkpoint.rglob("*.pt")}
    names = _share(sizes, *share)

    def compare(name: str) -> str:
        try:
            if recorded:
                different = recorded[name].difference(digest_of(checkpoint / name))
            else:
                different = "does not match the checksums in it" * bool(archive_damage(checkpoint / name))
        except OSError as error:
            different = f"cannot be read: {(error.strerror or str(error)).lower()}"
        advance(sizes[name])
        return f"{name} {different}" if different else ""

    from concurrent.futures import ThreadPoolExecutor  # slow to import

    with ThreadPoolExecutor(threads) as pool:
        return next(filter(None, pool.map(compare, names)), "")


def _share(sizes: Mapping[str, int], number: int, count: int) -> list[str]:
    """Return the names in one of `count` parts; the largest file goes to the part that is smallest so far."""
    parts = [(0, part) for part in range(count)]
    names = []
    # By name where sizes are equal, because every rank computes the same parts for itself.
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        total, part = heapq.heappop(parts)
        heapq.heappush(parts, (total + sizes[name], part))
        if part == number:
            names.append(name)
    return names


def _text(file: Path) -> str:
    """Return the text of a file of a checkpoint; raises OSError or ValueError."""
    return read_regular(file, MAX_BYTES).decode()


def configuration(checkpoint: Path | None) -> dict[str, Any] | None:
    """Return the values of the run that wrote a checkpoint, nested as ranks receive them; None if not recorded."""
    try:
        values = json.loads(_text(checkpoint / CONFIG)) if checkpoint else None
    except (OSError, ValueError):
        return None
    return values if isinstance(values, dict) else None


def recorded_digests(checkpoint: Path) -> dict[str, Any]:
    """Return the digests of the files of the run that wrote a checkpoint: token files by prefix, base_shapes_file.

    Of a token file, suffix -> size and checksum; earlier versions recorded a hash of its beginning.
    """
    try:
        return dict(json.loads(_text(checkpoint / DATA)))
    except (OSError, ValueError, TypeError):
        return {}


def _sha256(data: bytes) -> str:
    import hashlib  # slow to import

    return hashlib.sha256(data).hexdigest()


def file_digest(file: str | None) -> str:
    """Return the digest of a small file; empty if it cannot be read."""
    try:
        return _sha256(read_regular(file or "", MAX_BYTES))
    except OSError:
        return ""


def lists_weights(checkpoint: Path) -> bool:
    """Whether any layout can load the checkpoint; otherwise only DeepSpeed, into the same shapes."""
    return next(checkpoint.glob(INVENTORIES), None) is not None


def embedding_rows(checkpoint: Path) -> int | None:
    """Return the rows of the embedding with padding; None if no list of weights has an embedding."""
    for file in sorted(checkpoint.glob(INVENTORIES)):
        try:
            weights = json.loads(_text(file))["weights"]
            if (entry := weights.get("embedding.word_embeddings.weight")) is not None:
                _, _, (rows, _), shard, *_ = entry
                return int(rows) * (shard[-1] if shard else 1)  # a shard ends with the number of tensor parallel ranks
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            return None
    return None


#: Parameters without which a checkpoint's weights do not fit, with the values of checkpoints that do not record them.
SHAPE = {"num_layers": None, "hidden_size": None, "num_unique_layers": None, "param_sharing_style": "grouped"}


def schedule(checkpoint: Path) -> Get | None:
    """Return a lookup by name of the learning rate parameters that a checkpoint continues with.

    None if they are not recorded, for example because the run itself followed the schedule of an earlier checkpoint.
    """
    values = configuration(checkpoint)
    if values is None or values.get("use_checkpoint_lr_scheduler"):
        return None
    return _lookup(values)


def _lookup(values: Mapping[str, Any]) -> Get:
    return lambda name: values.get(name, REGISTRY.parameters[name].default)


def latest(folder: Path) -> str | None:
    """Return the name in the file `latest`; None if there is no such file."""
    try:
        return _text(folder / LATEST).strip()
    except (OSError, ValueError):
        return None


def point_latest_at(checkpoint: Path) -> None:
    """Let `latest` name a checkpoint of its folder."""
    replace_text(checkpoint.with_name(LATEST), checkpoint.name)


def remove(checkpoint: Path) -> None:
    """Hide the checkpoint, then delete it: an interrupted deletion must not leave a partial one visible."""
    delete(hide(checkpoint))


def delete(path: Path) -> None:
    """Delete a folder with all that is in it, or a file; of a symbolic link, only the link."""
    with contextlib.suppress(FileNotFoundError):  # another process deletes it too
        if path.is_symlink() or not path.is_dir():
            path.unlink()
        else:
            import shutil  # slow to import

            shutil.rmtree(path)


def hide(checkpoint: Path) -> Path:
    """Rename a checkpoint, so that it is no longer found; return its new path."""
    return checkpoint.rename(checkpoint.with_name(REMOVING + checkpoint.name))


class Base(NamedTuple):
    """The checkpoint of a frozen model, as the checkpoints of what is trained with it record it."""

    folder: Path | None
    """None: the model has the initial weights of `seed`."""
    digest: str
    """Hash of the list of its files with their checksums; "" if it has no such list, as in GPT-NeoX's checkpoints."""

    @classmethod
    def of(cls, checkpoint: Path) -> Base:
        """Return what is recorded of a checkpoint."""
        files = checkpoint / FILES
        return cls(checkpoint.resolve(), _sha256(files.read_bytes()) if files.is_file() else "")

    def to_json(self) -> str:
        return json.dumps({"folder": self.folder and str(self.folder), "digest": self.digest}, indent=1)

    def differs_from(self, other: Base) -> bool:
        """Whether the two are different checkpoints, as far as their digests show."""
        return bool(self.digest and other.digest and self.digest != other.digest)


def recorded_base(checkpoint: Path) -> Base | None:
    """Return the base that a checkpoint records; None if the checkpoint contains a full model."""
    try:
        values = json.loads(_text(checkpoint / BASE))
        return Base(Path(values["folder"]) if values["folder"] else None, str(values["digest"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, LookupError, TypeError):
        # A digest that no model has, so that the base is reported as a different one.
        return Base(None, "unreadable")


def base_folder(named: str | None, recorded: Base | None) -> Path | None:
    """Return where the frozen model is: in the folder that `base_checkpoint` names, or else where a checkpoint says."""
    return Path(named) if named else recorded and recorded.folder


def named_by(path: Path) -> Path | None:
    """Return a checkpoint by its own path, or the newest one in a folder of checkpoints; None if there is none."""
    if path.name.startswith(PREFIX) and path.is_dir():
        return path
    return newest(path)
