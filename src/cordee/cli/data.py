"""`cordee data`: data before a training, and on its way between hosts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cordee.cli import store
from cordee.cli.options import TokenFile
from cordee.core.text import plain

if TYPE_CHECKING:
    from cordee.feed.exchange.delivery import Delivery
    from cordee.feed.exchange.send import Sent

app = typer.Typer(name="data", help="Data before a training, and between hosts.", no_args_is_help=True)
app.command()(store.build)
app.command()(store.show)

Listen = Annotated[
    str,
    typer.Option(metavar="<host:port>", help="Address of this host at which it can be reached.", show_default=False),
]


@app.command()
def send(
    out: Annotated[Path, typer.Argument(help="A store, any folder, or a file.", show_default=False)],
    to: Annotated[
        str,
        typer.Option(metavar="<host:port,...>", help="Where `cordee data receive` listens.", show_default=False),
    ],
    how: Annotated[
        str,
        typer.Option(
            metavar="<how>", help="broadcast: from here to each. chain: each passes it on. auto: measure, and choose."
        ),
    ] = "auto",
    token_file: TokenFile = None,
) -> None:
    """Send a folder to the local disks of other hosts; each gets only what it lacks."""
    from cordee.feed.exchange.access import Access
    from cordee.feed.exchange.forward import must_be_whole
    from cordee.feed.exchange.send import send

    hosts = [one.strip() for one in to.split(",") if one.strip()]
    sent = send(out, hosts, how=how, access=Access.of(token_file, hosts), tell=_tell)
    _show(out, sent)
    must_be_whole(sent.outcomes, str(out))


@app.command()
def receive(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where it goes.", show_default=False)],
    listen: Listen,
    token_file: TokenFile = None,
    keep: Annotated[bool, typer.Option("--keep", help="Go on after the first delivery, until Ctrl-C.")] = False,
) -> None:
    """Take what `cordee data send` sends to the local disk, and pass it on to the next host of a chain."""
    import contextlib

    from cordee.feed.exchange.access import Access
    from cordee.feed.exchange.forward import must_be_whole
    from cordee.feed.exchange.receiver import Receiver

    with contextlib.closing(Receiver(folder, listen, Access.of(token_file, [listen]), _tell)) as receiver:
        print(f"listening at {receiver.place} for files to {folder.absolute()}", flush=True)
        while True:
            (delivery,) = receiver.wait()
            _show_delivery(delivery)
            if not keep:
                must_be_whole([delivery.own], delivery.offer.name or "the file")
                return


@app.command()
def gather(
    out: Annotated[Path, typer.Argument(help="This host's blocks: a folder, or a file.", show_default=False)],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where those of all go.", show_default=False)],
    hosts: Annotated[
        str,
        typer.Option(metavar="<host:port,...>", help="All hosts, the same on each of them.", show_default=False),
    ],
    listen: Listen,
    token_file: TokenFile = None,
) -> None:
    """Give this host's blocks to all hosts and take theirs; the same command on each, with its own --listen."""
    from cordee.core.words import amount
    from cordee.feed.exchange.access import Access
    from cordee.feed.exchange.gather import all_gather

    named = [one.strip() for one in hosts.split(",") if one.strip()]
    access = Access.of(token_file, [*named, listen])
    gathered = all_gather(out, folder, named, listen, access=access, tell=_tell)
    print(
        f"{folder} has {len(gathered.parts)} parts: received {amount(gathered.received)}, sent {amount(gathered.sent)} "
        f"in {gathered.seconds:.2f} s"
    )


@app.command()
def serve(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A store, or a folder of stores.", show_default=False)],
    listen: Listen,
    token_file: TokenFile = None,
) -> None:
    """Hold stores for other hosts, which fetch what they lack: cordee.data.store("cordee://HOST:PORT/NAME")."""
    import threading

    from cordee.core.words import amount
    from cordee.feed.exchange.access import Access
    from cordee.feed.exchange.holder import Holder

    holder = Holder(folder, listen, Access.of(token_file, [listen]), _tell)
    for name in holder.names:
        print(plain(f"serving cordee://{holder.place}/{name}"), flush=True)
    try:
        threading.Event().wait()  # until Ctrl-C
    finally:
        holder.close()
        print(f"sent {holder.served.files:,} files, {amount(holder.served.size)}", file=sys.stderr)


def _show_delivery(delivery: Delivery) -> None:
    from cordee.core.words import amount

    own, name = delivery.own, delivery.offer.name or delivery.landing.entries[0].path
    state = "whole" if own.complete else f"not whole ({own.reason})"
    print(
        plain(
            f"{name} is {state}: received {amount(own.received)} in {own.seconds:.2f} s, had {amount(own.had)}, passed "
            f"on {amount(own.sent)}"
        ),
        flush=True,
    )


def _show(out: Path, sent: Sent) -> None:
    from cordee.core.words import amount, plural

    print(plain(f"{out}: {plural(sent.files, 'file')}, {amount(sent.size)}"))
    for way in sorted({*sent.forecasts, sent.how}):
        expected = f"{sent.forecasts[way]:.2f} s" if way in sent.forecasts else "not measured"
        measured = f"{sent.seconds:.2f} s, {amount(sent.sent)} sent from here" if way == sent.how else "not taken"
        print(f"{way:<10} forecast: {expected:<14} measured: {measured}")
    for one in sent.outcomes:
        state = "whole" if one.complete else f"not whole: {one.reason}"
        print(plain(f"{one.host}: received {amount(one.received)}, had {amount(one.had)}; {state}"))


def _tell(text: str) -> None:
    print(plain(text), file=sys.stderr, flush=True)
