"""Flags for models whose layers are split over several processes or machines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from mrs_cli.parsing.flags.flags import Flags
from mrs_cli.parsing.flags.option import USUAL, cluster_option, model_option


@dataclass(init=False, eq=False, repr=False)
class ClusterFlags(Flags):
    """Which other processes compute some of the layers, or a shard of each."""

    tensor_parallel_size: Annotated[
        int | None,
        cluster_option(
            "--tensor-parallel-size",
            "--tp-size",
            metavar="N",
            min=1,
            help="Split every layer over N processes of a machine, instead of giving each some of "
            "the layers. It starts the others of this machine itself; with more --workers, N "
            "processes each have some of the layers.",
            show_default="with workers, chosen by the memory nodes of their machines",
        ),
    ] = None
    workers: Annotated[
        int | None,
        cluster_option(
            "--workers",
            metavar="N",
            min=0,
            help="Split the layers over this process and N more on this machine.",
        ),
    ] = None
    wait_for: Annotated[
        int | None,
        cluster_option(
            "--wait-for",
            metavar="N",
            min=1,
            help="Split the layers over this process and N that join from other machines: "
            "mrs worker --join HOST:PORT.",
        ),
    ] = None
    listen: Annotated[
        str | None,
        cluster_option(
            "--listen",
            metavar="HOST:PORT",
            help="Address where workers join. An address of a network needs a secret of at least "
            "16 characters, in a file that MRS_CLUSTER_SECRET_FILE names, or in the variable "
            "MRS_CLUSTER_SECRET; on 127.0.0.1 workers of the same user need none.",
            show_default="127.0.0.1, any free port",
        ),
    ] = None
    wait_limit: Annotated[
        float | None,
        cluster_option(
            "--wait-limit",
            metavar="SECONDS",
            min=0,
            help="Give up if not all workers have joined by then.",
            show_default="no limit",
        ),
    ] = None
    rejoin_limit: Annotated[
        float | None,
        cluster_option(
            "--rejoin-limit",
            metavar="SECONDS",
            min=0,
            help="When a worker is lost, wait so long for one in its place and let replies go on; "
            "0 ends instead. Workers of this machine are started again.",
            show_default="0",
        ),
    ] = None


@dataclass(init=False, eq=False, repr=False)
class WorkerFlags(Flags):
    """Flags of `mrs worker`."""

    join: Annotated[
        str | None,
        cluster_option(
            "--join", metavar="HOST:PORT", help="Address of the coordinator, which may start later."
        ),
        USUAL,
    ] = None
    once: Annotated[
        bool,
        cluster_option(
            "--once", help="End when the coordinator leaves, instead of waiting for the next one."
        ),
    ] = False
    rank: Annotated[
        int | None,
        cluster_option(
            "--rank",
            metavar="N",
            min=1,
            help="Position among all processes; the coordinator is 0.",
            show_default="by machine and order of arrival",
        ),
    ] = None
    model_id: Annotated[
        str | None,
        model_option(
            "-m",
            "--model-id",
            metavar="ID",
            help="This machine's copy of the model, loaded whatever the coordinator names.",
        ),
        USUAL,
    ] = None
    allow_model: Annotated[
        list[str] | None,
        model_option(
            "--allow-model",
            metavar="NAME",
            help="What heads may name: a hub id, in which * stands for anything, or a folder or "
            "file of this machine. May be given several times.",
            show_default="any model of the hub, and no files of this machine",
        ),
        USUAL,
    ] = None
    token_source: Annotated[
        str | None,
        model_option(
            "--token-source",
            metavar="SOURCE",
            help="Source of the hub token, whatever the coordinator's is: literal:VALUE, env:NAME, "
            "path:FILE, cache or none.",
            show_default="cache",
        ),
    ] = None
