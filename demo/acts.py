"""The acts of the demonstration, in order; each does one thing, shows it, and waits for its result."""

from __future__ import annotations

import subprocess

from demo.admission import Admission, Admitted
from demo.children import wait_until
from demo.folder import (
    ALLOWANCE_GPU_SECONDS,
    BUDGET,
    GRACE_GPU_SECONDS,
    GRANT_GPU_SECONDS,
    HELD_BUDGET,
    HELD_GRANT_GPU_SECONDS,
    HELD_NAMESPACE,
    NAMESPACE,
    gpu_hours,
)
from demo.redis_server import start_redis
from demo.running import cost, end_sidecars, sidecar_of, work
from demo.screen import UNIT
from demo.stage import Stage, manifest, manifests
from demo.steps import COMMAND_LIMIT_SECONDS, STEP_LIMIT_SECONDS, accepted, meant, program, python_module, require, said
from fairgpu import names
from fairgpu.states import BudgetState

START_LIMIT_SECONDS = 90.0


def start_services(stage: Stage) -> None:
    """Starts Redis, timekeeper and webhook, and builds the sidecar's archive."""
    folder, children = stage.folder, stage.children
    stage.screen.act("The services start")
    folder.prepare(start_redis(children, folder.root))
    settings = ["--standalone", str(folder.root)]
    children.start("timekeeper-serve", [program("fairgpu"), "timekeeper", "serve", *settings], {})
    children.start("timekeeper-jobs", [program("fairgpu"), "timekeeper", "jobs", *settings], {})
    children.start("webhook", [program("fairgpu"), "webhook", "serve", *settings], {})
    archive = python_module("sidecar.archive", str(folder.sidecar))
    subprocess.run(archive, check=True, timeout=COMMAND_LIMIT_SECONDS)  # noqa: S603 - our own command, no shell
    wait_until("the timekeeper serves", stage.timekeeper_ready, children, START_LIMIT_SECONDS)
    wait_until("the webhook serves", folder.webhook_ca.exists, children, START_LIMIT_SECONDS)
    stage.admission = Admission(folder.webhook_port, folder.webhook_ca.read_text())
    wait_until("the webhook knows the budgets", stage.admission.ready, children, START_LIMIT_SECONDS)
    reading = stage.reading()
    require(reading.state is BudgetState.OPEN and reading.spent == 0, f"a fresh budget is {reading}")
    stage.screen.done("Redis, timekeeper (REST and jobs) and webhook are up, each with certificates of its own")


def admit_dialects(stage: Stage) -> None:
    """Sends one pod of each dialect through admission."""
    stage.screen.act("Seven ways to ask for a piece of a GPU, one meaning")
    rows = []
    for dialect, document in manifests():
        admitted = stage.admission.create(NAMESPACE, document)
        pod = accepted(admitted, names.IN_BUDGET_CLASS)
        require(pod["metadata"]["annotations"][names.SOURCE_DIALECT] == dialect, f"{dialect} was not recognised")
        sidecar_of(pod)
        stage.admitted.append(pod)
        rows.append((dialect, pod["metadata"]["name"], said(document), meant(pod)))
    stage.screen.table(("dialect", "pod", "the manifest says", "FairGPU understands"), rows)
    stage.screen.done(
        f"{len(rows)} pods admitted over TLS: one form, a sidecar each, class [green]{names.IN_BUDGET_CLASS}[/]"
    )


def spend(stage: Stage) -> None:
    """Binds and runs the pods until the money is spent; during grace, another pod is admitted."""
    stage.screen.act("What is held is paid for")
    for pod in stage.admitted:
        bound = stage.cluster.bind(pod)
        stage.bound.append(bound)
        work(stage.gpus, bound, stage.folder.usage(bound))
    stage.screen.say(
        f"Budget {BUDGET}: {ALLOWANCE_GPU_SECONDS} GPU-seconds, and {GRACE_GPU_SECONDS} more of grace. "
        "Solid is what the programs used, shaded what their pods hold, and holding is what costs."
    )
    count = len(stage.bound)
    wait_until("every pod is on the meter", lambda: stage.sessions() == count, stage.children, STEP_LIMIT_SECONDS)
    for pod in stage.bound:
        stage.start_sidecar(pod)
    seen = stage.watch(BudgetState.GRACE)
    require(seen.spent >= seen.available, f"in grace with {seen.spent} of {seen.available} spent")
    warned = stage.next_pod("train-resnet-2", names.IN_BUDGET_CLASS, BudgetState.GRACE)
    require(bool(warned.warnings), "the pod got no warning in grace")
    show_created(stage, warned)
    stage.screen.done("the money is spent, and grace begins: the next pod is admitted as before, with a warning")
    stage.command("sessions", "-n", NAMESPACE)
    seen = stage.watch(BudgetState.OVER)
    require(seen.spent >= seen.available + GRACE_GPU_SECONDS * UNIT, f"over with {seen.spent} spent")
    require(0 < seen.used < seen.spent, f"used {seen.used} is not between nothing and the {seen.spent} reserved")
    stage.screen.done(f"{count} sidecars report what is used; grace is used up: over. Nothing was killed")


