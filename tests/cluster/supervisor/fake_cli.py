"""The real ``pdd`` command line, but its daemons are fakes and no model is looked for."""

import sys
from dataclasses import replace
from pathlib import Path

from pdd.cli import up_run
from pdd.cli.main import main
from pdd.daemon.supervisor_plan import DaemonPlan
from pdd.model import resolve

FAKE_DAEMON = Path(__file__).with_name("fake_daemon.py")
real_plan_cluster = up_run.plan_cluster


def plan_fakes(options, **arguments) -> tuple[DaemonPlan, ...]:
    grpc = f"127.0.0.1:{options.schedulers[0].grpc}"
    return tuple(
        replace(
            plan,
            argv=(
                sys.executable,
                str(FAKE_DAEMON),
                plan.name,
                *(["cluster", grpc] if plan.name == "scheduler-0" else ["ready"]),
            ),
        )
        for plan in real_plan_cluster(options, **arguments)
    )


def resolve_fake(spec: str | None) -> resolve.ResolvedModel:
    if spec == "wait":
        print("resolving", file=sys.stderr, flush=True)
        sys.stdin.read()
    return resolve.ResolvedModel(path=Path("/models/fake"), name=spec or "fake")


if __name__ == "__main__":
    up_run.plan_cluster = plan_fakes
    resolve.resolve_model = resolve_fake
    sys.exit(main())
