"""`python -m tests.support.hanging FOLDER`: a rank under its supervisor, of a run whose last rank sleeps in step 3."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from neoxargs.processes import failures, supervisor
from neoxargs.processes.watch import Progress

#: Seconds that a step may take.
LIMIT = 15.0


def train() -> int:
    from neoxargs.train.process import flight_recorder, setup
    from tests.support.loops import loop_of
    from tests.support.trials import Training, Trial

    flight_recorder.write_when_asked(failures.current_rank)
    process = setup.start("gloo", seed=1)
    built = Training(Trial(), train_iters=9)
    take = built.engine.take_step
    loop = loop_of(built, built.checkpoints(process))
    assert failures.current_rank is not None
    loop.progress = Progress(failures.current_rank.watch, fixed=LIMIT)

    def take_or_sleep(*arguments: Any) -> Any:
        if loop.position.iteration == 2 and process.rank == process.world_size - 1:
            time.sleep(900)
        return take(*arguments)

    built.engine.take_step = take_or_sleep  # type: ignore[assignment, method-assign]
    loop.run()
    return 0


if __name__ == "__main__":
    sys.exit(supervisor.run_supervised(train, Path(sys.argv[1])))