def next_pod_yields(stage: Stage) -> None:
    """Shows that the team's next pod gets the lower class."""
    stage.screen.act("The next pod of the team yields to teams within budget")
    late = stage.next_pod("train-resnet-3", names.OVER_BUDGET_CLASS, BudgetState.OVER)
    show_created(stage, late)
    require(bool(late.warnings) and late.pod["spec"]["priority"] == 0, "the pod over budget was not marked as such")
    stage.screen.done(f"its class is [red]{names.OVER_BUDGET_CLASS}[/], priority 0")


def grant(stage: Stage) -> None:
    """Grants money, after which the next pod is within budget again."""
    stage.screen.act("A grant brings it back")
    stage.command("grant", BUDGET, gpu_hours(GRANT_GPU_SECONDS), "--reason", "paper deadline")
    seen = stage.watch(BudgetState.OPEN)
    require(seen.available > ALLOWANCE_GPU_SECONDS * UNIT, f"the grant is not in {seen.available}")
    back = stage.next_pod("train-resnet-4", names.IN_BUDGET_CLASS, BudgetState.OPEN)
    require(back.pod["spec"]["priority"] > 0, "the pod within budget has no priority")
    show_created(stage, back)
    stage.screen.done(f"open again; the next pod is [green]{names.IN_BUDGET_CLASS}[/]")


def hold_and_release(stage: Stage) -> None:
    """Shows a budget that holds a pod, and a grant that releases it."""
    stage.screen.act("Another team's budget holds: its pod waits for money")
    waiting = stage.next_pod("homework", names.IN_BUDGET_CLASS, BudgetState.HELD, HELD_NAMESPACE)
    gates = [gate["name"] for gate in waiting.pod["spec"].get("schedulingGates", [])]
    require(gates == [names.BUDGET_GATE], f"the gates of the held pod are {gates}")
    pod = stage.cluster.create(waiting.pod)
    show_created(stage, waiting, HELD_NAMESPACE)
    amount = gpu_hours(HELD_GRANT_GPU_SECONDS)
    stage.command("grant", HELD_BUDGET, amount, "--reason", "exam week")
    released = lambda: not stage.cluster.is_gated(pod)  # noqa: E731 - read once, here
    wait_until("the gate is lifted", released, stage.children, STEP_LIMIT_SECONDS)
    stage.screen.done("the timekeeper lifted the gate: the scheduler may place the pod")


def refuse(stage: Stage) -> None:
    """Shows the refusal of a manifest that cannot work, with all its faults."""
    stage.screen.act("A manifest that cannot work says so at once")
    document = manifest("wrong")
    stage.screen.command(f"kubectl -n {NAMESPACE} create -f wishful.yaml")
    refused = stage.admission.create(NAMESPACE, document)
    require(bool(refused.refusal), "the wrong manifest was admitted")
    stage.screen.output(f"Error from server: admission webhook denied the request:\n{refused.refusal}", "red")
    for part in ("gpu-core", "150", "gpu-memory", "vcuda-memory"):
        require(part in refused.refusal, f"the refusal does not speak of {part}: {refused.refusal}")
    stage.screen.done("refused: each field, what was given, what is allowed, what to write instead")


def check_the_ledger(stage: Stage) -> None:
    """Ends all pods, and compares the ledger with their cost, computed from their times alone."""
    stage.screen.act("The ledger is exact")
    end_sidecars(stage.children, stage.sidecars)
    expected = sum(cost(stage.cluster.finish(pod)) for pod in stage.bound)
    settled = lambda: stage.sessions() == 0 and stage.reading().rate == 0  # noqa: E731 - read once, here
    wait_until("every pod is settled", settled, stage.children, STEP_LIMIT_SECONDS)
    stage.command("budget", "list")
    spent = stage.reading().spent
    require(spent == expected, f"the ledger says {spent}, the pods' times say {expected} microGPU-seconds")
    stage.screen.done(f"{spent:,} microGPU-seconds in the ledger: what the pods' times come to, to the last one")


def show_created(stage: Stage, admitted: Admitted, namespace: str = NAMESPACE) -> None:
    """Shows a pod's creation as kubectl prints it."""
    name = admitted.pod["metadata"]["name"]
    stage.screen.command(f"kubectl -n {namespace} create -f {name}.yaml")
    stage.screen.output("\n".join(f"Warning: {line}" for line in admitted.warnings), "yellow")
    stage.screen.output(f"pod/{name} created")


ALL = (start_services, admit_dialects, spend, next_pod_yields, grant, hold_and_release, refuse, check_the_ledger)
