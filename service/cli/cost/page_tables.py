"""The tables of docs/cost.md, as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from service.cli.cost.bill import HOURS_PER_MONTH, NODE_DISK_GB
from service.cli.cost.figures import TRAFFIC, Figures
from service.cli.cost.idle import FREE, OBSERVATIONS_PER_MINUTE, PARTS, SHAPES
from service.cli.cost.prices import PAYMENTS, Prices


def dollars(value: float | None) -> str:
    """As a person reads them: cents below 100."""
    if value is None:
        return "never"
    return f"{value:,.2f}" if value < 100 else f"{value:,.0f}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table, the first column to the left."""
    lines = ["| " + " | ".join(head) + " |", "|---" + "|---:" * (len(head) - 1) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def idle_section(figures: Figures) -> str:
    """What the cluster costs a month when nobody asks, for docs/terraform.md too."""
    rows = [[part.what, *(dollars(figures[f"idle/{shape}/{part.item}"]) for shape in SHAPES)] for part in PARTS] + [
        ["**all**", *(f"**{dollars(figures[f'idle/{shape}'])}**" for shape in SHAPES)]
    ]
    free = "\n".join(f"- {what}" for what in FREE)
    return f"""\
## Idle

Dollars a month of {HOURS_PER_MONTH:.0f} hours with the settings of `terraform/examples/dev` and `production`, when
nobody asks and no GPU node runs:

{table(["what", *SHAPES], rows)}

Both leave `interface_endpoints` off; switched on, they cost {dollars(figures["idle/endpoints"])} more. Free of charge,
or nearly:

{free}

Each GPU node that runs adds its own hour and its volume of {NODE_DISK_GB} GB. The CloudWatch agent
is billed by observation: {OBSERVATIONS_PER_MINUTE} a minute for each system node are assumed, after the metrics that
AWS lists for a node, its pods and their containers; those of a GPU node are not counted. `gpu_metrics = false` leaves
the agent out."""


def instance_table(prices: Prices, figures: Figures) -> str:
    """Each instance type on which the larger model fits: speed, dollars an hour and for a million tokens."""
    rows = []
    for name, instance in prices.instances.items():
        if f"speed/{name}" not in figures:
            continue
        gpu = instance.gpu.name if instance.gpus == 1 else f"{instance.gpus} x {instance.gpu.name}"
        hours = [f"{figures[f'hour/{name}/{payment}']:.3f}" for payment in PAYMENTS]
        millions = [dollars(figures[f"million/{name}/{payment}"]) for payment in PAYMENTS]
        rows.append([name, gpu, f"{figures[f'speed/{name}']:.0f}", *hours, *millions])
    names = list(PAYMENTS.values())
    head = [
        "instance",
        "GPU",
        "tokens/s a GPU",
        *(f"{paid}, $/h" for paid in names),
        *(f"{paid}, $/M" for paid in names),
    ]
    return table(head, rows)


def traffic_table(prices: Prices, figures: Figures) -> str:
    """Each of them under both traffics."""
    rows = [
        [name]
        + [
            text
            for size in TRAFFIC
            for text in (
                f"{figures[f'nodes/{size}/{name}']:.0f}",
                f"{figures[f'busy/{size}/{name}']:.1%}",
                *(dollars(figures[f"month/{size}/{name}/{payment}"]) for payment in PAYMENTS),
            )
        ]
        for name in prices.instances
        if f"speed/{name}" in figures
    ]
    head = [f"{size}: {what}" for size in TRAFFIC for what in ("nodes", "busy", *PAYMENTS.values())]
    return table(["instance", *head], rows)


def rival_table(figures: Figures) -> str:
    """Nights off beside the rivals."""
    rows = [
        [f"own 8B, nights off, {name}", *(dollars(figures[f"night/{size}/{payment}"]) for size in TRAFFIC)]
        for payment, name in PAYMENTS.items()
    ]
    rows += [
        ["Bedrock, 8B", *(dollars(figures[f"bedrock/{size}"]) for size in TRAFFIC)],
        ["Bedrock, 8B, batch", *(dollars(figures[f"bedrock/{size}/batch"]) for size in TRAFFIC)],
        ["own 135M, spot, with its cluster", *(dollars(figures[f"small-model/{size}/spot"]) for size in TRAFFIC)],
        ["own 135M, spot, the node alone", *(dollars(figures[f"small-model/{size}/alone"]) for size in TRAFFIC)],
        ["Fargate, 135M", *(dollars(figures[f"fargate/{size}"]) for size in TRAFFIC)],
    ]
    return table(["", *TRAFFIC], rows)


def even_table(figures: Figures) -> str:
    """Where each payment begins to pay, two digits."""
    rivals = {
        "bedrock": "Bedrock, 8B",
        "bedrock-batch": "Bedrock, 8B, batch",
        "fargate": "Fargate, 135M, own with its cluster",
        "fargate-alone": "Fargate, 135M, own node alone",
    }
    rows = []
    for key, said in rivals.items():
        evens = [figures[f"even/{key}/{payment}"] for payment in PAYMENTS]
        rows.append([said, *("never" if even is None else f"{float(f'{even:.2g}'):,.0f}" for even in evens)])
    return table(["against", *PAYMENTS.values()], rows)


def price_table(prices: Prices) -> str:
    """Every price of the file with where it is from."""
    rows = [[f"`{place}`", f"{price.usd:g}", price.seen, price.source] for place, price in prices.all()]
    head = ["price", "dollars", "seen", "source"]
    return table(head, rows).replace("|---|---:|---:|---:|", "|---|---:|---|---|", 1)


def data_sheets(prices: Prices) -> str:
    """What the file says of each GPU."""
    gpus = {instance.gpu.name: instance.gpu for instance in prices.instances.values()}
    return ", ".join(
        f"{gpu.name} {gpu.memory_gb:g} GB, {gpu.bandwidth_gb_s:,.0f} GB/s, {gpu.bf16_tflops:g} TFLOPS bf16"
        for gpu in gpus.values()
    )
